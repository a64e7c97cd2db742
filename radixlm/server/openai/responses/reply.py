"""One response object: what was asked, what has been said, and its JSON at any moment. Knows no event and no store."""

import time
from typing import Any

from radixlm.base.errors import RequestError
from radixlm.server.generation import Transcript, error_of
from radixlm.server.names import served_name
from radixlm.server.openai.logprobs import ChatLogprobs
from radixlm.server.openai.responses.body import DEFAULT_TEMPERATURE, ResponsesBody
from radixlm.server.openai.responses.output import Output
from radixlm.server.services import Services

_STATUS = {"stop": "completed", "length": "incomplete", "abort": "failed"}


class Reply:
    """`status` is queued, in_progress, completed, incomplete, failed or cancelled. `logprobs` are of its text."""

    def __init__(self, services: Services, body: ResponsesBody, identity: str, stored: bool) -> None:
        self.id = identity
        self.status = "in_progress"
        self.output = Output()
        self.logprobs: ChatLogprobs | None = None
        self._error: dict[str, Any] | None = None
        self._usage: dict[str, Any] | None = None
        self._cache_report = services.enable_cache_report
        reasoning = body.reasoning or {}
        self._head: dict[str, Any] = {
            "id": identity,
            "object": "response",
            "created_at": int(time.time()),
            "model": served_name(services, body.model),
        }
        self._asked: dict[str, Any] = {
            "background": bool(body.background),
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": reasoning.get("effort"), "summary": None},
            "store": stored,
            "temperature": DEFAULT_TEMPERATURE if body.temperature is None else body.temperature,
            "text": body.text or {"format": {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": body.truncation or "disabled",
            "user": body.user,
        }

    def score(self, transcript: Transcript) -> None:
        """All text is in `output`: the messages get their log probabilities, if they were asked for."""
        if self.logprobs is not None:
            entries = self.logprobs.take(transcript.extras, transcript.text, transcript.reason)
            self.output.score(transcript.text, entries)

    def take(self, transcript: Transcript, reasoning_tokens: int, cancelled: bool = False) -> None:
        """The choice has ended, and all it said is in `output`: status and usage are final."""
        reason = transcript.reason
        assert reason is not None
        self.status = "cancelled" if cancelled else _STATUS[reason.type]
        if self.status == "failed":
            error = error_of(reason) or RequestError(reason.message or "The request was aborted")
            self.fail(error.message)
        prompt, completion = transcript.prompt_tokens, transcript.completion_tokens
        cached = transcript.cached_tokens if self._cache_report else 0
        self._usage = {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": completion,
            "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
            "total_tokens": prompt + completion,
        }

    def fail(self, message: str) -> None:
        self.status = "failed"
        self._error = {"code": "server_error", "message": message}

    def json(self) -> dict[str, Any]:
        shown = self.status in ("completed", "incomplete", "cancelled")
        limited = self.status == "incomplete"
        return {
            **self._head,
            "status": self.status,
            "output": self.output.json(self.status == "completed") if shown else [],
            "usage": self._usage,
            "error": self._error,
            "incomplete_details": {"reason": "max_output_tokens"} if limited else None,
            **self._asked,
        }

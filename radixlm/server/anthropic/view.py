"""The shape of Anthropic's answers: one message of blocks, or the events that build it. Knows no request field."""

import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from radixlm.frontend.choice import Update
from radixlm.parsers.events import Content, Event, Reasoning, ToolArguments, ToolOpen, is_whole
from radixlm.parsers.pipeline import AnswerParser
from radixlm.server.errors import anthropic_body
from radixlm.server.generation import Transcript, error_of
from radixlm.server.services import Services

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens"}
_TEXT_KEYS = {"text": "text", "thinking": "thinking", "tool_use": "partial_json"}
_DELTAS = {"text": "text_delta", "thinking": "thinking_delta", "tool_use": "input_json_delta"}


class Blocks:
    """The content blocks of one message, as they grow: text, thinking and tool calls, in the order of the text."""

    def __init__(self) -> None:
        self._heads: list[dict[str, Any]] = []
        self._texts: list[str] = []
        self.calls = False

    def take(self, events: Iterable[Event]) -> Iterator[dict[str, Any]]:
        """Add what was said; yields the stream's events for it."""
        for event in events:
            if isinstance(event, ToolOpen):
                self.calls = True
                head = {"type": "tool_use", "id": event.id or f"toolu_{uuid.uuid4().hex[:24]}", "name": event.name}
                yield from self._open({**head, "input": {}})
            elif isinstance(event, ToolArguments):
                yield self._grow(event.text)
            else:
                yield from self._say(event)

    def close(self) -> Iterator[dict[str, Any]]:
        """End the last block; a message that said nothing has one block of empty text."""
        if not self._heads:
            yield from self._open({"type": "text", "text": ""})
        yield {"type": "content_block_stop", "index": len(self._heads) - 1}

    @property
    def cut(self) -> bool:
        """Whether the last block is a call without all of its arguments."""
        return bool(self._heads) and self._heads[-1]["type"] == "tool_use" and not is_whole(self._texts[-1])

    def content(self) -> list[dict[str, Any]]:
        """The blocks, whole. Arguments that were cut short are no object, and give an empty one."""
        return [_filled(head, text) for head, text in zip(self._heads, self._texts, strict=True)]

    def _say(self, event: Content | Reasoning) -> Iterator[dict[str, Any]]:
        kind = "thinking" if isinstance(event, Reasoning) else "text"
        if not self._heads or self._heads[-1]["type"] != kind:
            head = {"type": kind, _TEXT_KEYS[kind]: ""}
            yield from self._open({**head, "signature": ""} if kind == "thinking" else head)
        yield self._grow(event.text)

    def _open(self, head: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if self._heads:
            yield {"type": "content_block_stop", "index": len(self._heads) - 1}
        self._heads.append(head)
        self._texts.append("")
        yield {"type": "content_block_start", "index": len(self._heads) - 1, "content_block": head}

    def _grow(self, text: str) -> dict[str, Any]:
        self._texts[-1] += text
        kind = self._heads[-1]["type"]
        delta = {"type": _DELTAS[kind], _TEXT_KEYS[kind]: text}
        return {"type": "content_block_delta", "index": len(self._heads) - 1, "delta": delta}


def _filled(head: dict[str, Any], text: str) -> dict[str, Any]:
    if head["type"] != "tool_use":
        return {**head, _TEXT_KEYS[head["type"]]: text}
    try:
        arguments = json.loads(text)
    except ValueError:
        arguments = {}
    return {**head, "input": arguments if isinstance(arguments, dict) else {}}


class MessageView:
    """Answers of /v1/messages. A stream opens with the first thing that is said."""

    def __init__(self, services: Services, model: str, answer: AnswerParser) -> None:
        self._services = services
        self._model = model
        self._answer = answer
        self._blocks = Blocks()
        self._id = f"msg_{uuid.uuid4().hex}"
        self._begun = False
        self._failed = False

    def events(self, transcript: Transcript, update: Update) -> Iterator[Any]:
        error = error_of(transcript.reason)
        if error is not None:
            self._failed = True
            yield anthropic_body(error)
            return
        said = self._answer.feed(update.text) + (self._answer.finish() if update.finished is not None else [])
        if not self._begun and (said or update.finished is not None):
            self._begun = True
            yield {"type": "message_start", "message": self._message(transcript, started=True)}
        yield from self._blocks.take(said)

    def closing(self, transcripts: Sequence[Transcript]) -> Iterator[Any]:
        if self._failed:
            return
        yield from self._blocks.close()
        end, usage = self._end(transcripts[0]), self._usage(transcripts[0])
        yield {"type": "message_delta", "delta": end, "usage": usage}
        yield {"type": "message_stop"}

    def whole(self, transcripts: Sequence[Transcript]) -> Any:
        [transcript] = transcripts
        said = self._answer.feed(transcript.text) + self._answer.finish()
        for _ in chain(self._blocks.take(said), self._blocks.close()):
            pass
        return self._message(transcript)

    def _message(self, transcript: Transcript, started: bool = False) -> dict[str, Any]:
        usage = self._usage(transcript)
        end = {"stop_reason": None, "stop_sequence": None} if started else self._end(transcript)
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "content": self._blocks.content(),
            "model": self._model,
            **end,
            "usage": usage | {"output_tokens": 0} if started else usage,
        }

    def _end(self, transcript: Transcript) -> dict[str, Any]:
        """A stop sequence that was met is named, as Anthropic does (SGLang never does)."""
        reason = transcript.reason
        kind = reason.type if reason is not None else "stop"
        matched = reason.matched if reason is not None and kind == "stop" else None
        if kind == "stop" and self._blocks.calls and not (isinstance(matched, str) and self._blocks.cut):
            return {"stop_reason": "tool_use", "stop_sequence": None}
        if isinstance(matched, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": matched}
        return {"stop_reason": _STOP_REASONS.get(kind, "end_turn"), "stop_sequence": None}

    def _usage(self, transcript: Transcript) -> dict[str, Any]:
        """input_tokens do not count cached ones, as far as the server tells of these."""
        counts = {"input_tokens": transcript.prompt_tokens, "output_tokens": transcript.completion_tokens}
        if not self._services.enable_cache_report:
            return counts
        cached = transcript.cached_tokens
        return counts | {
            "input_tokens": transcript.prompt_tokens - cached,
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": 0,
        }

"""The shape of Ollama's answers: lines of text, and a last one with counts and times. Knows no request field."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from radixlm.frontend.choice import Update
from radixlm.parsers.events import Answer, Event, ToolArguments, ToolOpen
from radixlm.parsers.pipeline import AnswerParser
from radixlm.server.errors import plain_body
from radixlm.server.generation import Transcript, error_of

Say = Callable[[Answer], dict[str, Any]]


def said_in_chat(said: Answer) -> dict[str, Any]:
    """A message; calls are whole, with their arguments as an object."""
    message: dict[str, Any] = {"role": "assistant", "content": said.content}
    if said.reasoning:
        message["thinking"] = said.reasoning
    if said.calls:
        message["tool_calls"] = [
            {"function": {"name": call.name, "arguments": _object(call.arguments)}} for call in said.calls
        ]
    return {"message": message}


def said_plainly(said: Answer) -> dict[str, Any]:
    return {"response": said.content}


def _object(text: str) -> Any:
    """Arguments as the object they are; what was cut short gives an empty one."""
    try:
        return json.loads(text)
    except ValueError:
        return {}


def now_text() -> str:
    """The time as Ollama writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class LineView:
    """Answers of /api/chat and /api/generate; `say` puts what was said where the route has it.

    The last line of a stream says nothing. Tool calls are told whole, in a line of their own before it.
    """

    def __init__(self, model: str, say: Say, answer: AnswerParser) -> None:
        self._model = model
        self._say = say
        self._answer = answer
        self._calls = Answer()
        self._first_at: float | None = None
        self._failed = False

    def events(self, transcript: Transcript, update: Update) -> Iterator[Any]:
        self._first_at = self._first_at or time.time()
        error = error_of(transcript.reason)
        if error is not None:
            self._failed = True
            yield plain_body(error)
        else:
            yield from self._lines(self._answer.feed(update.text))

    def closing(self, transcripts: Sequence[Transcript]) -> Iterator[Any]:
        if self._failed:
            return
        yield from self._lines(self._answer.finish())
        if self._calls.calls:
            yield {**self._head(), **self._say(self._calls), "done": False}
        yield self._last(transcripts[0], Answer())

    def whole(self, transcripts: Sequence[Transcript]) -> Any:
        said = Answer()
        said.take(self._answer.feed(transcripts[0].text) + self._answer.finish())
        return self._last(transcripts[0], said)

    def _lines(self, events: Sequence[Event]) -> Iterator[Any]:
        for event in events:
            if isinstance(event, ToolOpen | ToolArguments):
                self._calls.take([event])
                continue
            said = Answer()
            said.take([event])
            yield {**self._head(), **self._say(said), "done": False}

    def nothing(self) -> dict[str, Any]:
        """The answer to an empty prompt, with which Ollama's clients load a model."""
        return {**self._head(), **self._say(Answer()), "done": True, "done_reason": "load"}

    def _head(self) -> dict[str, Any]:
        return {"model": self._model, "created_at": now_text()}

    def _last(self, transcript: Transcript, said: Answer) -> dict[str, Any]:
        """Times are nanoseconds; the prompt's ends with the first token, as far as the route has seen that."""
        choice, reason = transcript.choice, transcript.reason
        ended = choice.finished_at or time.time()
        first = min(self._first_at or ended, ended)
        return {
            **self._head(),
            **self._say(said),
            "done": True,
            "done_reason": "length" if reason is not None and reason.type == "length" else "stop",
            "total_duration": _ns(ended - choice.created),
            "load_duration": 0,
            "prompt_eval_count": transcript.prompt_tokens,
            "prompt_eval_duration": _ns(first - choice.created),
            "eval_count": transcript.completion_tokens,
            "eval_duration": _ns(ended - first),
        }


def _ns(seconds: float) -> int:
    return max(int(seconds * 1e9), 0)

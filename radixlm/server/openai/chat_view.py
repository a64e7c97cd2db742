"""The shape of chat answers: deltas and whole messages with content, thinking, tool calls. Knows no request field."""

import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from radixlm.frontend.choice import Update
from radixlm.parsers.events import Answer, Content, Event, Reasoning, ToolArguments, ToolOpen, is_whole
from radixlm.parsers.pipeline import AnswerParser
from radixlm.protocol.extras import Extras
from radixlm.protocol.messages import FinishReason
from radixlm.server.errors import openai_event
from radixlm.server.generation import Transcript, error_of
from radixlm.server.openai.common import Frame, finish_of, hidden_of
from radixlm.server.openai.logprobs import ChatLogprobs
from radixlm.server.parsing import Parsers, ReasoningCounter


def call_id() -> str:
    """An id for a tool call whose format has none of its own."""
    return f"call_{uuid.uuid4().hex[:24]}"


class _Said:
    """What is known of one choice's answer."""

    def __init__(self, parser: AnswerParser, counter: ReasoningCounter | None, logprobs: ChatLogprobs | None) -> None:
        self.calls = 0
        self._arguments: list[str] = []  # of the last call
        self.logprobs = logprobs
        self._parser = parser
        self._counter = counter

    def take(self, text: str, token_ids: Sequence[int], last: bool) -> list[Event]:
        """The events of new text and its tokens."""
        if self._counter is not None:
            self._counter.feed(token_ids)
        events = self._parser.feed(text)
        if last:
            events += self._parser.finish()
        for event in events:
            if isinstance(event, ToolOpen):
                self.calls += 1
                self._arguments = []
            elif isinstance(event, ToolArguments):
                self._arguments.append(event.text)
        return events

    def ends_by_calls(self, matched: int | str | None) -> bool:
        """Whether calls have ended an answer that stopped at `matched`: a stop string may have cut the last one."""
        return bool(self.calls) and (not isinstance(matched, str) or is_whole("".join(self._arguments)))

    @property
    def reasoning_tokens(self) -> int:
        return 0 if self._counter is None else self._counter.count(self._parser.spans)


class ChatView:
    """Answers of /v1/chat/completions. In a stream the finish chunks come after all choices have ended."""

    def __init__(self, frame: Frame, parsers: Parsers, logprobs: Callable[[], ChatLogprobs] | None = None) -> None:
        """`logprobs` makes what shows each choice's log probabilities."""
        self._frame = frame
        self._parsers = parsers
        self._logprobs = logprobs
        self._said: dict[int, _Said] = {}

    def events(self, transcript: Transcript, update: Update) -> Iterator[Any]:
        error = error_of(transcript.reason)
        if error is not None:
            yield openai_event(error)
            return
        if transcript.index not in self._said:
            yield self._chunk(transcript, {"reasoning_content": None, "role": "assistant", "content": ""})
        said = self._of(transcript)
        deltas = [_delta(event) for event in said.take(update.text, update.token_ids, update.finished is not None)]
        logprobs = _shown_logprobs(said, update.extras, update.text, transcript.reason)
        if logprobs is not None and logprobs["content"] and not deltas:
            deltas = [{"reasoning_content": None, "content": ""}]
        for delta in deltas:
            yield self._chunk(transcript, delta, logprobs=logprobs)
            logprobs = None  # they ride on the first

    def closing(self, transcripts: Sequence[Transcript]) -> Iterator[Any]:
        for transcript in transcripts:
            if error_of(transcript.reason) is None:
                _, matched = finish_of(transcript.reason)
                yield self._chunk(transcript, {"reasoning_content": None}, self._finish(transcript), matched)
        for transcript in transcripts:
            hidden = hidden_of(transcript)
            if hidden is not None:
                yield self._chunk(transcript, {"reasoning_content": None, "hidden_states": hidden})
        if self._frame.final_usage:
            head = self._frame.head(transcripts[0], "chat.completion.chunk")
            yield {**head, "choices": [], "usage": self._usage(transcripts)}

    def whole(self, transcripts: Sequence[Transcript]) -> Any:
        return {
            **self._frame.head(transcripts[0], "chat.completion"),
            "choices": [self._choice(one) for one in transcripts],
            "usage": self._usage(transcripts),
            "metadata": self._frame.metadata(transcripts),
        }

    def _of(self, transcript: Transcript) -> _Said:
        said = self._said.get(transcript.index)
        if said is None:
            logprobs = self._logprobs() if self._logprobs is not None else None
            said = self._said[transcript.index] = _Said(self._parsers.begin(), self._parsers.counter(), logprobs)
        return said

    def _finish(self, transcript: Transcript) -> str | None:
        """An answer that calls ends for that; a truncated one ends by what has cut it, whatever it has called."""
        reason, matched = finish_of(transcript.reason)
        return "tool_calls" if reason == "stop" and self._of(transcript).ends_by_calls(matched) else reason

    def _usage(self, transcripts: Sequence[Transcript]) -> dict[str, Any]:
        return self._frame.usage(transcripts, sum(self._of(one).reasoning_tokens for one in transcripts))

    def _choice(self, transcript: Transcript) -> dict[str, Any]:
        answer, said = Answer(), self._of(transcript)
        answer.take(said.take(transcript.text, transcript.token_ids, True))
        message: dict[str, Any] = {
            "role": "assistant",
            "content": answer.content,
            "reasoning_content": answer.reasoning or None,
        }
        if answer.calls:
            message["tool_calls"] = [
                {
                    "id": call.id or call_id(),
                    "index": index,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for index, call in enumerate(answer.calls)
            ]
        finish, (_, matched) = self._finish(transcript), finish_of(transcript.reason)
        hidden = hidden_of(transcript)
        return {
            "index": transcript.index,
            "message": message,
            "logprobs": _shown_logprobs(said, transcript.extras, transcript.text, transcript.reason),
            "finish_reason": finish,
            "matched_stop": None if finish == "tool_calls" else matched,
            **({} if hidden is None else {"hidden_states": hidden}),
        }

    def _chunk(
        self,
        transcript: Transcript,
        delta: dict[str, Any],
        finish_reason: str | None = None,
        matched_stop: int | str | None = None,
        logprobs: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        chunk = self._frame.head(transcript, "chat.completion.chunk")
        chunk["choices"] = [
            {
                "index": transcript.index,
                "delta": delta,
                "logprobs": logprobs,
                "finish_reason": finish_reason,
                "matched_stop": matched_stop,
            }
        ]
        if self._frame.continuous_usage:
            chunk["usage"] = self._usage([transcript])
        return chunk


def _shown_logprobs(
    said: _Said, extras: Sequence[Extras], text: str, reason: FinishReason | None
) -> dict[str, Any] | None:
    """The `logprobs` of new text and its extras; None where they were not asked for."""
    if said.logprobs is None:
        return None
    return {"content": [entry.json for entry in said.logprobs.take(extras, text, reason)]}


def _delta(event: Event) -> dict[str, Any]:
    """An event as OpenAI's clients add it up: a call's id, type and name come once, then only arguments."""
    if isinstance(event, Content):
        return {"reasoning_content": None, "content": event.text}
    if isinstance(event, Reasoning):
        return {"reasoning_content": event.text}
    call: dict[str, Any] = {"index": event.index}
    if isinstance(event, ToolOpen):
        call |= {"id": event.id or call_id(), "type": "function", "function": {"name": event.name, "arguments": ""}}
    else:
        call["function"] = {"arguments": event.text}
    return {"reasoning_content": None, "content": None, "tool_calls": [call]}

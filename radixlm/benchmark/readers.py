"""Answers read as they arrive, one reader per API: what came when, how many tokens, what went wrong. No sockets here.

A reader is fed by the connection's callback, so its work per event is the client's ceiling: keep it small.
"""

import re
from typing import Any, Protocol

import msgspec

from radixlm.benchmark.outcome import Outcome
from radixlm.benchmark.sse import SseParser

ERROR_BODY_BYTES = 2000


class Reader(Protocol):
    """Interprets the events of one answer. Both methods may raise msgspec.DecodeError on an event that is not JSON."""

    def event(self, payload: bytes, now: float) -> None:
        """One event, or the whole body when nothing is streamed."""

    def finish(self, outcome: Outcome) -> None:
        """Put what was read into `outcome`, `error` included."""


class _Marks:
    """When tokens came: the raw times and counts of one answer, starting with its first text."""

    __slots__ = ("text_seen", "times_s", "tokens")

    def __init__(self) -> None:
        self.times_s: list[float] = []
        self.tokens: list[int] = []
        self.text_seen = False

    def add(self, now: float, tokens: int, has_text: bool) -> None:
        """Tokens that came before any text are counted into the first event with text, and it alone gives the time."""
        if has_text and not self.text_seen:
            self.text_seen = True
            self.tokens = [max(sum(self.tokens) + tokens, 1)]
            self.times_s = [now]
        elif tokens > 0:
            self.tokens.append(tokens)
            self.times_s.append(now)


class _NativeMeta(msgspec.Struct):
    completion_tokens: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    cached_tokens_details: dict[str, Any] | None = None
    finish_reason: dict[str, Any] | None = None


class _NativeChunk(msgspec.Struct):
    text: str = ""
    output_ids: list[int] | None = None
    meta_info: _NativeMeta | None = None
    error: Any = None


_native = msgspec.json.Decoder(_NativeChunk)
# A JSON string cannot contain these bytes (its quotes are escaped), so they are always a key.
_COUNT_KEY = b'"completion_tokens":'
_NUMBER = re.compile(rb"\s*(\d+)[\s,}]")


class NativeReader:
    """Answers of `/generate`.

    By default every chunk repeats the whole answer so far; decoding them all is quadratic in its length. So only the
    first two and the last are decoded and the others give just their token count, found from the chunk's end. The
    second chunk tells whether the server sends increments instead; those are short and decoded all.
    """

    __slots__ = ("_chunks", "_cumulative", "_last", "_marks", "_pieces", "_total")

    def __init__(self) -> None:
        self._marks = _Marks()
        self._total = 0
        self._chunks = 0
        self._cumulative: bool | None = None
        self._pieces: list[str] = []
        self._last = b""

    def event(self, payload: bytes, now: float) -> None:
        self._last = payload
        if self._cumulative and self._marks.text_seen:
            at = payload.rfind(_COUNT_KEY)
            number = _NUMBER.match(payload, at + len(_COUNT_KEY)) if at >= 0 else None
            if number is not None:
                total = int(number[1])
                self._marks.add(now, total - self._total, True)
                self._total = total
                return
        self._decoded(payload, now)

    def _decoded(self, payload: bytes, now: float) -> None:
        chunk = _native.decode(payload)
        if chunk.meta_info is None:
            return
        total = chunk.meta_info.completion_tokens
        self._chunks += 1
        if self._cumulative is None and self._total:
            self._cumulative = chunk.output_ids is None or len(chunk.output_ids) == total
        if not self._cumulative:
            self._pieces.append(chunk.text)
        self._marks.add(now, total - self._total, bool(chunk.text))
        self._total = total

    def finish(self, outcome: Outcome) -> None:
        outcome.event_s, outcome.event_tokens = self._marks.times_s, self._marks.tokens
        outcome.output_tokens = self._total
        if not self._last:
            outcome.error = outcome.error or "the answer was empty"
            return
        last = _native.decode(self._last)
        outcome.text = last.text if self._cumulative else "".join(self._pieces)
        meta = last.meta_info
        if meta is None:
            outcome.error = outcome.error or f"server error: {_message(last.error)}"
            return
        outcome.server_prompt_tokens = meta.prompt_tokens
        outcome.cached_tokens = meta.cached_tokens
        outcome.cached_details = meta.cached_tokens_details
        reason = meta.finish_reason or {}
        if reason.get("type") == "abort":
            outcome.error = outcome.error or f"aborted by the server: {reason.get('message', 'no reason given')}"


class _Text(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Text | None = None
    message: _Text | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: dict[str, Any] | None = None


class _OpenAiChunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_openai = msgspec.json.Decoder(_OpenAiChunk)


class OpenAiReader:
    """Answers of `/v1/completions` and `/v1/chat/completions`: each chunk with text is one event of one token."""

    __slots__ = ("_error", "_finish_reason", "_marks", "_pieces", "_seen", "_usage")

    def __init__(self) -> None:
        self._marks = _Marks()
        self._pieces: list[str] = []
        self._usage: _Usage | None = None
        self._finish_reason: str | None = None
        self._error: Any = None
        self._seen = False

    def event(self, payload: bytes, now: float) -> None:
        chunk = _openai.decode(payload)
        self._seen = True
        if chunk.usage is not None:
            self._usage = chunk.usage
        if chunk.error is not None:
            self._error = chunk.error
        for choice in chunk.choices:
            self._finish_reason = choice.finish_reason or self._finish_reason
            part = choice.delta or choice.message
            text = choice.text or (part is not None and (part.content or part.reasoning_content)) or ""
            if text:
                self._pieces.append(text)
                self._marks.add(now, 1, True)

    def finish(self, outcome: Outcome) -> None:
        outcome.event_s, outcome.event_tokens = self._marks.times_s, self._marks.tokens
        outcome.text = "".join(self._pieces)
        usage = self._usage
        if usage is not None and usage.completion_tokens is not None:
            outcome.output_tokens, outcome.output_assumed = usage.completion_tokens, False
        else:
            outcome.output_assumed = True
        if usage is not None:
            outcome.server_prompt_tokens = usage.prompt_tokens
            outcome.cached_tokens = (usage.prompt_tokens_details or {}).get("cached_tokens")
        if self._error is not None:
            outcome.error = outcome.error or f"server error: {_message(self._error)}"
        elif not self._seen:
            outcome.error = outcome.error or "the answer was empty"
        elif self._finish_reason == "abort":
            outcome.error = outcome.error or "aborted by the server"


class _EmbeddingAnswer(msgspec.Struct):
    data: list[Any] | None = None
    usage: _Usage | None = None
    error: Any = None


_embedding = msgspec.json.Decoder(_EmbeddingAnswer)


class EmbeddingReader:
    """Answers of `/v1/embeddings`: whole, and without output tokens."""

    __slots__ = ("_answer",)

    def __init__(self) -> None:
        self._answer: _EmbeddingAnswer | None = None

    def event(self, payload: bytes, now: float) -> None:
        self._answer = _embedding.decode(payload)

    def finish(self, outcome: Outcome) -> None:
        answer = self._answer
        if answer is None or answer.data is None:
            told = "the answer was empty" if answer is None else f"server error: {_message(answer.error)}"
            outcome.error = outcome.error or told
        elif answer.usage is not None:
            outcome.server_prompt_tokens = answer.usage.prompt_tokens


class AnswerReceiver:
    """Feeds one answer's bytes to its reader and remembers how the answer ended."""

    __slots__ = ("_body", "_parser", "_reader", "_streamed", "broken", "done", "end_s", "status")

    def __init__(self, reader: Reader, streamed: bool) -> None:
        self._reader = reader
        self._streamed = streamed
        self._parser = SseParser()
        self._body = bytearray()
        self.status = 0
        self.end_s = 0.0
        self.done = not streamed
        self.broken: str | None = None

    def on_status(self, status: int) -> None:
        self.status = status

    def on_body(self, data: bytes, now: float) -> None:
        self.end_s = now
        if self.status == 200 and self._streamed:
            self._events(self._parser.feed(data), now)
        else:
            self._body += data

    def finish(self, outcome: Outcome) -> None:
        """Complete `outcome`. An error already in it (a cut connection) stays; the rest of what was read is kept."""
        if self.status == 200 and self._streamed:
            self._events(self._parser.finish(), self.end_s)
        elif self.status == 200 and outcome.error is None:
            self._events([bytes(self._body)], self.end_s)
        outcome.end_s = self.end_s
        if self.status != 200:
            body = bytes(self._body[:ERROR_BODY_BYTES]).decode("utf-8", "replace").strip()
            outcome.error = outcome.error or f"HTTP {self.status}: {_one_line(body)}"
            return
        outcome.error = outcome.error or self.broken
        try:
            self._reader.finish(outcome)
        except msgspec.DecodeError as error:
            outcome.error = outcome.error or f"answer not understood: {error}"
        if not self.done:
            outcome.error = outcome.error or "the stream ended without [DONE]"

    def _events(self, payloads: list[bytes], now: float) -> None:
        for payload in payloads:
            if payload == b"[DONE]":
                self.done = True
            elif self.broken is None:
                try:
                    self._reader.event(payload, now)
                except msgspec.DecodeError as error:
                    self.broken = f"answer not understood: {error}"


def _message(error: Any) -> str:
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        return _one_line(error["message"])
    return _one_line(str(error))


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]

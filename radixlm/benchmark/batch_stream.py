"""One /generate request that carries a whole batch, read as it streams. Knows the wire format, no statistics."""

import time
from dataclasses import dataclass, field
from typing import Any

import msgspec

from radixlm.base.errors import RadixError
from radixlm.benchmark.http1 import HttpClient, HttpFailure
from radixlm.benchmark.sse import SseParser


class _Meta(msgspec.Struct):
    completion_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    finish_reason: dict[str, Any] | None = None


class _Chunk(msgspec.Struct):
    index: int = 0
    meta_info: _Meta | None = None
    error: Any = None


_chunk = msgspec.json.Decoder(_Chunk)


@dataclass
class Sequence:
    """One answer of the batch: `marks` are (seconds, tokens so far), `ended_s` is when it was told to be complete."""

    marks: list[tuple[float, int]] = field(default_factory=list)
    ended_s: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int | None = None

    @property
    def tokens(self) -> int:
        return self.marks[-1][1] if self.marks else 0

    def tokens_at(self, time_s: float) -> float:
        """How many tokens it had at `time_s`, between two marks by their straight line."""
        before = (self.marks[0][0], 0) if self.marks else (0.0, 0)
        for mark in self.marks:
            if mark[0] > time_s:
                span_s = mark[0] - before[0]
                return before[1] + (mark[1] - before[1]) * (time_s - before[0]) / span_s if span_s > 0 else before[1]
            before = mark
        return before[1]


@dataclass
class BatchAnswer:
    """All answers of one batch request, and when it was sent and complete, on time.perf_counter's clock."""

    sequences: list[Sequence]
    sent_s: float = 0.0
    end_s: float = 0.0


class _BatchReceiver:
    def __init__(self, answer: BatchAnswer) -> None:
        self._answer = answer
        self._parser = SseParser()
        self._status = 0
        self._body = bytearray()
        self.done = False
        self.error: str | None = None

    def on_status(self, status: int) -> None:
        self._status = status

    def on_body(self, data: bytes, now: float) -> None:
        if self._status != 200:
            self._body += data
            self.error = f"HTTP {self._status}: {bytes(self._body[:300]).decode('utf-8', 'replace')}"
            return
        for payload in self._parser.feed(data):
            if payload == b"[DONE]":
                self.done = True
            else:
                self._take(_chunk.decode(payload), now)

    def _take(self, chunk: _Chunk, now: float) -> None:
        meta = chunk.meta_info
        if meta is None:
            self.error = f"server error: {chunk.error}"
            return
        sequence = self._answer.sequences[chunk.index]
        if meta.completion_tokens > sequence.tokens:
            sequence.marks.append((now, meta.completion_tokens))
        sequence.prompt_tokens, sequence.cached_tokens = meta.prompt_tokens, meta.cached_tokens
        if meta.finish_reason is not None:
            sequence.ended_s = now
            if meta.finish_reason.get("type") == "abort":
                self.error = f"aborted by the server: {meta.finish_reason.get('message')}"


async def generate_batch(
    client: HttpClient, prompts: list[list[int]], output_tokens: int, sampling: dict[str, Any], more: dict[str, Any]
) -> BatchAnswer:
    """Send `prompts` (token ids) as one streaming request. RadixError unless every answer came whole."""
    body = {"input_ids": prompts, "sampling_params": {"max_new_tokens": output_tokens, **sampling}, "stream": True}
    wire = client.target.request("POST", "/generate", msgspec.json.encode(body | more))
    answer = BatchAnswer([Sequence() for _ in prompts])
    receiver = _BatchReceiver(answer)
    answer.sent_s = time.perf_counter()
    try:
        await client.exchange(wire, receiver)
    except (HttpFailure, msgspec.DecodeError) as failure:
        raise RadixError(str(failure)) from None
    answer.end_s = time.perf_counter()
    if receiver.error is not None:
        raise RadixError(receiver.error)
    if not receiver.done or not all(sequence.ended_s for sequence in answer.sequences):
        raise RadixError("the stream ended before every answer was complete")
    return answer

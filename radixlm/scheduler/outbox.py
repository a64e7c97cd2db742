"""What goes out: new tokens of streaming requests, and the end of every request, as one columnar message."""

from collections.abc import Iterable

import numpy as np

from radixlm.protocol.arrays import I32
from radixlm.protocol.extras import Extras, joined
from radixlm.protocol.messages import BatchTokenIDOutput, Finished, FinishReason, Started
from radixlm.scheduler.request import Request
from radixlm.scheduler.slots import SlotTable


class Outbox:
    """Ended requests wait here with their last tokens; a running one's unsent tokens are read from the slots."""

    def __init__(self, slots: SlotTable) -> None:
        self._slots = slots
        self._ended: list[tuple[Request, I32, Finished]] = []

    @property
    def empty(self) -> bool:
        return not self._ended

    def end(self, request: Request, history: I32, reason: FinishReason) -> None:
        """`request` is over; `history` is its prompt and all its outputs."""
        tail = history[request.prompt_tokens + request.sent :]
        produced = len(history) - request.prompt_tokens
        finished = Finished(
            request.key, reason, request.prompt_tokens, produced, request.cached_tokens, request.retractions
        )
        self._ended.append((request, tail, finished))

    def take(self) -> BatchTokenIDOutput | None:
        """Everything not sent yet; None when there is nothing. No key appears twice."""
        started: list[Started] = []
        running, counts, tokens = self._streamed(started)
        keys = self._slots.key[running]
        extras = _taken(self._slots.request(slot) for slot in running[self._slots.reads[running]].tolist())
        if self._ended:
            ended, self._ended = self._ended, []
            for request, _, _ in ended:
                self._announce(request, started)
            keys = np.concatenate((keys, np.array([r.key for r, _, _ in ended], np.int64)))
            counts = np.concatenate((counts, np.array([len(tail) for _, tail, _ in ended], np.int32)))
            tokens = np.concatenate((tokens, *(tail for _, tail, _ in ended)))
            extras |= _taken(request for request, _, _ in ended)
            return BatchTokenIDOutput(keys, counts, tokens, started, [finished for _, _, finished in ended], extras)
        if not len(running):
            return None
        return BatchTokenIDOutput(keys, counts, tokens, started, [], extras)

    def _streamed(self, started: list[Started]) -> tuple[I32, I32, I32]:
        """(slots, counts, tokens) of running streams with something new, which then counts as sent."""
        t = self._slots
        slots = t.active[t.stream[t.active]]
        first = t.prompt[slots] + t.sent[slots]
        counts = t.known[slots] - first
        new = counts > 0
        slots, first, counts = slots[new], first[new], counts[new]
        rows = np.repeat(slots, counts)
        offsets = np.arange(len(rows), dtype=np.int32) - np.repeat(np.cumsum(counts) - counts, counts)
        tokens = t.tokens[rows, np.repeat(first, counts) + offsets]
        for slot in slots[t.sent[slots] == 0].tolist():
            self._announce(t.request(slot), started)
        t.sent[slots] += counts
        return slots, counts, tokens

    def _announce(self, request: Request, started: list[Started]) -> None:
        if not request.announced:
            request.announced = True
            started.append(
                Started(request.key, request.prompt_tokens, request.cached_tokens, request.queue_time, request.text)
            )


def _taken(requests: Iterable[Request]) -> dict[int, Extras]:
    """What was read out for these requests and is not sent yet, by key; it then counts as sent."""
    found: dict[int, Extras] = {}
    for request in requests:
        if request.extras:
            found[request.key] = joined(request.extras)
            request.extras = []
    return found

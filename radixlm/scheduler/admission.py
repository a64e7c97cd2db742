"""How much of the pool is promised: the output-reservation ratio, and whether one more request fits."""

import numpy as np

from radixlm.cache.manager import CacheManager
from radixlm.cache.radix import Match
from radixlm.protocol.arrays import I32
from radixlm.scheduler.request import Request
from radixlm.scheduler.slots import SlotTable

# SGLang's numbers: output beyond the clip is not reserved; the ratio falls to its floor in so many decode steps
CLIP_NEW_TOKENS = 4096
INITIAL_RATIO = 0.7
FLOOR_FACTOR = 0.14
DECAY_STEPS = 600
RETRACT_AHEAD_TOKENS = 20


class Admission:
    """`ratio` is the share of a running request's remaining output that is expected to be produced."""

    def __init__(self, cache: CacheManager, slots: SlotTable, conservativeness: float) -> None:
        self._cache = cache
        self._slots = slots
        self._start = min(INITIAL_RATIO * conservativeness, 1.0)
        self._floor = min(self._start * FLOOR_FACTOR, 1.0)
        self._decay = (self._start - self._floor) / DECAY_STEPS
        self.ratio = self._start

    def decay(self) -> None:
        """A decode step went well."""
        self.ratio = max(self.ratio - self._decay, self._floor)

    def reset(self) -> None:
        """Nothing runs or waits."""
        self.ratio = self._start

    def retracted(self) -> None:
        """Requests were retracted: expect of the survivors what they have produced so far, and a little more."""
        t = self._slots
        produced = int((t.known[t.active] - t.prompt[t.active]).sum())
        limit = int(t.limit[t.active].sum())
        self.ratio = min(1.0, (produced + RETRACT_AHEAD_TOKENS * len(t.active)) / (limit + 1))

    def promised_tokens(self, slots: I32) -> float:
        """What `slots` are expected to need beyond the pages they hold."""
        t = self._slots
        left = np.minimum(t.limit[slots] - t.sampled[slots], CLIP_NEW_TOKENS)
        expected = np.where(t.ignore_eos[slots], left, left * self.ratio)
        final = np.maximum(t.planned[slots], t.target[slots]) + expected
        return float(np.maximum(final - t.held[slots] * t.page_size, 0).sum())

    def fits(self, request: Request, match: Match, promised_tokens: float) -> bool:
        """Whether `request`, with `match` cached, fits beside what is promised; alone it needs room for itself only."""
        available_pages = self._cache.free_pages + self._cache.evictable_pages
        return self.would_fit(request, match, len(self._slots.active), available_pages, promised_tokens)

    def would_fit(
        self, request: Request, match: Match, running: int, available_pages: int, promised_tokens: float
    ) -> bool:
        """`fits` beside so many running requests, with so many free or evictable pages."""
        page = self._cache.page_size
        extend_pages = self.extend_pages(request, match)
        available = available_pages - match.evictable_pages
        if not running:
            return extend_pages <= available
        expected = min(request.max_outputs - request.produced, CLIP_NEW_TOKENS)
        return extend_pages * page + expected + page < available * page - promised_tokens

    def extend_pages(self, request: Request, match: Match) -> int:
        """Pages that the uncached part of the request's history takes."""
        return -(-len(request.history) // self._cache.page_size) - len(match.pages)

"""Many decode steps at once, for simulations, where each of them would only add a token to every running request.

Leaves requests, pages and promises exactly as the single steps would; plans nothing and reports nothing.
"""

import numpy as np

from radixlm.protocol.arrays import I32
from radixlm.scheduler.parts import Parts


class Coaster:
    """`reserve_pages`: by how many pages a decoding request grows at once."""

    def __init__(self, parts: Parts, reserve_pages: int) -> None:
        self._cache = parts.cache
        self._slots = parts.slots
        self._queue = parts.queue
        self._admission = parts.admission
        self._reserve_pages = reserve_pages

    def room(self, most: int) -> int:
        """For how many steps, at most `most`, nobody reaches the limit of its output; 0 when not all that is known
        simply decodes, or memory is too short for as many.

        Steps in flight count as committed, so none of their rows may end.
        """
        t, rows = self._slots, self._slots.active
        if self._queue.count or not len(rows) or len(t.decoding()) < len(rows) or t.watched[rows].any():
            return 0
        steps = min(most, int((t.limit[rows] - t.sampled[rows]).min()) - 1)
        pages = int(self._growth(rows, steps).sum()) if steps > 0 else 0
        return steps if pages <= self._cache.free_pages + self._cache.evictable_pages else 0

    def go(self, steps: int, token: int) -> None:
        """As if `steps` steps (`room` of them, or fewer) had sampled `token` in every row. Nothing may be in flight."""
        t, rows = self._slots, self._slots.active
        wanted = self._growth(rows, steps)
        total = int(wanted.sum())
        if total:
            self._cache.secure(total)
            t.spread_pages(rows[wanted > 0], wanted[wanted > 0], self._cache.take(total))
        for slot in rows.tolist():
            t.tokens[slot, t.known[slot] : t.known[slot] + steps] = token
        for column in (t.planned, t.done, t.sampled, t.known):
            column[rows] += steps
        for _ in range(steps):
            self._admission.decay()

    def _growth(self, rows: I32, steps: int) -> I32:
        """The pages that each of `rows` takes in so many steps, a few at a time."""
        t, page = self._slots, self._cache.page_size
        missing = np.maximum(t.planned[rows] + steps - t.held[rows] * page, 0)
        grown = -(-missing // (self._reserve_pages * page)) * self._reserve_pages
        pages: I32 = np.minimum(grown, t.most_pages(rows) - t.held[rows]).astype(np.int32)
        return pages

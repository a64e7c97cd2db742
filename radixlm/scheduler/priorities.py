"""What a request's priority means: its urgency, and which running requests give way to it. Plans no row."""

from collections.abc import Iterator

import numpy as np

from radixlm.cache.radix import LEAST_URGENT, Match
from radixlm.config.groups import ScheduleConfig
from radixlm.protocol.arrays import I32
from radixlm.scheduler.parts import Parts
from radixlm.scheduler.request import Request


class Priorities:
    """Turns the priorities of messages into urgencies: 64-bit integers, larger is more urgent, all 0 when disabled."""

    def __init__(self, config: ScheduleConfig) -> None:
        self._enabled = config.enable_priority_scheduling
        self._sign = -1 if config.schedule_low_priority_values_first else 1
        self._default = config.default_priority_value
        self._refuse = config.abort_on_priority_when_disabled and not config.enable_priority_scheduling

    def urgency(self, priority: int | None) -> int:
        """A request without a priority, and without a default for it, is the least urgent."""
        if not self._enabled:
            return 0
        value = self._default if priority is None else priority
        return LEAST_URGENT if value is None else max(LEAST_URGENT + 1, min(self._sign * value, -LEAST_URGENT - 1))

    def standing(self, priority: int | None) -> int:
        """What the cached prefixes of a request are worth: its urgency, or where all are alike its priority, else 0."""
        if self._enabled:
            return self.urgency(priority)
        return max(LEAST_URGENT + 1, min(priority or 0, -LEAST_URGENT - 1))

    def why_refused(self, priority: int | None) -> str | None:
        """Why a request must not have this priority, or None when it may."""
        if priority is None or not self._refuse:
            return None
        return "This server runs without priority scheduling: send the request without a priority."


class Preemption:
    """Retracts running requests for the first in the queue when that one is more urgent by more than a threshold."""

    def __init__(self, parts: Parts) -> None:
        config = parts.config
        self._enabled = config.enable_priority_scheduling and not config.disable_priority_preemption
        self._threshold = config.priority_scheduling_preemption_threshold
        self._cache = parts.cache
        self._slots = parts.slots
        self._queue = parts.queue
        self._policy = parts.policy
        self._sharing = parts.sharing
        self._admission = parts.admission
        self._lifecycle = parts.lifecycle
        self._reporter = parts.reporter

    def make_way(self, now: float) -> int:
        """Retract as few as let the first waiting request start; none when all would not do. Returns how many.

        Not to be called while a step is half planned.
        """
        if not self._enabled or not self._queue.waiting:
            return 0
        request = self._policy.order(self._queue.waiting, now)[0]
        outranked = self._outranked(request)
        if not outranked:
            return 0
        match = self._cache.match(request.namespace, request.reusable)
        if self._sharing.leader_of(request, len(match.pages) * self._cache.page_size) is not None:
            return 0
        victims = outranked[: self._needed(request, match, outranked)]
        for victim in victims:
            self._lifecycle.retract(victim)
        if victims:
            self._reporter.preemption(len(victims))
        return len(victims)

    def _outranked(self, request: Request) -> list[Request]:
        """Who may have to give way: the least urgent first, of those the latest admitted."""
        running = [self._slots.request(slot) for slot in reversed(self._slots.active.tolist())]
        lower = [other for other in running if request.urgency - other.urgency > self._threshold]
        return sorted(lower, key=lambda other: other.urgency)

    def _needed(self, request: Request, match: Match, outranked: list[Request]) -> int:
        """How many of `outranked` have to go, from the front; 0 also when even all of them would not be enough."""
        kept: I32 = self._slots.active
        available = self._cache.obtainable_pages
        for count, freed in enumerate(self._freed_pages(outranked, match)):
            available += freed
            if count:
                kept = kept[kept != outranked[count - 1].slot]
            slots_free = self._slots.free_slots + count > 0
            promised = self._admission.promised_tokens(kept)
            if slots_free and self._admission.would_fit(request, match, len(kept), available, promised):
                return count
        return 0

    def _freed_pages(self, victims: list[Request], match: Match) -> Iterator[int]:
        """Pages that come free without anybody leaving (0), and with each further victim."""
        yield 0
        leases = [victim.lease for victim in victims if victim.lease is not None]
        private = (self._slots.held - self._slots.shared)[np.array([victim.slot for victim in victims])]
        for own, shared in zip(private.tolist(), self._cache.freed_by_ending(leases, match), strict=True):
            yield own + shared

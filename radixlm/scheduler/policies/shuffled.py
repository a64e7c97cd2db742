"""A random order, the same in every run: a request's place is a hash of its arrival number."""

from collections.abc import Sequence

from radixlm.scheduler.policies.base import PolicyFacts, QueuePolicy
from radixlm.scheduler.request import Request

_MASK = (1 << 64) - 1


class Shuffled(QueuePolicy):
    """A request keeps its place while it waits: one that does not fit yet stays in front until it does."""

    @classmethod
    def why_not(cls, facts: PolicyFacts) -> list[str]:
        return []

    def order(self, waiting: Sequence[Request], now: float) -> Sequence[Request]:
        return sorted(waiting, key=lambda request: _mixed(request.order))


def _mixed(number: int) -> int:
    """The output function of SplitMix64 (Steele, Lea, Flood 2014): a bijection of 64-bit integers."""
    value = number * 0x9E3779B97F4A7C15 & _MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31

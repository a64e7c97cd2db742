"""What a queue policy is asked: in which order waiting requests are tried. Knows requests and the cache, no slot."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from radixlm.cache.manager import CacheManager
from radixlm.scheduler.request import Request


@dataclass(frozen=True)
class PolicyFacts:
    """What decides whether a policy can serve: asked once at start."""

    radix: bool


class QueuePolicy(ABC):
    """An order of the waiting requests. `running` tells who runs now, oldest first."""

    def __init__(self, cache: CacheManager, running: Callable[[], Sequence[Request]]) -> None:
        self.cache = cache
        self.running = running

    @classmethod
    @abstractmethod
    def why_not(cls, facts: PolicyFacts) -> list[str]:
        """The reasons this policy cannot be used; empty when it can."""

    @abstractmethod
    def order(self, waiting: Sequence[Request], now: float) -> Sequence[Request]:
        """`waiting` (by urgency, then arrival; not to be changed) in the order to try; it may be the same sequence."""

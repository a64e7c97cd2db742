"""First come, first served, urgent requests before others; a retracted request keeps its place."""

from collections.abc import Sequence

from radixlm.scheduler.policies.base import PolicyFacts, QueuePolicy
from radixlm.scheduler.request import Request


class FirstComeFirstServed(QueuePolicy):
    @classmethod
    def why_not(cls, facts: PolicyFacts) -> list[str]:
        return []

    def order(self, waiting: Sequence[Request], now: float) -> Sequence[Request]:
        return waiting

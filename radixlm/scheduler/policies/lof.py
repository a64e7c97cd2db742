"""Longest output first: what will hold its memory longest starts first, so that a batch job has no long tail."""

from collections.abc import Sequence

from radixlm.scheduler.policies.base import PolicyFacts, QueuePolicy
from radixlm.scheduler.request import Request


class LongestOutputFirst(QueuePolicy):
    @classmethod
    def why_not(cls, facts: PolicyFacts) -> list[str]:
        return []

    def order(self, waiting: Sequence[Request], now: float) -> Sequence[Request]:
        return sorted(waiting, key=lambda request: (-request.urgency, -request.max_outputs))

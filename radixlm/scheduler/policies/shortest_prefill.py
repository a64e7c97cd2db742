"""Fewest uncached prompt tokens first: the mean time to first token is lowest, and long prompts pay for it."""

from collections.abc import Sequence

from radixlm.cache.radix import Match
from radixlm.scheduler.policies.base import PolicyFacts
from radixlm.scheduler.policies.matching import MatchingPolicy, sorted_by
from radixlm.scheduler.request import Request


class ShortestPrefillFirst(MatchingPolicy):
    @classmethod
    def why_not(cls, facts: PolicyFacts) -> list[str]:
        return [] if facts.radix else ["it orders by what is cached, and --disable-radix-cache is set"]

    def arrange(self, waiting: Sequence[Request], matches: Sequence[Match], now: float) -> Sequence[Request]:
        return sorted_by(waiting, [self.uncached_tokens(*pair) for pair in zip(waiting, matches, strict=True)])

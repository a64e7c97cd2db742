"""Longest cached prefix first: what is in memory is used before it is evicted (arXiv 2312.07104, section 3)."""

from collections.abc import Sequence

from radixlm.cache.radix import Match
from radixlm.scheduler.policies.matching import MatchingPolicy, sorted_by
from radixlm.scheduler.request import Request


class LongestPrefixMatch(MatchingPolicy):
    def arrange(self, waiting: Sequence[Request], matches: Sequence[Match], now: float) -> Sequence[Request]:
        return sorted_by(waiting, [-len(match.pages) for match in matches])

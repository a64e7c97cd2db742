"""Highest response ratio next: the time waited per uncached token, so short work goes first but nothing starves."""

from collections.abc import Sequence

from radixlm.cache.radix import Match
from radixlm.scheduler.policies.matching import MatchingPolicy, sorted_by
from radixlm.scheduler.request import Request


class HighestResponseRatioNext(MatchingPolicy):
    def arrange(self, waiting: Sequence[Request], matches: Sequence[Match], now: float) -> Sequence[Request]:
        pairs = zip(waiting, matches, strict=True)
        return sorted_by(waiting, [(r.enqueued_at - now) / self.uncached_tokens(r, match) for r, match in pairs])

"""What policies that order by cached prefixes share: one match per request, and a bound on how many."""

from abc import abstractmethod
from collections.abc import Sequence

from radixlm.cache.radix import Match
from radixlm.scheduler.policies.base import PolicyFacts, QueuePolicy
from radixlm.scheduler.request import Request

MOST_MATCHED_REQUESTS = 128  # with more waiting, matching them all every step costs more than a better order gains


class MatchingPolicy(QueuePolicy):
    """Keeps the order of arrival while more than MOST_MATCHED_REQUESTS wait, and where nothing is ever cached."""

    @classmethod
    def why_not(cls, facts: PolicyFacts) -> list[str]:
        return []

    def order(self, waiting: Sequence[Request], now: float) -> Sequence[Request]:
        if len(waiting) < 2 or len(waiting) > MOST_MATCHED_REQUESTS or not self.cache.radix:
            return waiting
        return self.arrange(waiting, [self.cache.match(r.namespace, r.reusable) for r in waiting], now)

    @abstractmethod
    def arrange(self, waiting: Sequence[Request], matches: Sequence[Match], now: float) -> Sequence[Request]:
        """`waiting` in the order to try; `matches[i]` is what is cached of `waiting[i]`."""

    def uncached_tokens(self, request: Request, match: Match) -> int:
        """What the request still has to compute before its next token; at least 1."""
        return len(request.history) - len(match.pages) * self.cache.page_size


def sorted_by(waiting: Sequence[Request], keys: Sequence[float]) -> Sequence[Request]:
    """`waiting` by rising key, equal keys in order of arrival."""
    return [waiting[i] for i in sorted(range(len(waiting)), key=keys.__getitem__)]

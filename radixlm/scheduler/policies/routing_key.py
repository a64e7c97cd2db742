"""Requests whose routing key is running already go first, the key that most are running with before the others."""

from collections import Counter
from collections.abc import Sequence

from radixlm.scheduler.policies.base import PolicyFacts, QueuePolicy
from radixlm.scheduler.request import Request


class RoutingKey(QueuePolicy):
    """Of keys that equally many run with, the smaller first; then the requests whose key nobody runs with."""

    @classmethod
    def why_not(cls, facts: PolicyFacts) -> list[str]:
        return []

    def order(self, waiting: Sequence[Request], now: float) -> Sequence[Request]:
        running = Counter(request.routing_key for request in self.running() if request.routing_key)
        if not running:
            return waiting
        place = {key: (-count, key) for key, count in running.items()}
        return sorted(waiting, key=lambda request: place.get(request.routing_key, (0, "")))

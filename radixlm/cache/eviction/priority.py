"""Lowest priority first, of those the least recently used: a leaf has the priority of the most urgent user it had."""

from dataclasses import dataclass

from radixlm.cache.radix import Node


@dataclass(frozen=True)
class LeastUrgent:
    def __call__(self, leaf: Node) -> tuple[int, int]:
        return leaf.urgency, leaf.last_access

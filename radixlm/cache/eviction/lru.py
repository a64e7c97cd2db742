"""Least recently used first."""

from dataclasses import dataclass

from radixlm.cache.radix import Node


@dataclass(frozen=True)
class LeastRecentlyUsed:
    def __call__(self, leaf: Node) -> int:
        return leaf.last_access

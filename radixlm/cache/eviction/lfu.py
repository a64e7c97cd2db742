"""Least frequently used first, of those the least recently used."""

from dataclasses import dataclass

from radixlm.cache.radix import Node


@dataclass(frozen=True)
class LeastFrequentlyUsed:
    def __call__(self, leaf: Node) -> tuple[int, int]:
        return leaf.uses, leaf.last_access

"""Segmented LRU: what was used once goes before what was used again, so that a scan flushes no useful prefix."""

from dataclasses import dataclass

from radixlm.cache.radix import Node


@dataclass(frozen=True)
class SegmentedLru:
    """A leaf is protected from `protected_threshold` uses on; the first use is the one that computed it."""

    protected_threshold: int = 2

    def __call__(self, leaf: Node) -> tuple[bool, int]:
        return leaf.uses >= self.protected_threshold, leaf.last_access

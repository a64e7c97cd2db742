"""Most recently used first: for cyclic scans of more prefixes than fit, where LRU always drops the next one needed."""

from dataclasses import dataclass

from radixlm.cache.radix import Node


@dataclass(frozen=True)
class MostRecentlyUsed:
    """What somebody waits for does not count as used: it would be the first to go."""

    def __call__(self, leaf: Node) -> int:
        return -leaf.last_use

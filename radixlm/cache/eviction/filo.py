"""Last computed, first dropped: what came early stays."""

from dataclasses import dataclass

from radixlm.cache.radix import Node


@dataclass(frozen=True)
class FirstInLastOut:
    def __call__(self, leaf: Node) -> int:
        return -leaf.created

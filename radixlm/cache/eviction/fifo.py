"""First computed, first dropped, however often it was used since."""

from dataclasses import dataclass

from radixlm.cache.radix import Node


@dataclass(frozen=True)
class FirstInFirstOut:
    def __call__(self, leaf: Node) -> int:
        return leaf.created

"""Least recently used first."""

from radixlm.cache.radix import Node


def lru(leaf: Node) -> int:
    return leaf.last_access

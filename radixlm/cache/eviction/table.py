"""The eviction strategies, one row each: a function from a leaf to a sortable key, the smallest goes first."""

from collections.abc import Callable
from typing import Any

from radixlm.base.registry import Registry, Row
from radixlm.cache.radix import Node

STRATEGIES: Registry[Callable[[Node], Any]] = Registry(
    "eviction strategy",
    [
        Row("lru", "radixlm.cache.eviction.lru:lru"),
    ],
)

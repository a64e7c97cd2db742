"""The eviction strategies, one row each: made from options, a key of a leaf. The leaf with the smallest goes first."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from radixlm.base.errors import ConfigError
from radixlm.base.registry import Registry, Row
from radixlm.cache.radix import Node

Strategy = Callable[[Node], Any]

STRATEGIES: Registry[type] = Registry(
    "eviction strategy",
    [
        Row("lru", "radixlm.cache.eviction.lru:LeastRecentlyUsed"),
        Row("lfu", "radixlm.cache.eviction.lfu:LeastFrequentlyUsed"),
        Row("slru", "radixlm.cache.eviction.slru:SegmentedLru"),
        Row("tlru", "radixlm.cache.eviction.tlru:TailOptimizedLru"),
        Row("priority", "radixlm.cache.eviction.priority:LeastUrgent"),
        Row("fifo", "radixlm.cache.eviction.fifo:FirstInFirstOut"),
        Row("filo", "radixlm.cache.eviction.filo:FirstInLastOut"),
        Row("mru", "radixlm.cache.eviction.mru:MostRecentlyUsed"),
    ],
)

_OPTION = "--radix-eviction-policy-config"


def make_strategy(name: str, options: Mapping[str, int]) -> Strategy:
    """The strategy called `name`, whose fields are its options; ConfigError for one it does not have or a bad value."""
    kind = STRATEGIES.load(name)
    known = [item.name for item in dataclasses.fields(kind)]
    for option, value in options.items():
        if option not in known:
            raise ConfigError(f"{_OPTION}: {name} has no option {option!r}; it has {known or 'none'}")
        if not isinstance(value, int) or value < 1:
            raise ConfigError(f"{_OPTION}: option {option!r} of {name} must be a positive integer")
    try:
        strategy: Strategy = kind(**options)
    except ValueError as error:
        raise ConfigError(f"{_OPTION}: {name}: {error}") from None
    return strategy

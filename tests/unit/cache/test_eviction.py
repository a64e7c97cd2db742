"""Which cached prefix each eviction strategy drops first."""

import numpy as np
import pytest

from radixlm.base.errors import ConfigError
from radixlm.cache.eviction.table import STRATEGIES
from radixlm.cache.manager import CacheManager
from radixlm.config.groups import fields_by_name
from radixlm.protocol.messages import CacheNamespace

HERE = CacheNamespace()
PROMPTS = {name: np.arange(start, start + 4, dtype=np.int32) for start, name in enumerate("ABCD", 10)}


def use(cache: CacheManager, name: str, urgency: int = 0) -> None:
    ids = PROMPTS[name] * 10
    match = cache.match(HERE, ids)
    lease = cache.acquire(HERE, match, urgency)
    cache.secure(4 - len(match.pages))
    pages = np.concatenate((match.pages, cache.take(4 - len(match.pages))))
    cache.release(lease, ids, pages, -1)


def dropped(cache: CacheManager) -> str:
    """The prompts in the order in which they go, as room is asked for."""
    order, left = "", set(PROMPTS)
    while left:
        cache.secure(cache.free_pages + 1)
        gone = {name for name in left if not len(cache.match(HERE, PROMPTS[name] * 10).pages)}
        order += "".join(sorted(gone))
        left -= gone
    assert cache.problems() == []
    return order


@pytest.mark.parametrize(
    "eviction,order",
    [
        ("lru", "DCAB"),
        ("mru", "BACD"),
        ("fifo", "ABCD"),
        ("filo", "DCBA"),
        ("lfu", "DCBA"),  # D was used once, C and B twice, A three times; C before B
        ("slru", "DCAB"),  # only D is on probation
        ("priority", "DACB"),
    ],
)
def test_order(eviction: str, order: str) -> None:
    cache = CacheManager(32, 1, eviction=eviction)
    for name, urgency in (("A", 0), ("B", 7), ("C", 5), ("D", -1), ("C", 1), ("A", 0), ("A", 0), ("B", 0)):
        use(cache, name, urgency)
    assert dropped(cache) == order


def test_a_scan_does_not_flush_what_slru_protects() -> None:
    kept = {}
    for eviction in ("lru", "slru"):
        cache = CacheManager(16, 1, eviction=eviction)
        for name in "AA":
            use(cache, name)
        for start in range(100, 200, 10):  # prompts that nobody asks for again
            PROMPTS["scan"] = np.arange(start, start + 4, dtype=np.int32)
            use(cache, "scan")
        kept[eviction] = len(cache.match(HERE, PROMPTS["A"] * 10).pages)
        del PROMPTS["scan"]
    assert kept == {"lru": 0, "slru": 3}


def test_the_threshold_of_slru_is_an_option() -> None:
    orders = []
    for threshold in (2, 3):
        cache = CacheManager(32, 1, eviction="slru", eviction_options={"protected_threshold": threshold})
        for name in "AAABBCDD":
            use(cache, name)
        orders.append(dropped(cache))
    assert orders == ["CABD", "BCDA"]


def conversation(cache: CacheManager, number: int, *ends: int) -> None:
    """A conversation whose turns end after so many tokens."""
    ids = np.arange(ends[-1], dtype=np.int32) + 1000 * number
    for end in ends:
        match = cache.match(HERE, ids[:end])
        lease = cache.acquire(HERE, match)
        missing = end - len(match.pages)
        cache.secure(missing)
        cache.release(lease, ids[:end], np.concatenate((match.pages, cache.take(missing))), -1)


def cached(cache: CacheManager, number: int) -> int:
    return len(cache.match(HERE, np.arange(500, dtype=np.int32) + 1000 * number).pages)


def test_tlru_drops_ends_that_the_next_turn_can_afford() -> None:
    options = {"threshold": 30, "next_prompt_estimate": 10}
    cache = CacheManager(200, 1, eviction="tlru", eviction_options=options)
    conversation(cache, 1, 40, 50, 60)  # 60 + 10 - 30: only the first 40 have to stay
    conversation(cache, 2, 50, 55)  # the first 35
    conversation(cache, 3, 20)  # nothing
    cache.secure(cache.free_pages + 15)  # from the end of the first, which was used longest ago
    assert [cached(cache, number) for number in (1, 2, 3)] == [45, 55, 20]
    cache.secure(cache.free_pages + 10)
    assert [cached(cache, number) for number in (1, 2, 3)] == [40, 50, 20]
    cache.secure(cache.free_pages + 25)  # the third, and as nothing else may go, what was used longest ago
    assert [cached(cache, number) for number in (1, 2, 3)] == [35, 50, 0]
    assert cache.problems() == []


@pytest.mark.parametrize("eviction,order", [("lru", "DBCA"), ("mru", "DCBA"), ("fifo", "DABC")])
def test_what_somebody_waits_for_is_not_the_next_to_go(eviction: str, order: str) -> None:
    cache = CacheManager(32, 1, eviction=eviction)
    for name in "ABC":
        use(cache, name)
    cache.touch(cache.match(HERE, PROMPTS["A"] * 10))
    assert dropped(cache) == order  # D was never there


@pytest.mark.parametrize(
    "name,options",
    [
        ("lru", {"threshold": 2}), ("slru", {"size": 1}), ("slru", {"protected_threshold": 0}),
        ("tlru", {"threshold": 256}), ("tlru", {"next_prompt_estimate": 1024}),
    ],
)  # fmt: skip
def test_bad_options_are_refused(name: str, options: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=f"^--radix-eviction-policy-config: .*{name}"):
        CacheManager(8, 1, eviction=name, eviction_options=options)


def test_the_flag_offers_what_there_is() -> None:
    assert fields_by_name()["radix_eviction_policy"].flag.choices == tuple(STRATEGIES.names())

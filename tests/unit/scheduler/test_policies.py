"""The order that each queue policy makes of the same queue."""

import numpy as np
import pytest

from radixlm.base.errors import ConfigError
from radixlm.cache.manager import CacheManager
from radixlm.config.groups import ScheduleConfig, fields_by_name
from radixlm.protocol.messages import CacheNamespace, TextOptions
from radixlm.protocol.sampling import SamplingParams
from radixlm.scheduler.limits import SchedulerLimits
from radixlm.scheduler.policies.table import POLICIES
from radixlm.scheduler.request import Request
from radixlm.scheduler.scheduler import Scheduler

HERE = CacheNamespace()


def request(order: int, prompt: list[int], max_new: int = 10, since: float = 0.0) -> Request:
    ids, params = np.array(prompt, np.int32), SamplingParams(max_new_tokens=max_new)
    return Request(order, order, ids, len(ids), params, TextOptions(), False, HERE, max_new, (), False, None, since)


def remember(cache: CacheManager, prompt: list[int]) -> None:
    ids = np.array(prompt, np.int32)
    lease = cache.acquire(HERE, cache.match(HERE, ids))
    cache.secure(len(ids))
    pages = np.concatenate((cache.match(HERE, ids).pages, cache.take(len(ids) - lease.tree_pages)))
    cache.release(lease, ids, pages, -1)


def order(name: str, cache: CacheManager, waiting: list[Request], now: float = 100.0) -> list[int]:
    given = list(waiting)
    found = POLICIES.load(name)(cache, list).order(waiting, now)
    assert waiting == given and sorted(r.order for r in found) == [r.order for r in given]
    return [r.order for r in found]


@pytest.fixture
def cache() -> CacheManager:
    """Cached: 1 2 3 4 5 and, branching off after 1 2, 1 2 6 7; and 20 21 22."""
    cache = CacheManager(100, 1)
    for prompt in ([1, 2, 3, 4, 5], [1, 2, 6, 7], [20, 21, 22]):
        remember(cache, prompt)
    return cache


def test_first_come(cache: CacheManager) -> None:
    assert order("fcfs", cache, [request(1, [9]), request(2, [1, 2, 3, 9]), request(3, [8])]) == [1, 2, 3]


def test_longest_cached_prefix_first_and_arrival_decides_ties(cache: CacheManager) -> None:
    waiting = [request(1, [9, 9]), request(2, [1, 2, 9]), request(3, [1, 2, 3, 4, 9]), request(4, [1, 2, 8])]
    assert order("lpm", cache, waiting) == [3, 2, 4, 1]


@pytest.mark.parametrize("name", ["lpm", "hrrn", "shortest-prefill-first", "dfs-weight"])
def test_above_128_waiting_they_go_in_order_of_arrival(cache: CacheManager, name: str) -> None:
    waiting = [request(i, [9, 9, 9, i + 30], since=float(i)) for i in range(128)] + [request(200, [1, 2, 3, 4, 9])]
    assert order(name, cache, waiting) == [r.order for r in waiting]
    assert order(name, cache, waiting[1:])[0] == 200


def test_depth_first_keeps_branches_together_and_heavy_ones_first(cache: CacheManager) -> None:
    waiting = [
        request(1, [9]),
        request(2, [20, 21, 22, 9]),
        request(3, [1, 2, 6, 7, 9]),
        request(4, [1, 2, 9]),
        request(5, [1, 2, 3, 4, 5, 9]),
        request(6, [1, 2, 3, 4, 5, 8]),
        request(7, [20, 21, 22, 8]),
    ]
    # below 1 2: four requests, two of them on 3 4 5; on 20 21 22: two; the last one matches nothing
    assert order("dfs-weight", cache, waiting) == [5, 6, 3, 4, 2, 7, 1]


def test_response_ratio_prefers_short_work_until_long_work_has_waited(cache: CacheManager) -> None:
    long, short = request(1, [9] * 40, since=0.0), request(2, [9] * 4, since=99.0)
    assert order("hrrn", cache, [long, short], now=100.0) == [1, 2]  # 100 / 40 against 1 / 4
    assert order("hrrn", cache, [long, short], now=120.0) == [2, 1]  # 120 / 40 against 21 / 4
    cached = request(3, [1, 2, 3, 4, 5], since=119.0)  # one uncached token
    assert order("hrrn", cache, [request(1, [9] * 9, since=115.0), cached], now=120.0) == [3, 1]


def test_shortest_prefill_counts_what_is_not_cached(cache: CacheManager) -> None:
    waiting = [request(1, [9, 9, 9]), request(2, [1, 2, 3, 4, 5, 9]), request(3, [8, 8])]
    assert order("shortest-prefill-first", cache, waiting) == [2, 3, 1]


def test_longest_output_first(cache: CacheManager) -> None:
    waiting = [request(1, [9], 5), request(2, [9], 50), request(3, [9], 50), request(4, [9], 7)]
    assert order("lof", cache, waiting) == [2, 3, 4, 1]


def test_random_is_no_order_of_arrival_and_the_same_every_time(cache: CacheManager) -> None:
    waiting = [request(i, [9]) for i in range(1, 41)]
    first = order("random", cache, waiting)
    assert first == order("random", cache, waiting) and first != sorted(first)
    left = [r for r in waiting if r.order % 2]
    assert order("random", cache, left) == [number for number in first if number % 2]


def test_routing_keys_that_run_go_first(cache: CacheManager) -> None:
    def keyed(number: int, key: str) -> Request:
        made = request(number, [9])
        made.routing_key = key
        return made

    waiting = [keyed(1, ""), keyed(2, "a"), keyed(3, "c"), keyed(4, "b"), keyed(5, "d"), keyed(6, "a")]
    kind = POLICIES.load("routing-key")
    running = [keyed(10, "b"), keyed(11, "a"), keyed(12, "c"), keyed(13, "c"), keyed(14, "")]
    assert [r.order for r in kind(cache, lambda: running).order(waiting, 0.0)] == [3, 2, 6, 4, 1, 5]
    assert kind(cache, list).order(waiting, 0.0) == waiting


def test_without_a_tree_policies_of_prefixes_go_by_arrival_or_refuse() -> None:
    bare = CacheManager(8, 1, radix=False)
    waiting = [request(1, [9, 9]), request(2, [9])]
    for name in ("lpm", "dfs-weight", "hrrn"):
        assert order(name, bare, waiting) == [1, 2]
    with pytest.raises(ConfigError, match="--disable-radix-cache"):
        Scheduler(
            ScheduleConfig(schedule_policy="shortest-prefill-first"),
            bare,
            SchedulerLimits(8, 8, 1, 10),
            token_bytes=None,
        )


def test_the_flag_offers_what_there_is() -> None:
    assert fields_by_name()["schedule_policy"].flag.choices == tuple(POLICIES.names())

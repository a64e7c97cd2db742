"""The KV cache's rules: what matches, what is evicted, who keeps which page."""

import time

import numpy as np
import pytest

from radixlm.cache.manager import CacheManager, Lease
from radixlm.protocol.arrays import I32
from radixlm.protocol.messages import CacheNamespace

HERE = CacheNamespace()


def tokens(*values: int) -> I32:
    return np.array(values, np.int32)


def begin(cache: CacheManager, sequence: I32, namespace: CacheNamespace = HERE) -> tuple[Lease, I32]:
    match = cache.match(namespace, sequence)
    lease = cache.acquire(namespace, match)
    missing = -(-len(sequence) // cache.page_size) - len(match.pages)
    assert cache.secure(missing) == missing
    return lease, np.concatenate((match.pages, cache.take(missing)))


def remember(cache: CacheManager, sequence: I32, namespace: CacheNamespace = HERE) -> I32:
    lease, pages = begin(cache, sequence, namespace)
    cache.release(lease, sequence, pages, fence=-1)
    return pages


def hit(cache: CacheManager, sequence: I32, namespace: CacheNamespace = HERE) -> int:
    return len(cache.match(namespace, sequence).pages) * cache.page_size


def test_whole_pages_match_and_one_token_is_always_left() -> None:
    cache = CacheManager(20, 4)
    remember(cache, np.arange(14, dtype=np.int32))
    assert [hit(cache, np.arange(n, dtype=np.int32)) for n in (3, 4, 5, 8, 9, 12, 13, 14, 30)] == [
        0, 0, 4, 4, 8, 8, 12, 12, 12,
    ]  # fmt: skip
    assert cache.free_pages == 17 and cache.evictable_pages == 3


def test_a_match_in_the_middle_of_a_node_splits_it() -> None:
    cache = CacheManager(20, 2)
    pages = remember(cache, tokens(1, 2, 3, 4, 5, 6))
    lease, mine = begin(cache, tokens(1, 2, 3, 4, 9, 9))
    assert mine[:2].tolist() == pages[:2].tolist() and lease.tree_pages == 2
    assert cache.evictable_pages == 1  # only the end of the first sequence
    cache.release(lease, tokens(1, 2, 3, 4, 9, 9), mine, fence=-1)
    assert cache.problems() == [] and cache.evictable_pages == 4


def test_kinds_of_namespace_never_alias() -> None:
    cache = CacheManager(50, 1)
    sequence = tokens(1, 2, 3, 4)
    spaces = [HERE, CacheNamespace(lora="a"), CacheNamespace(cache_salt="a"), CacheNamespace(extra_key="a")]
    for number, space in enumerate(spaces):
        assert [hit(cache, sequence, s) for s in spaces] == [3] * number + [0] * (4 - number)
        remember(cache, sequence, space)


def test_a_new_weight_version_hides_old_kv_and_ends_insertion() -> None:
    cache = CacheManager(50, 1)
    remember(cache, tokens(1, 2, 3))
    lease, pages = begin(cache, tokens(7, 8, 9))
    cache.weight_version = "second"
    assert hit(cache, tokens(1, 2, 3)) == 0
    cache.release(lease, tokens(7, 8, 9), pages, fence=-1)  # computed by both versions: not kept
    assert hit(cache, tokens(7, 8, 9)) == 0 and cache.private_pages == 0


def test_the_least_recently_used_leaf_goes_first_and_from_its_end() -> None:
    cache = CacheManager(12, 1)
    for start in (10, 20, 30):
        remember(cache, np.arange(start, start + 4, dtype=np.int32))
    lease, pages = begin(cache, tokens(10, 11, 12, 13, 14)[:4])  # uses the first again (3 hits and one page)
    cache.abandon(lease, pages, fence=-1)
    assert cache.secure(3) == 3
    assert [hit(cache, np.arange(s, s + 5, dtype=np.int32)) for s in (10, 20, 30)] == [3, 2, 4]
    assert cache.secure(6) == 6
    assert [hit(cache, np.arange(s, s + 5, dtype=np.int32)) for s in (10, 20, 30)] == [3, 0, 3]
    assert cache.evicted_tokens == 6


def test_locked_prefixes_are_not_evicted() -> None:
    cache = CacheManager(8, 1)
    remember(cache, tokens(1, 2, 3, 4))
    lease, pages = begin(cache, tokens(1, 2, 3, 4))
    assert cache.secure(8) == 4  # three free pages and the fourth token's
    assert hit(cache, tokens(1, 2, 3, 4, 5)) == 3
    cache.abandon(lease, pages, fence=-1)
    assert cache.secure(8) == 8


def test_the_second_to_compute_a_prefix_moves_to_the_first_ones_pages() -> None:
    cache = CacheManager(20, 2)
    one, one_pages = begin(cache, tokens(1, 2, 3, 4, 5))
    two, two_pages = begin(cache, tokens(1, 2, 3, 4, 6))
    assert not len(cache.publish(one, tokens(1, 2, 3, 4), one_pages, fence=0))
    kept = cache.publish(two, tokens(1, 2, 3, 4), two_pages, fence=0)
    assert kept.tolist() == one_pages[:2].tolist()
    assert cache.obtainable_pages == 20 - 2 - 1 - 1 and cache.free_pages == 14  # two duplicates behind the fence
    cache.retire(0)
    assert cache.free_pages == 16
    two_pages[:2] = kept
    cache.abandon(two, two_pages, fence=-1)
    cache.abandon(one, one_pages, fence=-1)
    assert cache.evictable_pages == 2 and cache.free_pages == 18 and cache.problems() == []


def test_a_lease_is_ended_once() -> None:
    cache = CacheManager(8, 1)
    lease, pages = begin(cache, tokens(1, 2, 3))
    cache.release(lease, tokens(1, 2, 3), pages, fence=-1)
    for again in (
        lambda: cache.release(lease, tokens(1, 2, 3), pages, -1),
        lambda: cache.abandon(lease, pages, -1),
        lambda: cache.publish(lease, tokens(1, 2, 3), pages, -1),
    ):
        with pytest.raises(ValueError, match="ended once"):
            again()
    assert cache.problems() == []


def test_flush_only_when_idle() -> None:
    cache = CacheManager(8, 1)
    remember(cache, tokens(9, 8))
    lease, pages = begin(cache, tokens(1, 2, 3))
    assert not cache.flush()
    cache.release(lease, tokens(1, 2, 3), pages, fence=4)
    assert not cache.flush()  # step 4 may still read it
    cache.retire(4)
    assert cache.flush() and cache.free_pages == 8
    assert hit(cache, tokens(9, 8)) == 0


def test_without_radix_nothing_is_kept() -> None:
    cache = CacheManager(8, 1, radix=False)
    remember(cache, tokens(1, 2, 3))
    assert hit(cache, tokens(1, 2, 3)) == 0 and cache.free_pages == 8


def best_ms(function, repeats: int = 5) -> float:  # type: ignore[no-untyped-def]
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times) * 1e3


@pytest.mark.parametrize("page_size", [1, 16])
def test_costs_in_a_tree_of_a_million_tokens(page_size: int) -> None:
    """Best of several, with a margin for busy machines: the aims are 1 ms, 2 ms and 5 ms."""
    cache = CacheManager(1_300_000 // page_size, page_size)
    rng = np.random.default_rng(0)
    sequences = [rng.integers(0, 150_000, 100_001).astype(np.int32) for _ in range(11)]
    for sequence in sequences[:10]:
        lease, pages = begin(cache, sequence)
        for end in range(512, 100_001, 512):  # as chunks would
            cache.publish(lease, sequence[:end], pages, -1)
        cache.release(lease, sequence[:100_000], pages, fence=-1)
    assert hit(cache, sequences[3]) == 100_000
    assert best_ms(lambda: cache.match(HERE, sequences[3])) < 3
    lease, pages = begin(cache, sequences[10])
    assert best_ms(lambda: cache.publish(lease, sequences[10][:100_000], pages, -1), repeats=1) < 20
    free = cache.free_pages
    assert best_ms(lambda: cache.secure(cache.free_pages + 10_000 // page_size)) < 15
    assert cache.free_pages == free + 5 * (10_000 // page_size)

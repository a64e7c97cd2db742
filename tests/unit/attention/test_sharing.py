"""Which rows share keys, against a search by brute force."""

import numpy as np
import pytest

from radixlm.attention.base import HostPages
from radixlm.attention.sharing import SharedPrefix, SharingFinder, shared_prefixes

BLOCK = 8


def found(
    paths: list[list[int]], counts: list[int] | None = None, page_size: int = 1, least_saved: int = 1
) -> list[SharedPrefix]:
    """`paths`: each row's pages; it has seen all keys on them."""
    table = np.zeros((len(paths), max(map(len, paths)) + 1), np.int32)
    for row, pages in enumerate(paths):
        table[row, : len(pages)] = pages
    starts = np.array([len(pages) * page_size for pages in paths], np.int32)
    slots = np.arange(len(paths), dtype=np.int32)
    each = np.array(counts or [1] * len(paths), np.int32)
    return shared_prefixes(slots, starts, each, table, page_size, BLOCK, least_saved)


def test_it_is_looked_for_again_when_the_rows_are_others() -> None:
    table = np.zeros((3, 40), np.int32)
    table[:, :16] = np.arange(1, 17)
    pages, finder = HostPages(table, np.zeros(3, np.int64)), SharingFinder(1, BLOCK, 1)
    slots, starts = np.arange(3, dtype=np.int32), np.full(3, 20, np.int32)
    first = finder.find(slots, starts, pages)
    assert first.groups == [SharedPrefix((0, 1, 2), 16)]
    assert [first.saved_keys(height) for height in (8, 2, 1)] == [32, 16, 0]
    table[1, 15] = 99  # unseen as long as the rows only grow
    assert finder.find(slots, starts + 1, pages) is first
    pages.owners[1] += 1
    assert finder.find(slots, starts + 2, pages).groups == [SharedPrefix((0, 2), 16)]
    assert finder.find(slots[:2], starts[:2], pages).groups == [SharedPrefix((0, 1), 8)]
    pages.owners[1] += 1
    table[1, 15] = 16
    assert finder.find(slots[:2], starts[:2], pages).groups == [SharedPrefix((0, 1), 16)]
    table[1, 8:] = 0
    shorter = finder.find(slots[:2], np.array([20, 10], np.int32), pages)
    assert shorter.groups == [SharedPrefix((0, 1), 8)]


def run(first: int, pages: int) -> list[int]:
    return list(range(first, first + pages))


def test_what_is_shared_is_counted_in_whole_blocks() -> None:
    prefix = run(100, 21)
    assert found([prefix + run(200, 9), prefix + run(300, 1)]) == [SharedPrefix((0, 1), 16)]
    assert found([prefix[:7] + run(200, 9), prefix[:7] + run(300, 9)]) == []
    assert found([[*run(100, 4), 1], [*run(100, 4), 2]], page_size=4) == [SharedPrefix((0, 1), 16)]


def test_rows_of_several_tokens_and_single_rows_are_left_out() -> None:
    prefix = run(100, 16)
    assert found([prefix, prefix, prefix, run(500, 40)], counts=[1, 3, 1, 1]) == [SharedPrefix((0, 2), 16)]
    assert found([prefix, run(300, 16)]) == [] and found([prefix]) == [] and found([[1], [1]]) == []


def test_groups_that_save_too_little_are_left_out() -> None:
    pair, three = run(100, 24), run(300, 16)
    paths = [pair + run(200, 3), pair + run(230, 4), *(three + run(400 + 20 * i, 3) for i in range(3))]
    both = [SharedPrefix((0, 1), 24), SharedPrefix((2, 3, 4), 16)]
    assert [found(paths, least_saved=least) for least in (1, 24, 25, 32, 33)] == [both, both, both[1:], both[1:], []]


def test_a_short_common_beginning_does_not_hide_longer_ones() -> None:
    head, one, other = run(100, 8), run(200, 40), run(300, 40)
    groups = found([head + one, head + other, head + one, head + other, head + run(400, 30)])
    assert sorted((group.rows, group.keys) for group in groups) == [((0, 2), 48), ((1, 3), 48)]


def test_equal_ends_of_blocks_are_not_enough() -> None:
    assert found([run(100, 16), [*run(100, 3), 9, *run(104, 12)]]) == []


@pytest.mark.parametrize("seed", range(20))
def test_groups_share_what_they_say(seed: int) -> None:
    rng = np.random.default_rng(seed)
    trunks = [rng.integers(1, 10**6, 60).tolist() for _ in range(3)]
    paths = []
    for _ in range(24):
        cut = int(rng.integers(0, 60))
        paths.append(trunks[int(rng.integers(3))][:cut] + rng.integers(1, 10**6, int(rng.integers(1, 20))).tolist())
    groups = found(paths)
    assert groups
    seen = [row for group in groups for row in group.rows]
    assert len(seen) == len(set(seen))
    for group in groups:
        assert len(group.rows) > 1 and group.keys % BLOCK == 0 and group.keys > 0
        assert len({tuple(paths[row][: group.keys]) for row in group.rows}) == 1

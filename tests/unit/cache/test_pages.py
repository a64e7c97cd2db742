"""The page owner: every transition is checked, and pages are conserved."""

import numpy as np
import pytest

from radixlm.cache.pages import PRIVATE, TREE, PageError, PageOwner


def test_pages_are_numbered_from_one_and_handed_out_once() -> None:
    owner = PageOwner(5)
    taken = [*owner.take(2).tolist(), *owner.take(3).tolist()]
    assert sorted(taken) == [1, 2, 3, 4, 5]
    with pytest.raises(PageError, match="1 pages asked for, 0 free"):
        owner.take(1)
    assert owner.counts == [0, 5, 0, 0] and owner.conserved


def test_a_fence_keeps_pages_until_its_step_is_committed() -> None:
    owner = PageOwner(4)
    pages = owner.take(3)
    owner.retire(6)
    owner.free(pages[:1], PRIVATE, fence=6)
    owner.free(pages[1:], PRIVATE, fence=8)
    assert owner.counts == [2, 0, 0, 2]
    owner.retire(7)
    assert owner.free_pages == 2
    owner.retire(8)
    assert owner.free_pages == 4 and owner.conserved


def test_freed_pages_are_reused_first() -> None:
    owner = PageOwner(100)
    pages = owner.take(4)
    owner.free(pages, PRIVATE, fence=-1)
    assert set(owner.take(4).tolist()) == set(pages.tolist())


@pytest.mark.parametrize("source", [PRIVATE, TREE])
def test_illegal_transitions_change_nothing(source: int) -> None:
    owner = PageOwner(6)
    private, tree = owner.take(2), owner.take(2)
    owner.adopt(tree)
    mine, other = (private, tree) if source == PRIVATE else (tree, private)
    for wrong in (
        other,
        np.array([6], np.int32),
        np.array([0], np.int32),
        np.array([7], np.int32),
        np.array([-1], np.int32),
        np.concatenate((mine, mine[:1])),
        np.concatenate((mine, other)),
    ):
        with pytest.raises(PageError):
            owner.free(wrong, source, fence=-1)
    with pytest.raises(PageError):
        owner.adopt(tree)
    assert owner.counts == [2, 2, 2, 0]
    owner.free(mine, source, fence=-1)
    with pytest.raises(PageError):
        owner.free(mine, source, fence=-1)
    assert owner.free_pages == 4 and owner.conserved

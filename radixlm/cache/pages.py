"""The one owner of KV page numbers: which state each page is in. Knows no token, no request, no tree.

Pages are numbered 1..num_pages; page 0 is the null page and is never handed out. Every page is in one state:
free (nobody's), private (one lease's), tree (the prefix tree's), or fenced (given back, but a step that has not been
committed may still touch it).
"""

import numpy as np
from numpy.typing import NDArray

from radixlm.protocol.arrays import I32, empty_i32

FREE, PRIVATE, TREE, FENCED = range(4)
_NAMES = ("free", "private", "tree", "fenced")


class PageError(Exception):
    """A page was asked to make a transition that its state does not allow; nothing was changed."""


class PageOwner:
    """States of `num_pages` pages; all transitions are checked, and `free` is the one way back.

    Attributes:
        counts: how many pages are in each state, indexed by FREE, PRIVATE, TREE, FENCED.
        committed: the last step known to be complete; a fence at or below it is open.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.counts = [num_pages, 0, 0, 0]
        self.committed = -1
        self._state: NDArray[np.uint8] = np.zeros(num_pages + 1, np.uint8)
        self._stack: I32 = np.arange(num_pages, 0, -1, dtype=np.int32)  # last in, first out: touched memory is reused
        self._mark: I32 = np.empty(num_pages + 1, np.int32)
        self._fences: dict[int, list[I32]] = {}

    @property
    def free_pages(self) -> int:
        return self.counts[FREE]

    @property
    def conserved(self) -> bool:
        """free + private + tree + fenced == total, and none is negative."""
        return sum(self.counts) == self.num_pages and min(self.counts) >= 0

    def take(self, pages: int) -> I32:
        """Hand out `pages` free pages (int32) as private; PageError when there are too few."""
        left = self.counts[FREE] - pages
        if left < 0 or pages < 0:
            raise PageError(f"{pages} pages asked for, {self.counts[FREE]} free")
        taken = self._stack[left : left + pages][::-1].copy()
        self._move(taken, FREE, PRIVATE)
        return taken

    def adopt(self, pages: I32) -> None:
        """Private pages become the tree's."""
        self._move(pages, PRIVATE, TREE)

    def free(self, pages: I32, source: int, fence: int) -> None:
        """Give back pages that are in state `source` (PRIVATE or TREE); usable again once step `fence` is committed."""
        if source not in (PRIVATE, TREE):
            raise PageError(f"cannot free {_NAMES[source]} pages")
        if fence > self.committed:
            self._move(pages, source, FENCED)
            self._fences.setdefault(fence, []).append(pages.copy())
        else:
            self._push(pages, source)

    def retire(self, step: int) -> None:
        """Step `step` and all before it are complete: the pages fenced by them become free."""
        self.committed = max(self.committed, step)
        for fence in [f for f in self._fences if f <= self.committed]:
            for pages in self._fences.pop(fence):
                self._push(pages, FENCED)

    def states(self) -> NDArray[np.uint8]:
        """A copy of the state of every page, index 0 (the null page) included."""
        return self._state.copy()

    def _push(self, pages: I32, source: int) -> None:
        top = self.counts[FREE]
        self._move(pages, source, FREE)
        self._stack[top : top + len(pages)] = pages

    def _move(self, pages: I32, source: int, target: int) -> None:
        """All of `pages` from one state to another, or PageError. Linear; a page named twice is an error too."""
        count = len(pages)
        if not count:
            return
        if pages.min() < 1 or pages.max() > self.num_pages:
            raise PageError("page number out of range")
        where = _where(pages)
        states = self._state[where]
        if (states != source).any():
            wrong = int(pages[states != source][0])
            raise PageError(f"page {wrong} is {_NAMES[self._state[wrong]]}, not {_NAMES[source]}")
        if not isinstance(where, slice):  # a run names none twice
            rank = np.arange(count, dtype=np.int32)
            self._mark[where] = rank
            if (self._mark[where] != rank).any():
                raise PageError("a page is named twice")
        self._state[where] = target
        self.counts[source] -= count
        self.counts[target] += count


def _where(pages: I32) -> slice | NDArray[np.intp]:
    """The same pages as an index that numpy takes fastest: a slice where they count up by one, as in a fresh pool."""
    first, last = int(pages[0]), int(pages[-1])
    if last - first == len(pages) - 1 and bool((np.diff(pages) == 1).all()):
        return slice(first, last + 1)
    return pages.astype(np.intp)


def concat_pages(parts: list[I32]) -> I32:
    """The arrays one after another as one int32 array; empty for none."""
    if not parts:
        return empty_i32()
    return parts[0].copy() if len(parts) == 1 else np.concatenate(parts)

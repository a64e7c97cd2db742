"""Which rows of a step decode after the same keys, read off the page table. Knows arrays only."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from radixlm.attention.base import HostPages
from radixlm.protocol.arrays import I32, I64


@dataclass(frozen=True)
class SharedPrefix:
    """Rows of a step, two or more, whose first `keys` keys lie on the same pages."""

    rows: tuple[int, ...]
    keys: int


@dataclass(frozen=True)
class Sharing:
    """What rows that decode share; true of them while they only grow and belong to the same requests.

    slots, starts: int32 [R]; owners: int64 [R].
    """

    slots: I32
    starts: I32
    owners: I64
    groups: list[SharedPrefix]

    def saved_keys(self, height: int) -> int:
        """How many keys less are read when `height` rows of a group read each together."""
        return sum((len(group.rows) - -(-len(group.rows) // height)) * group.keys for group in self.groups)

    def holds(self, slots: I32, starts: I32, owners: I64) -> bool:
        """Whether these are the same rows, none of them shorter."""
        same = np.array_equal(slots, self.slots) and np.array_equal(owners, self.owners)
        return same and bool((starts >= self.starts).all())


class SharingFinder:
    """Looks for what a step's decode rows share, and only where they are not those of the step before."""

    def __init__(self, page_size: int, block: int, least_saved: int) -> None:
        """As `shared_prefixes` takes them."""
        self._page_size = page_size
        self._block = block
        self._least_saved = least_saved
        self._last: Sharing | None = None

    def find(self, slots: I32, starts: I32, pages: HostPages) -> Sharing:
        """What the rows (int32 [R] each) share; the same object as long as it is true."""
        owners = pages.owners[slots]
        if self._last is None or not self._last.holds(slots, starts, owners):
            counts = np.ones(len(slots), np.int32)
            rows = (slots, starts, counts)
            groups = shared_prefixes(*rows, pages.table, self._page_size, self._block, self._least_saved)
            self._last = Sharing(slots.copy(), starts.copy(), owners, groups)
        return self._last


def shared_prefixes(
    slots: I32, starts: I32, counts: I32, table: I32, page_size: int, block: int, least_saved: int = 1
) -> list[SharedPrefix]:
    """The groups of rows of one token each that share whole blocks of `block` keys; no row is in two.

    slots, starts, counts: int32 [R]; table: int32 [slots, pages]. A row joins those before it unless that costs them
    half of what they share (cascade attention: arXiv 2402.05099, arXiv 2501.01005). A group saves `least_saved` reads
    of a key at least, which is one for each row but the first.
    """
    rows = np.flatnonzero((counts == 1) & (starts >= block))
    if len(rows) < 2:
        return []
    first_pages = table[slots[rows], (block - 1) // page_size]
    _, kind, alike = np.unique(first_pages, return_inverse=True, return_counts=True)
    longest = np.zeros(len(alike), np.int64)
    np.maximum.at(longest, kind, starts[rows])
    rows = rows[((alike - 1) * longest >= least_saved)[kind]]
    if not len(rows):
        return []
    # Each row's page at the end of each of its blocks, and then a number that no other row has.
    blocks = starts[rows] // block
    ends = (np.arange(1, blocks.max() + 1) * block - 1) // page_size
    own = -1 - rows[:, None]
    paths = np.hstack((np.where(np.arange(len(ends)) < blocks[:, None], table[slots[rows, None], ends], own), own))
    sort = np.lexsort(paths.T[::-1])
    rows, paths = rows[sort], paths[sort]
    common = np.append((paths[1:] != paths[:-1]).argmax(1), 0)  # blocks that a row shares with the next
    groups, start, shared = [], 0, len(ends)
    for i in range(len(rows)):
        least = min(shared, int(common[i]))
        if least > 0 and (i == start or 2 * least > shared):
            shared = least
            continue
        if i > start and (i - start) * shared * block >= least_saved:
            groups.append(SharedPrefix(tuple(sorted(rows[start : i + 1].tolist())), shared * block))
        start, shared = i + 1, len(ends)
    return [group for group in groups if _same_pages(table[:, : group.keys // page_size][slots[list(group.rows)]])]


def _same_pages(pages: npt.NDArray[np.int32]) -> bool:
    """Whether all rows of [rows, pages] are the same: the ends of blocks are not proof enough."""
    return bool((pages == pages[0]).all())

"""The KV cache as the scheduler sees it: match, lease, grow, publish, release. Ties the page owner to the prefix tree.

Knows no request and no step beyond its number. A lease's pages are, in order, the tree's pages of its cached prefix
(`Lease.tree_pages` of them, locked) and then private ones; the caller keeps the array itself, in its page table.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from radixlm.cache.eviction.table import make_strategy
from radixlm.cache.feed import CacheFeed, NoFeed
from radixlm.cache.pages import FENCED, PRIVATE, TREE, PageOwner
from radixlm.cache.radix import Match, Node, RadixTree
from radixlm.cache.summary import hottest
from radixlm.protocol.arrays import I32, empty_i32
from radixlm.protocol.control import TreeNode
from radixlm.protocol.messages import CacheNamespace


class CacheSpace(NamedTuple):
    """Within one space equal tokens have equal KV: a request's namespace, and the weights that computed it."""

    namespace: CacheNamespace
    weight_version: str


@dataclass
class Lease:
    """The right to use pages, from `acquire` to `release` or `abandon`. Fields are written by the manager only."""

    space: CacheSpace
    node: Node
    tree_pages: int
    urgency: int
    open: bool = True


class CacheManager:
    """All KV pages of one pool of `num_pages` pages of `page_size` tokens.

    With `radix` False nothing is ever shared or kept. A page that is given back by `release`, `abandon` or eviction is
    handed out again only after the step that last used it has been committed (`retire`).

    Attributes:
        evicted_tokens: cached tokens dropped to make room since start.
        open_leases: how many leases are open.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        *,
        radix: bool = True,
        eviction: str = "lru",
        eviction_options: Mapping[str, int] | None = None,
        feed: CacheFeed | None = None,
    ) -> None:
        """ConfigError for an eviction strategy that does not exist or does not have these options."""
        self.num_pages = num_pages
        self.page_size = page_size
        self.radix = radix
        self.eviction = eviction
        self.eviction_options = dict(eviction_options or {})
        self.weight_version = "default"
        self.evicted_tokens = 0
        self.open_leases = 0
        self._owner = PageOwner(num_pages)
        self._tree = RadixTree(page_size, make_strategy(eviction, self.eviction_options))
        self._feed = feed or NoFeed()
        self._nothing = Match(self._tree.root, 0, empty_i32(), 0)
        self._tick = 0

    # ---- amounts ------------------------------------------------------------------------------------------------

    @property
    def free_pages(self) -> int:
        return self._owner.free_pages

    @property
    def evictable_pages(self) -> int:
        """Cached pages that no lease uses. Some may be fenced by steps in flight."""
        return self._tree.evictable_pages

    @property
    def obtainable_pages(self) -> int:
        """What could be handed out once every step in flight is committed: free, evictable and fenced pages."""
        return self._owner.free_pages + self._tree.evictable_pages + self._owner.counts[FENCED]

    @property
    def private_pages(self) -> int:
        return self._owner.counts[PRIVATE]

    @property
    def total_tokens(self) -> int:
        return self.num_pages * self.page_size

    @property
    def used_tokens(self) -> int:
        """Tokens of pages that are neither free nor evictable."""
        return (self.num_pages - self._owner.free_pages - self._tree.evictable_pages) * self.page_size

    @property
    def conserved(self) -> bool:
        """Every page is in exactly one state, and the tree holds as many as it owns."""
        return self._owner.conserved and self._owner.counts[TREE] == self._tree.total_pages

    # ---- leases -------------------------------------------------------------------------------------------------

    def match(self, namespace: CacheNamespace, tokens: I32) -> Match:
        """The cached prefix of a prompt: whole pages, and at most len(tokens) - 1 tokens, so one is always computed."""
        if not self.radix:
            return self._nothing
        return self._tree.match(self._space(namespace), tokens[:-1])

    def touch(self, match: Match) -> None:
        """What was matched is about to be used: it counts as used now when room has to be made."""
        self._tree.touch(match.node, self._next_tick())

    def acquire(self, namespace: CacheNamespace, match: Match, urgency: int = 0) -> Lease:
        """A lease on a match made just before; its first pages are `match.pages`. More urgent is larger."""
        self.open_leases += 1
        node = self._tree.hold(match, self._next_tick(), urgency)
        return Lease(self._space(namespace), node, len(match.pages), urgency)

    def secure(self, pages: int) -> int:
        """Evict until `pages` pages are free; returns how many of them are (fewer when short of memory now)."""
        missing = pages - self._owner.free_pages
        if missing > 0:
            evicted = self._tree.evict(missing, self._owner.committed)
            self.evicted_tokens += len(evicted) * self.page_size
            self._owner.free(evicted, TREE, self._owner.committed)
            self._feed.removed(evicted)
        return min(pages, self._owner.free_pages)

    def take(self, pages: int) -> I32:
        """Free pages for leases to grow by (int32); at most what `secure` promised, else PageError."""
        return self._owner.take(pages)

    def publish(self, lease: Lease, tokens: I32, pages: I32, fence: int) -> I32:
        """Put a lease's full pages into the tree, so that others can use them, and keep a lock on them.

        `tokens` are the sequence's tokens whose KV a committed step has written, `pages` all the lease's pages so far.
        Where the tree already has a page for the same prefix, the lease moves to it and gives its own back: the
        returned int32 pages replace the lease's own from index `lease.tree_pages` (before the call) on. `fence` is the
        last step planned with the lease's present pages.
        """
        _require_open(lease)
        first, page = lease.tree_pages, self.page_size
        full = self._full_pages(lease, tokens)
        if full <= first:
            return empty_i32()
        own, tick = pages[first:full], self._next_tick()
        end, kept = self._tree.extend(lease.node, lease.space, tokens[first * page : full * page], own, tick)
        new = own[len(kept) :]
        self._owner.free(own[: len(kept)], PRIVATE, fence)
        self._owner.adopt(new)
        if len(new):
            parent = int(kept[-1]) if len(kept) else int(pages[first - 1]) if first else 0
            self._feed.stored(*lease.space, parent, tokens[(full - len(new)) * page : full * page], new)
        self._tree.lock(end, lease.node, tick, lease.urgency)
        lease.node = end
        lease.tree_pages = full
        return kept

    def release(self, lease: Lease, tokens: I32, pages: I32, fence: int) -> None:
        """End a lease whose KV is good: the full pages of `tokens` stay cached (as in `publish`), the rest is freed.

        ValueError when the lease was ended before.
        """
        self.publish(lease, tokens, pages, fence)
        self.abandon(lease, pages, fence)

    def abandon(self, lease: Lease, pages: I32, fence: int) -> None:
        """End a lease without caching anything more; what the tree already has stays there.

        `pages` are all its pages, `fence` the last step planned with it. ValueError when it was ended before.
        """
        _require_open(lease)
        lease.open = False
        self.open_leases -= 1
        self._tree.unlock(lease.node, fence, self._next_tick())
        self._owner.free(pages[lease.tree_pages :], PRIVATE, fence)

    def freed_by_ending(self, leases: Iterable[Lease], match: Match) -> Iterator[int]:
        """How many more of the tree's pages would be evictable with each further lease ended; changes nothing.

        Those on the path of `match` are left out: whoever holds it keeps them.
        """
        kept = set(self._tree.path(match.node))
        ended: dict[Node, int] = {}
        for lease in leases:
            freed = 0
            for node in self._tree.path(lease.node):
                ended[node] = ended.get(node, 0) + 1
                if ended[node] == node.locks and node not in kept:
                    freed += len(node.pages)
            yield freed

    def retire(self, step: int) -> None:
        """Step `step` is committed: what it was the last to use can be handed out again."""
        self._owner.retire(step)

    def flush(self) -> bool:
        """Forget all cached prefixes; False, and nothing done, while a lease is open or a fence closed."""
        if (
            self.open_leases
            or self._owner.counts[FENCED]
            or any(n.fence > self._owner.committed for n in self._tree.walk())
        ):
            return False
        self._owner.free(self._tree.clear(), TREE, self._owner.committed)
        self._feed.cleared()
        return True

    @property
    def tree_nodes(self) -> int:
        return self._tree.nodes

    @property
    def tree_pages(self) -> int:
        return self._tree.total_pages

    def hottest(self, most: int, head_tokens: int) -> list[TreeNode]:
        """The part of the tree that is used most, in bounded time; see cache/summary.py."""
        return hottest(self._tree, self._tick, most, head_tokens)

    def problems(self) -> list[str]:
        """What is wrong with the books, found by walking everything; empty when nothing is. For tests and repair."""
        counts = f"pages {self._owner.counts} of {self.num_pages}, tree {self._tree.total_pages}"
        found = [] if self.conserved else [counts]
        nodes = self._tree.walk()
        held = np.sort(np.concatenate([n.pages for n in nodes])) if nodes else empty_i32()
        if not np.array_equal(held, np.flatnonzero(self._owner.states()[1:] == TREE) + 1):
            found.append("pages in the tree are not those the owner knows as the tree's")
        if sum(len(n.pages) for n in nodes if not n.locks) != self._tree.evictable_pages:
            found.append("evictable pages are miscounted")
        for node in nodes:
            if sum(child.locks for child in node.children.values()) > node.locks:
                found.append("a node is locked less than its children")
            if len(node.tokens) != len(node.pages) * self.page_size * 4 or not len(node.pages):
                found.append("a node's tokens and pages differ in length")
        return found

    # ---- inside -------------------------------------------------------------------------------------------------

    def _space(self, namespace: CacheNamespace) -> CacheSpace:
        return CacheSpace(namespace, self.weight_version)

    def _next_tick(self) -> int:
        self._tick += 1
        return self._tick

    def _full_pages(self, lease: Lease, tokens: I32) -> int:
        """How many leading pages may be in the tree; KV that mixes two weight versions never may."""
        if not self.radix or lease.space.weight_version != self.weight_version:
            return lease.tree_pages
        return len(tokens) // self.page_size


def _require_open(lease: Lease) -> None:
    if not lease.open:
        raise ValueError("a lease is ended once")

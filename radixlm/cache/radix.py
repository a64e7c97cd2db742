"""The radix tree of cached prefixes: from page-aligned tokens to KV pages. Knows no request, no pool and no clock.

Locks count the leases that use a node; a locked node's ancestors are locked too. Recency is a counter handed in.
Radix caching of KV: arXiv 2312.07104.
"""

import heapq
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from radixlm.cache.pages import concat_pages
from radixlm.protocol.arrays import I32, empty_i32

LEAST_URGENT = -(1 << 63)


class Node:
    """A run of whole pages after its parent's.

    Attributes:
        tokens: the raw bytes of int32 [pages * page_size]: bytes compare at memory speed and can be keys.
        pages: int32 page numbers. edge: this node's key in `parent.children`.
        locks: leases through this node. uses: leases that ever went through it. urgency: the highest of theirs.
        created, last_use, last_access: the ticks it was made, latest used, and latest used or wanted at.
        fence: the last step that may read its pages.
        start_tokens: how many tokens lie before it. reach_tokens: the length of the longest sequence through it that
            was cached, kept when the end of that sequence is dropped.
        stamp: of its valid entry in the eviction heap; a removed node has -1.
    """

    __slots__ = (
        "children",
        "created",
        "edge",
        "fence",
        "last_access",
        "last_use",
        "locks",
        "pages",
        "parent",
        "reach_tokens",
        "stamp",
        "start_tokens",
        "tokens",
        "urgency",
        "uses",
    )

    def __init__(self, parent: "Node | None", edge: Hashable, tokens: bytes, pages: I32, tick: int) -> None:
        self.parent = parent
        self.edge = edge
        self.tokens = tokens
        self.pages = pages
        self.children: dict[Hashable, Node] = {}
        self.start_tokens: int = parent.start_tokens + len(parent.tokens) // 4 if parent is not None else 0
        self.reach_tokens = self.start_tokens + len(tokens) // 4
        self.locks = self.uses = 0
        self.urgency = LEAST_URGENT
        self.created = self.last_use = self.last_access = tick
        self.fence = -1
        self.stamp = 0


@dataclass(frozen=True)
class Match:
    """The longest cached prefix of some tokens; valid until the tree next changes.

    node: the deepest node reached. partial_pages: how many of its pages match. pages: the int32 pages of the whole
    prefix. evictable_pages: how many of those are unlocked now, and stop being evictable once the match is held.
    """

    node: Node
    partial_pages: int
    pages: I32
    evictable_pages: int


class RadixTree:
    """Prefixes of several spaces (anything hashable); sequences of different spaces share nothing.

    Attributes:
        total_pages: pages in the tree. evictable_pages: those in unlocked nodes.
        nodes: how many nodes there are, the root not counted.
    """

    def __init__(self, page_size: int, order: Callable[[Node], Any]) -> None:
        self.page_size = page_size
        self.total_pages = 0
        self.evictable_pages = 0
        self.nodes = 0
        self._order = order
        self._heap: list[tuple[Any, int, Node]] = []
        self._stamps = 0
        self._page_bytes = page_size * 4
        self.root = Node(None, None, b"", empty_i32(), 0)

    def match(self, space: Hashable, tokens: I32) -> Match:
        """The longest cached prefix of `tokens` (int32) in whole pages. Changes nothing."""
        data = tokens[: len(tokens) // self.page_size * self.page_size].tobytes()
        node, offset, partial, evictable = self.root, 0, 0, 0
        parts: list[I32] = []
        while offset < len(data) and partial == len(node.pages):
            child = node.children.get(self._edge(node, space, data, offset))
            if child is None:
                break
            node = child
            partial = self._common_pages(node, data, offset)
            parts.append(node.pages if partial == len(node.pages) else node.pages[:partial])
            evictable += 0 if node.locks else partial
            offset += partial * self._page_bytes
        return Match(node, partial, concat_pages(parts), evictable)

    def hold(self, match: Match, tick: int, urgency: int) -> Node:
        """Lock the matched path against eviction and return the node that ends exactly where the match does."""
        node = match.node
        if match.partial_pages < len(node.pages):
            node = self._split(node, match.partial_pages)
        self.lock(node, self.root, tick, urgency)
        return node

    def extend(self, node: Node, space: Hashable, tokens: I32, pages: I32, tick: int) -> tuple[Node, I32]:
        """Append whole pages after `node`, which may be the root (only then is `space` read).

        What somebody else has put there already is kept: the returned int32 array holds the tree's own pages for that
        leading part, and only the `pages` after it are taken over. Also returns the node where the sequence now ends.
        """
        data, done = tokens[: len(pages) * self.page_size].tobytes(), 0
        kept: list[I32] = []
        while done < len(pages):
            offset = done * self._page_bytes
            edge = self._edge(node, space, data, offset)
            child = node.children.get(edge)
            if child is None:
                node = self._add_leaf(node, edge, data[offset:], pages[done:].copy(), tick)
                break
            common = self._common_pages(child, data, offset)
            node = child if common == len(child.pages) else self._split(child, common)
            node.last_use = node.last_access = tick
            kept.append(node.pages)
            done += common
        return node, concat_pages(kept)

    def lock(self, node: Node, until: Node, tick: int, urgency: int) -> None:
        """Lock `node` and its ancestors up to `until`, which is not locked, for a user of that urgency."""
        while node is not until:
            if not node.locks:
                self.evictable_pages -= len(node.pages)
            node.locks += 1
            node.uses += 1
            node.urgency = max(node.urgency, urgency)
            node.last_use = node.last_access = tick
            node = _parent(node)

    def touch(self, node: Node, tick: int) -> None:
        """`node` and its ancestors will be used soon: they count as used now, though not once more."""
        for each in self.path(node):
            each.last_access = tick
        self._offer(node)

    def unlock(self, node: Node, fence: int, tick: int) -> None:
        """Undo one lock of `node` and its ancestors; none is evicted before step `fence` is committed."""
        while node is not self.root:
            if node.locks <= 0:
                raise ValueError("unlock of a node that is not locked")
            node.locks -= 1
            node.last_use = node.last_access = tick
            node.fence = max(node.fence, fence)
            if not node.locks:
                self.evictable_pages += len(node.pages)
                self._offer(node)
            node = _parent(node)

    def evict(self, pages: int, committed: int) -> I32:
        """Remove up to `pages` pages from unlocked leaves, from their ends, and return them.

        A leaf whose fence lies after step `committed` is passed over.
        """
        removed: list[I32] = []
        fenced: list[tuple[Any, int, Node]] = []
        while pages > 0 and self._heap:
            _, stamp, leaf = self._heap[0]
            if leaf.stamp != stamp or leaf.locks or leaf.children:
                heapq.heappop(self._heap)
            elif leaf.fence > committed:
                fenced.append(heapq.heappop(self._heap))
            else:
                count = min(pages, len(leaf.pages))
                removed.append(leaf.pages[len(leaf.pages) - count :])
                pages -= count
                self._cut(leaf, count)
        for entry in fenced:
            heapq.heappush(self._heap, entry)
        return concat_pages(removed)

    def path(self, node: Node) -> Iterator[Node]:
        """`node` and its ancestors below the root."""
        while node is not self.root:
            yield node
            node = _parent(node)

    def clear(self) -> I32:
        """Forget everything and return all pages; ValueError while anything is locked."""
        if self.evictable_pages != self.total_pages:
            raise ValueError("the tree is in use")
        pages = concat_pages([node.pages for node in self.walk()])
        self.root.children.clear()
        self._heap.clear()
        self.total_pages = self.evictable_pages = self.nodes = 0
        return pages

    def walk(self) -> list[Node]:
        """Every node but the root, parents before children."""
        found: list[Node] = []
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            found.append(node)
            stack.extend(node.children.values())
        return found

    def _edge(self, parent: Node, space: Hashable, data: bytes, offset: int) -> Hashable:
        """The key of a child: its first page, and at the root the space too, so that spaces never meet."""
        head = data[offset : offset + self._page_bytes]
        return (space, head) if parent is self.root else head

    def _common_pages(self, node: Node, data: bytes, offset: int) -> int:
        """How many of the node's leading pages are those of `data` from `offset` on; at least the edge's one."""
        if data.startswith(node.tokens, offset):
            return len(node.pages)
        length = min(len(node.tokens), len(data) - offset)
        left = np.frombuffer(node.tokens, np.int32, length // 4)
        differs = left != np.frombuffer(data, np.int32, length // 4, offset)
        first = int(differs.argmax())
        return (first if differs[first] else len(differs)) // self.page_size

    def _split(self, node: Node, pages: int) -> Node:
        """Cut `node` after `pages` pages; the front part becomes a new parent, `node` itself keeps the end.

        Leases that hold `node` therefore still end where they did.
        """
        cut = pages * self._page_bytes
        parent = _parent(node)
        front = Node(parent, node.edge, node.tokens[:cut], node.pages[:pages].copy(), node.last_access)
        front.locks, front.uses, front.urgency = node.locks, node.uses, node.urgency
        front.created, front.last_use, front.fence = node.created, node.last_use, node.fence
        parent.children[node.edge] = front
        node.parent = front
        node.start_tokens = front.reach_tokens
        node.tokens = node.tokens[cut:]
        node.pages = node.pages[pages:].copy()
        node.edge = self._edge(front, None, node.tokens, 0)
        front.children[node.edge] = node
        self.nodes += 1
        return front

    def _add_leaf(self, parent: Node, edge: Hashable, tokens: bytes, pages: I32, tick: int) -> Node:
        leaf = Node(parent, edge, tokens, pages, tick)
        parent.children[edge] = leaf
        self.nodes += 1
        self.total_pages += len(pages)
        self.evictable_pages += len(pages)
        self._offer(leaf)
        return leaf

    def _cut(self, leaf: Node, pages: int) -> None:
        """Drop the last `pages` pages of an unlocked leaf; an emptied leaf leaves the tree."""
        self.total_pages -= pages
        self.evictable_pages -= pages
        keep = len(leaf.pages) - pages
        leaf.pages = leaf.pages[:keep]
        leaf.tokens = leaf.tokens[: keep * self._page_bytes]
        if keep:
            return
        heapq.heappop(self._heap)
        leaf.stamp = -1
        parent = _parent(leaf)
        parent.reach_tokens = max(parent.reach_tokens, leaf.reach_tokens)
        del parent.children[leaf.edge]
        self.nodes -= 1
        self._offer(parent)

    def _offer(self, node: Node) -> None:
        """Make `node` a candidate for eviction if it is an unlocked leaf; an older entry of it becomes void."""
        if node.children or node.locks or node is self.root:
            return
        self._stamps += 1
        node.stamp = self._stamps
        heapq.heappush(self._heap, (self._order(node), node.stamp, node))
        if len(self._heap) > 64 + 4 * self.nodes:
            self._heap = [entry for entry in self._heap if entry[1] == entry[2].stamp]
            heapq.heapify(self._heap)


def _parent(node: Node) -> Node:
    if node.parent is None:
        raise ValueError("the root has no parent")
    return node.parent

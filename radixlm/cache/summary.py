"""The hottest part of the radix tree, for people to look at. Reads a tree and changes nothing; its work is bounded."""

import heapq
from collections.abc import Iterator
from itertools import islice

import numpy as np

from radixlm.cache.radix import Node, RadixTree
from radixlm.protocol.control import TreeNode

CHILDREN_LOOKED_AT = 256  # of one node: half of them the oldest, half the newest
NODES_LOOKED_AT = 2048  # of one summary


def hottest(tree: RadixTree, tick: int, most: int, head_tokens: int) -> list[TreeNode]:
    """The `most` nodes with most uses, then most tokens, parents before children; `tick` is now.

    A node never has more uses than its parent, so going on from the best node seen so far finds the best of all. Of
    a node with very many children only the oldest and the newest are looked at; NODES_LOOKED_AT bounds all together.
    """
    found: list[TreeNode] = []
    front: list[tuple[int, int, int, int, Node]] = []
    looked = 0

    def look_below(node: Node, index: int) -> None:
        nonlocal looked
        for child in islice(_some_children(node), NODES_LOOKED_AT - looked):
            looked += 1
            heapq.heappush(front, (-child.uses, -len(child.pages), looked, index, child))

    look_below(tree.root, -1)
    while front and len(found) < most:
        _, _, _, parent, node = heapq.heappop(front)
        tokens = len(node.pages) * tree.page_size
        head = np.frombuffer(node.tokens, np.int32, min(tokens, head_tokens)).tolist()
        found.append(TreeNode(parent, tokens, node.uses, node.locks, tick - node.last_access, len(node.children), head))
        look_below(node, len(found) - 1)
    return found


def _some_children(node: Node) -> Iterator[Node]:
    children = node.children.values()
    if len(children) <= CHILDREN_LOOKED_AT:
        yield from children
        return
    half = CHILDREN_LOOKED_AT // 2
    yield from islice(children, half)
    yield from islice(reversed(children), half)

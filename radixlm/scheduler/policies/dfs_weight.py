"""Depth first through the prefix tree, branches that more requests wait for first (arXiv 2312.07104, section 3)."""

from collections.abc import Sequence

from radixlm.cache.radix import Match, Node
from radixlm.scheduler.policies.matching import MatchingPolicy
from radixlm.scheduler.request import Request


class DepthFirstWeight(MatchingPolicy):
    """Requests that end in one branch follow each other; those of a node come after those below it."""

    def arrange(self, waiting: Sequence[Request], matches: Sequence[Match], now: float) -> Sequence[Request]:
        ending: dict[Node, list[Request]] = {}
        weights: dict[Node, int] = {}
        below: dict[Node, list[Node]] = {}
        for request, match in zip(waiting, matches, strict=True):
            ending.setdefault(match.node, []).append(request)
            node: Node | None = match.node
            while node is not None:
                if node.parent is not None and node not in weights:
                    below.setdefault(node.parent, []).append(node)
                weights[node] = weights.get(node, 0) + 1
                node = node.parent
        # read backwards, a node's requests before its children and the heaviest child last is the order wanted
        found: list[Request] = []
        stack = [node for node in weights if node.parent is None]
        while stack:
            node = stack.pop()
            found.extend(reversed(ending.get(node, [])))
            stack.extend(sorted(below.get(node, []), key=weights.__getitem__, reverse=True))
        return found[::-1]

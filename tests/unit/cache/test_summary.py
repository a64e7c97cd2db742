"""The summary shows the hottest nodes, with their parents, in bounded work."""

import numpy as np

from radixlm.cache import summary
from radixlm.cache.manager import CacheManager
from radixlm.protocol.messages import CacheNamespace

NAMESPACE = CacheNamespace()


def run(cache: CacheManager, tokens: list[int], step: int = 0) -> None:
    """One request with these tokens, from match to release."""
    ids = np.array([*tokens, 0], np.int32)
    match = cache.match(NAMESPACE, ids)
    lease = cache.acquire(NAMESPACE, match)
    own = len(ids) // cache.page_size + 1 - len(match.pages)
    cache.secure(own)
    pages = np.concatenate((match.pages, cache.take(own)))
    cache.release(lease, ids[:-1], pages, -1)


def test_most_used_first_and_parents_before_children() -> None:
    cache = CacheManager(64, 2)
    shared = [1, 2, 3, 4]
    run(cache, [*shared, 5, 6])
    for tail in ([7, 8], [7, 8], [9, 10]):
        run(cache, [*shared, *tail])
    run(cache, [20, 21])
    nodes = cache.hottest(10, 3)
    assert (nodes[0].parent, nodes[0].tokens, nodes[0].head, nodes[0].children) == (-1, 4, [1, 2, 3], 3)
    assert nodes[0].uses == max(node.uses for node in nodes)
    assert nodes[1].head == [7, 8] and nodes[1].parent == 0
    assert len(nodes) == cache.tree_nodes == 5
    assert all(node.parent < index for index, node in enumerate(nodes))
    assert [node.uses for node in nodes] == sorted((node.uses for node in nodes), reverse=True)
    assert [(node.uses, node.head) for node in cache.hottest(2, 0)] == [(node.uses, []) for node in nodes[:2]]


def test_a_very_wide_tree_is_not_walked(monkeypatch) -> None:
    monkeypatch.setattr(summary, "CHILDREN_LOOKED_AT", 10)
    monkeypatch.setattr(summary, "NODES_LOOKED_AT", 12)
    cache = CacheManager(512, 1)
    for first in range(1, 101):
        run(cache, [first, 200])
    nodes = cache.hottest(500, 1)
    assert len(nodes) == 10
    assert {node.head[0] for node in nodes} == {1, 2, 3, 4, 5, 96, 97, 98, 99, 100}

"""Random operations on the KV cache against a brute-force model: a dictionary from whole prefixes to pages."""

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from radixlm.cache.eviction.table import STRATEGIES
from radixlm.cache.manager import CacheManager, Lease
from radixlm.cache.pages import TREE
from radixlm.protocol.messages import CacheNamespace

Prefix = tuple[str, tuple[int, ...]]
SALTS = st.sampled_from(("", "x"))
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=24)


class CacheMachine(RuleBasedStateMachine):
    """`written[page]` is the prefix whose last page was computed there, `cached` the page of each cached prefix."""

    leases = Bundle("leases")

    eviction = "lru"

    @initialize(page_size=st.sampled_from((1, 2, 3, 4)), pages=st.integers(8, 40))
    def start(self, page_size: int, pages: int) -> None:
        self.page_size = page_size
        self.cache = CacheManager(pages, page_size, eviction=self.eviction)
        self.written: dict[int, Prefix] = {}
        self.cached: dict[Prefix, int] = {}
        self.fenced_until: dict[int, int] = {}
        self.open: dict[int, list[Prefix]] = {}
        self.step, self.committed = 0, -1

    @rule(target=leases, salt=SALTS, tokens=TOKENS, urgency=st.integers(-2, 2))
    def begin(self, salt: str, tokens: list[int], urgency: int):  # type: ignore[no-untyped-def]
        array = np.array(tokens, np.int32)
        namespace = CacheNamespace(cache_salt=salt)
        match = self.cache.match(namespace, array)
        wanted = self.prefixes(salt, tokens)
        hits = 0
        while (hits + 1) * self.page_size < len(tokens) and wanted[hits] in self.cached:
            hits += 1
        assert match.pages.tolist() == [self.cached[prefix] for prefix in wanted[:hits]]
        missing = -(-len(tokens) // self.page_size) - hits
        available = self.cache.free_pages + self.cache.evictable_pages - match.evictable_pages
        lease = self.cache.acquire(namespace, match, urgency)
        assert self.cache.free_pages + self.cache.evictable_pages == available
        self.open[id(lease)] = wanted[:hits]
        new = self.take(self.secure(missing))
        pages = np.concatenate((match.pages, new))
        for index, page in enumerate(new.tolist()):
            if hits + index < len(wanted):
                self.written[page] = wanted[hits + index]
        return lease, salt, tokens, pages

    @rule(item=leases, part=st.floats(0, 1))
    def publish(self, item: tuple, part: float) -> None:  # type: ignore[type-arg]
        lease, salt, tokens, pages = item
        if lease.open:
            self.insert(lease, salt, tokens, pages, part)

    @rule(item=consumes(leases), part=st.floats(0, 1), ago=st.integers(0, 3), abandon=st.booleans())
    def end(self, item: tuple, part: float, ago: int, abandon: bool) -> None:  # type: ignore[type-arg]
        lease, salt, tokens, pages = item
        fence = self.step - ago
        if not abandon:
            self.insert(lease, salt, tokens, pages, part)
        self.fence(pages[lease.tree_pages :], fence)
        self.fence(pages[: lease.tree_pages], fence)
        self.cache.abandon(lease, pages, fence)
        del self.open[id(lease)]

    @rule(count=st.integers(1, 12))
    def make_room(self, count: int) -> None:
        self.secure(count)

    @rule()
    def next_step(self) -> None:
        self.step += 1

    @rule()
    def commit(self) -> None:
        self.committed = max(self.committed, self.step - 1)
        self.cache.retire(self.committed)

    @rule(salt=SALTS, tokens=TOKENS)
    def look(self, salt: str, tokens: list[int]) -> None:
        before = self.states()
        self.cache.match(CacheNamespace(cache_salt=salt), np.array(tokens, np.int32))
        assert self.states() == before

    @rule()
    def flush(self) -> None:
        busy = bool(self.open) or any(until > self.committed for until in self.fenced_until.values())
        if self.cache.flush():
            assert not self.open
            self.cached.clear()
            assert self.cache.free_pages == self.cache.num_pages
        else:
            assert busy

    @invariant()
    def books_balance(self) -> None:
        assert self.cache.problems() == []
        for prefix, page in self.cached.items():
            assert self.written[page] == prefix, "a cached page holds another prefix's KV"
        assert sorted(self.cached.values()) == [page for page, state in enumerate(self.states()) if state == TREE]

    # ---- the model ----------------------------------------------------------------------------------------------

    def prefixes(self, salt: str, tokens: list[int]) -> list[Prefix]:
        page = self.page_size
        return [(salt, tuple(tokens[: (i + 1) * page])) for i in range(len(tokens) // page)]

    def states(self) -> list[int]:
        return self.cache._owner.states().tolist()

    def fence(self, pages: np.ndarray, fence: int) -> None:
        for page in pages.tolist():
            self.fenced_until[page] = max(fence, self.fenced_until.get(page, -1))

    def insert(self, lease: Lease, salt: str, tokens: list[int], pages: np.ndarray, part: float) -> None:
        done = min(int(len(tokens) * part), len(pages) * self.page_size)
        wanted = self.prefixes(salt, tokens[:done])
        first = lease.tree_pages
        own = pages[first : len(wanted)].copy()
        kept = self.cache.publish(lease, np.array(tokens[:done], np.int32), pages, self.step)
        expected = [self.cached[p] for p in wanted[first:] if p in self.cached]
        assert kept.tolist() == expected
        self.fence(own[: len(kept)], self.step)
        pages[first : first + len(kept)] = kept
        for prefix, page in zip(wanted[first:], pages[first:].tolist(), strict=False):
            self.cached.setdefault(prefix, page)
        self.open[id(lease)] = wanted if len(wanted) > first else self.open[id(lease)]

    def secure(self, count: int) -> int:
        free = self.cache.free_pages
        got = self.cache.secure(count)
        states = self.states()
        gone = {prefix for prefix, page in self.cached.items() if states[page] != TREE}
        assert len(gone) == max(self.cache.free_pages - free, 0)
        for prefix in gone:
            assert self.fenced_until.get(self.cached.pop(prefix), -1) <= self.committed
        assert not gone & {prefix for held in self.open.values() for prefix in held}, "evicted under a lease"
        for salt, tokens in self.cached:
            assert len(tokens) == self.page_size or (salt, tokens[: -self.page_size]) in self.cached
        if got < count:  # everything that may go is gone
            held = {prefix for prefixes in self.open.values() for prefix in prefixes}
            for salt, tokens in self.cached.keys() - held:
                below = [page for (s, t), page in self.cached.items() if s == salt and t[: len(tokens)] == tokens]
                assert any(self.fenced_until.get(page, -1) > self.committed for page in below)
        return got

    def take(self, count: int) -> np.ndarray:
        pages = self.cache.take(count)
        for page in pages.tolist():
            assert self.fenced_until.pop(page, -1) <= self.committed, "handed out behind a fence"
            self.written.pop(page, None)
        return pages


CacheMachine.TestCase.settings = settings(
    max_examples=100,
    stateful_step_count=100,  # 10,000 operations
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestCacheAgainstModel = CacheMachine.TestCase


@pytest.mark.parametrize("eviction", [name for name in STRATEGIES.names() if name != "lru"])
def test_the_same_under_every_strategy(eviction: str) -> None:
    machine = type("OtherEviction", (CacheMachine,), {"eviction": eviction})
    run_state_machine_as_test(machine, settings=settings(CacheMachine.TestCase.settings, max_examples=25))

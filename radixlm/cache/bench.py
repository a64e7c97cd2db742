"""`python -m radixlm.cache.bench`: what match, insert and eviction cost in a tree of a million tokens."""

import argparse
import gc
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from radixlm.cache.manager import CacheManager
from radixlm.protocol.arrays import I32
from radixlm.protocol.messages import CacheNamespace

TREE_TOKENS = 1_000_000
PROMPT_TOKENS = 100_000
EVICTED_TOKENS = 10_000
CHUNK_TOKENS = 512
SYSTEM_PROMPTS = 20
SYSTEM_TOKENS = 1000
VOCAB = 32_000
LIMITS_MS = {"match": 1.0, "insert": 2.0, "evict": 5.0}
PLAIN = CacheNamespace()
NO_STEP = -1  # nothing is in flight


@dataclass(frozen=True)
class Cost:
    """Milliseconds of one operation, best and median of its repetitions."""

    operation: str
    best_ms: float
    median_ms: float


class Bench:
    """A pool with a tree of many short branches below shared system prompts, and one of a long prompt."""

    def __init__(self, page_size: int, scattered: bool) -> None:
        """With `scattered` the free pages are in random order, as after long service; else as in a fresh pool."""
        self._rng = np.random.default_rng(0)
        self.cache = CacheManager((TREE_TOKENS + 3 * PROMPT_TOKENS) // page_size, page_size)
        if scattered:
            self._scatter()
        self.prompt = self._tokens(PROMPT_TOKENS)
        self._add_in_chunks(self.prompt)
        systems = [self._tokens(SYSTEM_TOKENS) for _ in range(SYSTEM_PROMPTS)]
        number = 0
        while self.cache.tree_pages * page_size < TREE_TOKENS:
            own = self._tokens(int(self._rng.integers(20, 2000)))
            self.add(np.concatenate((systems[number % SYSTEM_PROMPTS], own)))
            number += 1

    def add(self, tokens: I32) -> float:
        """Cache `tokens`; the seconds that their insertion took."""
        cache = self.cache
        match = cache.match(PLAIN, tokens)
        lease = cache.acquire(PLAIN, match)
        missing = -(-len(tokens) // cache.page_size) - len(match.pages)
        cache.secure(missing)
        pages = np.concatenate((match.pages, cache.take(missing)))
        began = time.perf_counter()
        cache.publish(lease, tokens, pages, NO_STEP)
        took_s = time.perf_counter() - began
        cache.abandon(lease, pages, NO_STEP)
        return took_s

    def evict(self) -> float:
        """Seconds to make room for EVICTED_TOKENS."""
        pages = self.cache.free_pages + EVICTED_TOKENS // self.cache.page_size
        return _seconds(lambda: self.cache.secure(pages))

    def costs(self, repeat: int) -> list[Cost]:
        matches = [_seconds(lambda: self.cache.match(PLAIN, self.prompt)) for _ in range(repeat)]
        inserts = [self.add(self._tokens(PROMPT_TOKENS)) for _ in range(repeat)]
        evictions = [self.evict() for _ in range(repeat)]
        taken = {"match": matches, "insert": inserts, "evict": evictions}
        return [Cost(name, min(times) * 1e3, float(np.median(times)) * 1e3) for name, times in taken.items()]

    def _tokens(self, count: int) -> I32:
        return self._rng.integers(0, VOCAB, count, np.int32)

    def _add_in_chunks(self, tokens: I32) -> None:
        """As a prompt comes that is computed in chunks: a node for each."""
        for end in range(CHUNK_TOKENS, len(tokens) + CHUNK_TOKENS, CHUNK_TOKENS):
            self.add(tokens[:end])

    def _scatter(self) -> None:
        """Take all pages and give them back in random order."""
        lease = self.cache.acquire(PLAIN, self.cache.match(PLAIN, self._tokens(1)))
        pages = self._rng.permutation(self.cache.take(self.cache.num_pages))
        self.cache.abandon(lease, pages, NO_STEP)


def _seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def main(argv: Sequence[str] | None = None) -> int:
    """Print the costs; 1 when a best one is above its limit."""
    parser = argparse.ArgumentParser(prog="python -m radixlm.cache.bench", description=__doc__)
    parser.add_argument("--page-size", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--repeat", type=int, default=15)
    options = parser.parse_args(argv)
    print(f"tree of {TREE_TOKENS:,} tokens; match and insert {PROMPT_TOKENS:,}, evict {EVICTED_TOKENS:,}")
    print("page  free pages  operation  best ms  median ms  limit ms")
    slow = False
    for page_size in options.page_size:
        for scattered in (False, True):
            bench = Bench(page_size, scattered)
            gc.collect()
            gc.freeze()
            for cost in bench.costs(options.repeat):
                limit_ms = LIMITS_MS[cost.operation]
                slow = slow or cost.best_ms > limit_ms
                order = "scattered" if scattered else "in order"
                print(
                    f"{page_size:4}  {order:10}  {cost.operation:9}  {cost.best_ms:7.3f}  {cost.median_ms:9.3f}  "
                    f"{limit_ms:8g}"
                )
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())

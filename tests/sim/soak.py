"""A long life in a small pool: `python -m tests.sim.soak --minutes 20` prints what it saw, and fails on what is wrong.

A real engine on a tiny model serves requests of random lengths, priorities and salts, some of them aborted, in a pool
that forces retraction and preemption. Everybody's tokens are those of a request that is alone.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import psutil
import torch

from radixlm.config.card import ModelCard
from radixlm.loader.card import load_card
from radixlm.loader.source import resolve
from radixlm.loader.weights import LoadedModel, load_model
from tests.helpers.checkpoints import VOCAB, make_checkpoint
from tests.helpers.engine import LocalEngine, greedy

LONGEST_ANSWER = 48
PROMPTS = 40
MOST_LIVE = 24
POOL_TOKENS = 512
PAGE_SIZE = 4
FLUSH_EVERY = 400  # requests
SAMPLE_S = 10.0


@dataclass
class Asked:
    """A live request: which prompt it has and how much it may say."""

    prompt: int
    most_tokens: int
    aborted: bool = False


@dataclass
class Seen:
    """What happened. `rss_mib` is sampled every SAMPLE_S seconds."""

    requests: int = 0
    aborted: int = 0
    retractions: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    flushes: int = 0
    turns: int = 0
    wrong: list[str] = field(default_factory=list)
    rss_mib: list[float] = field(default_factory=list)

    def growth_mib(self) -> float:
        """The median of the last quarter of the samples above that of the second quarter; 0 for one sample."""
        quarter = max(len(self.rss_mib) // 4, 1)
        return median(self.rss_mib[-quarter:]) - median(self.rss_mib[quarter : 2 * quarter] or self.rss_mib)


class Soak:
    def __init__(self, loaded: LoadedModel, card: ModelCard, seed: int, run_ahead: int) -> None:
        self.seen = Seen()
        self._rng = random.Random(seed)
        shared = [[self._rng.randrange(VOCAB) for _ in range(40)] for _ in range(4)]
        self._prompts = [
            self._rng.choice([[], *shared]) + [self._rng.randrange(VOCAB) for _ in range(self._rng.randint(1, 80))]
            for _ in range(PROMPTS)
        ]
        roomy = LocalEngine(loaded, card, 0, max_total_tokens=32_768)
        alone = roomy.generate(self._prompts, greedy(LONGEST_ANSWER, ignore_eos=False), at_once=1)
        self._alone = [output.tokens for output in alone]
        self._engine = LocalEngine(
            loaded,
            card,
            run_ahead,
            max_total_tokens=POOL_TOKENS,
            page_size=PAGE_SIZE,
            chunked_prefill_size=32,
            schedule_conservativeness=0.05,
            enable_priority_scheduling=True,
            retraction_policy="priority",
        )
        self._live: dict[int, Asked] = {}

    def run(self, seconds: float) -> Seen:
        process, until, sample_at = psutil.Process(), time.monotonic() + seconds, 0.0
        while time.monotonic() < until:
            self._change()
            self._turn()
            if self.seen.requests >= (self.seen.flushes + 1) * FLUSH_EVERY:
                self._drain()
            if time.monotonic() >= sample_at:
                self.seen.rss_mib.append(process.memory_info().rss / 2**20)
                sample_at = time.monotonic() + SAMPLE_S
        self._drain()
        return self.seen

    def _change(self) -> None:
        """Somebody comes, somebody leaves."""
        rng = self._rng
        while len(self._live) < MOST_LIVE and rng.random() < 0.4:
            asked = Asked(rng.randrange(PROMPTS), rng.choice((1, 2, 8, 20, LONGEST_ANSWER)))
            key = self._engine.submit(
                self._prompts[asked.prompt],
                greedy(asked.most_tokens, ignore_eos=False),
                stream=rng.random() < 0.5,
                salt=rng.choice(("", "", "a")),
                priority=rng.choice((None, 0, 5, 50)),
            )
            self._live[key] = asked
            self.seen.requests += 1
        if self._live and rng.random() < 0.03:
            key = rng.choice(list(self._live))
            self._live[key].aborted = True
            self._engine.abort(key)

    def _turn(self) -> None:
        self._engine.turn()  # and the books balance, or it raises
        self.seen.turns += 1
        for key in [key for key in self._live if self._engine.outputs[key].finished is not None]:
            self._ended(key, self._live.pop(key))

    def _ended(self, key: int, asked: Asked) -> None:
        output, seen = self._engine.outputs.pop(key), self.seen
        finished = output.finished
        assert finished is not None
        whole = self._alone[asked.prompt][: asked.most_tokens]
        expected = whole[: len(output.tokens)] if finished.reason.type == "abort" else whole
        if output.tokens != expected or (finished.reason.type == "abort" and not asked.aborted):
            seen.wrong.append(f"request {key}: {finished.reason}, {output.tokens} in place of {expected}")
        seen.aborted += finished.reason.type == "abort"
        seen.retractions += finished.retractions
        seen.output_tokens += len(output.tokens)
        seen.cached_tokens += finished.cached_tokens

    def _drain(self) -> None:
        """Let everybody end; then nothing is held, and the cache can be emptied."""
        while self._live or not self._engine.scheduler.idle:
            self._turn()
        if self._engine.outputs or not self._engine.scheduler.flush_cache(time.time()).success:
            self.seen.wrong.append("something is left after all have ended")
        self.seen.flushes += 1


def soak(seconds: float, seed: int, run_ahead: int) -> Seen:
    with tempfile.TemporaryDirectory() as folder:
        make_checkpoint("qwen3", Path(folder))
        source = resolve(folder)
        card = load_card(source)
        loaded = load_model(source, card, torch.float32, torch.device("cpu"))
        return Soak(loaded, card, seed, run_ahead).run(seconds)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run-ahead", type=int, default=1)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    seen = soak(options.minutes * 60, options.seed, options.run_ahead)
    print(
        f"{seen.requests} requests, {seen.aborted} aborted, {seen.retractions} retractions, {seen.output_tokens} "
        f"output tokens, {seen.cached_tokens} cached prompt tokens, {seen.turns} turns, {seen.flushes} flushes; memory "
        f"{seen.rss_mib[0]:.0f} MiB at first, {seen.rss_mib[-1]:.0f} at last, growth {seen.growth_mib():+.1f}"
    )
    print("\n".join(seen.wrong[:10]) or "nothing wrong")
    return 1 if seen.wrong else 0


if __name__ == "__main__":
    sys.exit(main())

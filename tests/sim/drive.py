"""Runs workloads through the real scheduler and cache on a fake device, and checks everything that can be checked."""

import io
import tempfile
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from radixlm.cache.feed import CacheFeed
from radixlm.cache.manager import CacheManager
from radixlm.config.groups import ScheduleConfig
from radixlm.protocol.messages import (
    AbortReq,
    BatchTokenIDOutput,
    CacheNamespace,
    Finished,
    Started,
    TextOptions,
    TokenizedGenerateReqInput,
)
from radixlm.protocol.plan import StepResult
from radixlm.protocol.sampling import SamplingParams
from radixlm.scheduler.limits import SchedulerLimits
from radixlm.scheduler.replay import RecordingScheduler
from tests.sim.device import FakeDevice, oracle

VOCAB = 97
EOS = (3,)
TOKEN_BYTES = [bytes([33 + token]) for token in range(VOCAB)]


@dataclass(frozen=True)
class Job:
    """One request of a workload: arrives at turn `arrival`, is aborted at turn `abort` if that is set."""

    arrival: int
    prompt: tuple[int, ...]
    max_new: int
    stream: bool = True
    abort: int | None = None
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    minimum: int = 0
    salt: str = ""
    priority: int | None = None
    routing_key: str = ""

    def expected(self, limit: int) -> tuple[list[int], str]:
        """(output tokens, finish type) when it is left alone; `limit` is the output that fits."""
        count = min(self.max_new, limit)
        ends = () if self.ignore_eos else (*self.stop_ids, *EOS)
        outputs = oracle(list(self.prompt), len(self.prompt), count, VOCAB, self.minimum, ends)
        for produced in range(1, count + 1):
            text = b"".join(TOKEN_BYTES[token] for token in outputs[:produced])
            if outputs[produced - 1] in ends or any(stop.encode() in text for stop in self.stop):
                return outputs[:produced], "stop"
        return outputs, "length"

    def message(self, key: int) -> TokenizedGenerateReqInput:
        params = SamplingParams(
            max_new_tokens=self.max_new,
            min_new_tokens=self.minimum,
            seed=len(self.prompt),
            stop=self.stop,
            stop_token_ids=self.stop_ids,
            ignore_eos=self.ignore_eos,
        )
        prompt = np.array(self.prompt, np.int32)
        namespace = CacheNamespace(cache_salt=self.salt)
        text = TextOptions(stop=self.stop)
        return TokenizedGenerateReqInput(
            key,
            prompt,
            params,
            text,
            self.stream,
            0.0,
            namespace,
            priority=self.priority,
            routing_key=self.routing_key,
        )


@dataclass
class Setup:
    """The world that a workload runs in."""

    num_pages: int = 64
    page_size: int = 4
    slots: int = 8
    context: int = 256
    depth: int = 1
    chunk: int | None = 16
    radix: bool = True
    conservativeness: float = 1.0  # small: requests are admitted that will not fit, and have to be retracted
    policy: str = "fcfs"
    eviction: str = "lru"
    schedule: Mapping[str, Any] = field(default_factory=dict)  # further fields of ScheduleConfig
    feed: CacheFeed | None = None
    spoil: Callable[[StepResult], StepResult] | None = None

    @property
    def capacity(self) -> int:
        return min(self.context, self.num_pages * self.page_size)


@dataclass
class Outcome:
    """What came out, by key (the job's index), and what it took."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    started: dict[int, Started] = field(default_factory=dict)
    finished: dict[int, Finished] = field(default_factory=dict)
    first_turn: dict[int, int] = field(default_factory=dict)
    end_turn: dict[int, int] = field(default_factory=dict)
    turns: int = 0
    computed_tokens: int = 0
    retractions: int = 0
    lines: list[str] = field(default_factory=list)


class World:
    """A scheduler, a device, and the engine's loop between them, one turn at a time."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.log = io.BytesIO()
        self.cache = CacheManager(
            setup.num_pages, setup.page_size, radix=setup.radix, eviction=setup.eviction, feed=setup.feed
        )
        limits = SchedulerLimits(setup.capacity, setup.context, setup.slots, VOCAB, EOS)
        config = ScheduleConfig(
            chunked_prefill_size=setup.chunk,
            schedule_policy=setup.policy,
            schedule_conservativeness=setup.conservativeness,
            **setup.schedule,
        )
        self.scheduler = RecordingScheduler(config, self.cache, limits, TOKEN_BYTES, self.log)
        self.device = FakeDevice(setup.slots, setup.capacity, setup.num_pages, setup.page_size, VOCAB)
        self.outcome = Outcome()
        self._in_flight: deque[StepResult] = deque()

    def turn(self, events: list[TokenizedGenerateReqInput | AbortReq]) -> None:
        now = float(self.outcome.turns)
        plan = self.scheduler.plan(events, now)
        if plan is not None:
            result = self.device.run(plan)
            self._in_flight.append(self.setup.spoil(result) if self.setup.spoil is not None else result)
        waits = plan is None and not self._in_flight and not self.scheduler.paused
        assert not waits or not self.scheduler.running, "nothing runs, yet somebody holds a slot"
        while self._in_flight and (plan is None or len(self._in_flight) > self.setup.depth):
            result = StepResult.decode(self._in_flight.popleft().encode())
            self.device.committed = result.step
            self.scheduler.commit(result, now)
            self._check()
            if plan is None:
                break
        self._check()
        self._collect(self.scheduler.take_output())
        self.outcome.turns += 1

    def _check(self) -> None:
        problems = self.scheduler.check()
        assert not problems, problems
        assert self.scheduler.conservation_errors_total == 0

    def _collect(self, output: BatchTokenIDOutput | None) -> None:
        if output is None:
            return
        keys, outcome = output.keys.tolist(), self.outcome
        assert len(set(keys)) == len(keys) and int(output.counts.sum()) == len(output.tokens)
        for started in output.started:
            assert started.key not in outcome.started and started.key in keys
            outcome.started[started.key] = started
        at = 0
        for key, count in zip(keys, output.counts.tolist(), strict=True):
            assert key not in outcome.finished, "tokens after the end"
            assert key in outcome.started, "tokens before the start"
            if count:
                outcome.first_turn.setdefault(key, outcome.turns)
            outcome.tokens.setdefault(key, []).extend(output.tokens[at : at + count].tolist())
            at += count
        for finished in output.finished:
            assert finished.key in keys
            assert finished.completion_tokens == len(outcome.tokens[finished.key])
            assert finished.cached_tokens <= max(finished.prompt_tokens - 1, 0)
            outcome.finished[finished.key] = finished
            outcome.end_turn[finished.key] = outcome.turns

    def saved_log(self) -> str:
        """The run so far as a file, and the command that repeats it."""
        with tempfile.NamedTemporaryFile(prefix="radixlm-sim-", suffix=".replay", delete=False) as file:
            file.write(self.log.getvalue())
        return f"repeat with: python -m radixlm.scheduler.replay {file.name}"


def run(jobs: list[Job], setup: Setup, most_turns: int = 200_000) -> Outcome:
    """Run a workload to its end. Checks the books after every step, that everybody ends, and that nothing is left."""
    world = World(setup)
    try:
        events: dict[int, list[TokenizedGenerateReqInput | AbortReq]] = {}
        for key, job in enumerate(jobs):
            events.setdefault(job.arrival, []).append(job.message(key))
            if job.abort is not None:
                events.setdefault(max(job.abort, job.arrival), []).append(AbortReq([key]))
        last = max(events, default=0)
        while world.outcome.turns <= last or not world.scheduler.idle:
            world.turn(events.get(world.outcome.turns, []))
            assert world.outcome.turns < most_turns, "the workload does not end"
        assert world.outcome.finished.keys() == set(range(len(jobs)))
        assert world.scheduler.running == world.scheduler.queued == 0
        assert world.scheduler.flush_cache(0.0).success
        assert world.cache.free_pages == setup.num_pages
    except Exception as error:
        raise AssertionError(f"{error!r}; {world.saved_log()}") from error
    world.outcome.computed_tokens = world.device.computed_tokens
    world.outcome.retractions = world.scheduler.stats(0.0).num_retracted_requests_total
    world.outcome.lines = world.scheduler.take_log_lines()
    return world.outcome


def verify(jobs: list[Job], setup: Setup, outcome: Outcome) -> None:
    """Everybody got what it would have got alone; an aborted one got a beginning of it."""
    for key, job in enumerate(jobs):
        finished, tokens = outcome.finished[key], outcome.tokens[key]
        if finished.reason.status_code == 400:
            assert len(job.prompt) + min(job.max_new, 1) > setup.capacity
            continue
        expected, kind = job.expected(setup.capacity - len(job.prompt))
        if finished.reason.type == "abort":
            assert job.abort is not None and finished.reason.status_code is None, finished.reason
            assert tokens == expected[: len(tokens)]
        else:
            assert (tokens, finished.reason.type) == (expected, kind), f"job {key}: {job}"

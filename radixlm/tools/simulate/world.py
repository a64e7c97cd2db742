"""One simulated server: the real scheduler and cache over a trace, with a clock that moves by what steps would cost."""

import dataclasses
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from radixlm.cache.manager import CacheManager
from radixlm.config.groups import ScheduleConfig
from radixlm.protocol.arrays import I32
from radixlm.protocol.messages import (
    BatchTokenIDOutput,
    CacheNamespace,
    Finished,
    TextOptions,
    TokenizedGenerateReqInput,
)
from radixlm.protocol.plan import NOT_SAMPLED, SAMPLE, StepPlan, StepResult
from radixlm.protocol.sampling import SamplingParams
from radixlm.scheduler.limits import SchedulerLimits
from radixlm.scheduler.scheduler import Scheduler
from radixlm.tools.simulate.cost import StepCost, units
from radixlm.tools.simulate.trace import TraceRequest

WORD, END = 0, 1  # the two tokens that a simulated model says
SHORTEST_COAST = 8  # steps; fewer are simulated one by one
LONGEST_COAST = 1 << 20
WAIT_S = 0.001  # between looks while nothing can run yet


@dataclass(frozen=True)
class Setting:
    """The server that is simulated."""

    schedule: ScheduleConfig
    pool_tokens: int
    page_size: int
    context_tokens: int
    radix: bool = True
    eviction: str = "lru"
    eviction_options: dict[str, int] = field(default_factory=dict)
    run_ahead: int = 0

    @property
    def running(self) -> int:
        return min(self.schedule.max_running_requests or self.pages, self.pages)

    @property
    def pages(self) -> int:
        return max(self.pool_tokens // self.page_size, 1)


@dataclass
class Fate:
    """What became of one request; times in seconds of the simulated clock."""

    arrival_s: float
    first_s: float = float("nan")
    end_s: float = float("nan")
    finished: Finished | None = None


@dataclass
class Run:
    """A whole trace on one setting. `busy_s`: how long the device computed; `wall_s`: how long simulating took."""

    fates: list[Fate]
    duration_s: float = 0.0
    busy_s: float = 0.0
    steps: int = 0
    computed_tokens: int = 0
    retractions: int | None = 0  # None: not known of a real server
    evicted_tokens: int = 0
    wall_s: float = 0.0


class World:
    """`overhead_s` is what a request spends outside the engine before it arrives there."""

    def __init__(
        self, setting: Setting, cost: StepCost, trace: Sequence[TraceRequest], overhead_s: float = 0.0
    ) -> None:
        self._trace = trace
        self._overhead_s = overhead_s
        self._cost = cost.coefficients()
        self._run_ahead = setting.run_ahead
        self._cache = CacheManager(
            setting.pages,
            setting.page_size,
            radix=setting.radix,
            eviction=setting.eviction,
            eviction_options=setting.eviction_options,
        )
        self._context_tokens = setting.context_tokens
        capacity = min(setting.context_tokens, setting.pages * setting.page_size)
        limits = SchedulerLimits(capacity, setting.context_tokens, setting.running, 2, (END,))
        schedule = dataclasses.replace(setting.schedule, max_running_requests=setting.running)
        self._scheduler = Scheduler(schedule, self._cache, limits, None)
        self._ends_at: I32 = np.full(setting.running, -1, np.int32)  # by slot: the output that is the end token
        self._keys = [0] * setting.running  # by slot
        self._key_s = float(cost.seconds.get("decode_key", 0.0))
        self._next = 0
        self._in_flight: deque[tuple[StepPlan, float]] = deque()
        self._last: StepPlan | None = None
        self._now = self._free_at = 0.0
        self.run = Run([Fate(request.arrival_s) for request in trace])

    def play(self) -> Run:
        """Until every request has ended."""
        began = time.perf_counter()
        while self._next < len(self._trace) or not self._scheduler.idle:
            self._turn()
        run = self.run
        run.duration_s = max((fate.end_s for fate in run.fates), default=0.0)
        run.retractions = self._scheduler.stats(self._now).num_retracted_requests_total
        run.evicted_tokens = self._cache.evicted_tokens
        run.wall_s = time.perf_counter() - began
        return run

    def _turn(self) -> None:
        """The engine's loop once around, or many times where every turn would be alike."""
        if self._coasted():
            return
        plan = self._scheduler.plan(self._arrived(), self._now)
        if plan is not None:
            self._launch(plan)
        elif not self._in_flight:
            self._wait()
        while self._in_flight and (plan is None or len(self._in_flight) > self._run_ahead):
            self._commit()
            if plan is None:
                break

    def _wait(self) -> None:
        """Nothing runs: on to the next arrival, or a little further while something waits for time to pass."""
        self._collect(self._scheduler.take_output())  # requests that were refused as they arrived
        if not self._scheduler.idle:
            self._now += WAIT_S
        elif self._next < len(self._trace):
            self._now = max(self._now, self._due_s(self._next))

    def _commit(self) -> None:
        plan, done_at = self._in_flight.popleft()
        self._now = max(self._now, done_at)
        for slot in plan.slots[(plan.flags & SAMPLE != 0) & (plan.outputs == 0)].tolist():
            self.run.fates[self._keys[slot]].first_s = self._now
        self._scheduler.commit(self._answer(plan), self._now)
        self._collect(self._scheduler.take_output())
        self._scheduler.take_log_lines()

    def _coasted(self) -> bool:
        """Go on to shortly before the next arrival or end, if until then every step has the same rows as the last."""
        last = self._last
        if last is None or len(last.slots) != last.decode_rows or self._scheduler.running != last.decode_rows:
            return False
        step_s, more_s = float(units(last) @ self._cost), last.decode_rows * self._key_s
        left_s = self._due_s(self._next) - self._free_at if self._next < len(self._trace) else float("inf")
        if left_s < SHORTEST_COAST * step_s:
            return False
        ends = self._ends_at[last.slots]
        room = int(np.where(ends < 0, LONGEST_COAST, ends - last.outputs - 1).min())
        room = self._scheduler.coasting_room(min(room, int(min(left_s / step_s, LONGEST_COAST))))
        steps = int(min(room, left_s / (step_s + room * more_s) - self._run_ahead - 1))
        if steps < SHORTEST_COAST:
            return False
        while self._in_flight:  # the device does not notice that nothing is planned meanwhile
            self._commit()
        self._scheduler.coast(steps, WORD)
        took_s = steps * step_s + more_s * steps * (steps + 1) / 2
        self._now = self._free_at = self._free_at + took_s
        self._last = None
        self.run.busy_s += took_s
        self.run.steps += steps
        self.run.computed_tokens += steps * last.decode_rows
        return True

    def _due_s(self, index: int) -> float:
        return self._trace[index].arrival_s + self._overhead_s

    def _arrived(self) -> list[TokenizedGenerateReqInput]:
        events = []
        while self._next < len(self._trace) and self._due_s(self._next) <= self._now:
            events.append(_message(self._next, self._trace[self._next], self._context_tokens))
            self._next += 1
        return events

    def _launch(self, plan: StepPlan) -> None:
        for init in plan.started:
            key = int(init.params.seed or 0)
            request = self._trace[key]
            self._keys[init.slot] = key
            self._ends_at[init.slot] = -1 if request.most_tokens is None else max(request.output_tokens - 1, 0)
        took_s = float(units(plan) @ self._cost)
        self._free_at = max(self._free_at, self._now) + took_s
        self._in_flight.append((plan, self._free_at))
        self._last = plan
        self.run.busy_s += took_s
        self.run.steps += 1
        self.run.computed_tokens += int(plan.counts.sum())

    def _answer(self, plan: StepPlan) -> StepResult:
        """A word where a token is sampled, and the end where the trace says so."""
        ends = self._ends_at[plan.slots]
        tokens = np.where((ends >= 0) & (plan.outputs >= ends), END, WORD).astype(np.int32)
        return StepResult(plan.step, np.where(plan.flags & SAMPLE, tokens, NOT_SAMPLED).astype(np.int32))

    def _collect(self, output: BatchTokenIDOutput | None) -> None:
        if output is None:
            return
        for finished in output.finished:
            fate = self.run.fates[finished.key]
            fate.end_s, fate.finished = self._now, finished


def _message(key: int, request: TraceRequest, context_tokens: int) -> TokenizedGenerateReqInput:
    """The request as the front end would send it. The seed tells the simulated model which one it is.

    Of a prompt beyond the context only the length counts, which has it refused: a little more than fits stands for it.
    """
    fits = request.prompt_tokens <= context_tokens
    exact = request.most_tokens is None
    most = request.output_tokens if request.most_tokens is None else request.most_tokens
    return TokenizedGenerateReqInput(
        key=key,
        input_ids=request.prompt() if fits else np.zeros(context_tokens + 1, np.int32),
        sampling=SamplingParams(max_new_tokens=most, ignore_eos=exact, seed=key, temperature=0.0),
        text=TextOptions(),
        stream=False,
        arrival_time=request.arrival_s,
        namespace=CacheNamespace(cache_salt=request.cache_salt),
        priority=request.priority,
        routing_key=request.routing_key,
    )

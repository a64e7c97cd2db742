"""Measures steps of a real engine in this process, over loads of many shapes, for a cost to be fitted to."""

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from radixlm.base.errors import RadixError
from radixlm.config.groups import Config
from radixlm.config.resolve import known
from radixlm.config.resolve import resolve as resolve_config
from radixlm.engine.build import Engine, build, probe
from radixlm.loader.card import load_card
from radixlm.loader.source import resolve
from radixlm.protocol.messages import TextOptions, TokenizedGenerateReqInput, encode
from radixlm.protocol.plan import StepPlan
from radixlm.protocol.sampling import SamplingParams
from radixlm.runner.runner import StepInFlight
from radixlm.tools.simulate.cost import F64, Machine, StepCost, fit, units

SMALLEST_VOCABULARY = 100
SHORTEST_PROMPT, LONGEST_PROMPT = 4, 3000
SHORTEST_ANSWER, LONGEST_ANSWER = 4, 48
LATE_SHARE = 0.15  # of the steps of a load in which one more request arrives
LATE_REQUESTS = 8
WARM_UP_S = 1.0


def measure(flags: Mapping[str, Any], budget_s: float, say: Callable[[str], None]) -> StepCost:
    """Build the engine of these server flags, run it for `budget_s` seconds, and fit. RadixError as in a server."""
    config = Config.from_flat({"skip_server_warmup": False, **flags})
    source = resolve(config.model.model_path)
    card = load_card(source)
    engine = build(config, source, card)
    resolved = resolve_config(config, probe(config.device.device), card)
    ready = engine.ready
    machine = Machine(
        model=config.model.model_path,
        device=str(ready.facts.get("device", resolved.config.device.device)),
        dtype=resolved.config.model.dtype,
        pool_tokens=ready.max_total_num_tokens,
        page_size=ready.page_size,
        chunk_tokens=known(resolved.config.schedule.chunked_prefill_size),
        context_tokens=resolved.context_len,
        max_running=ready.max_running_requests,
        run_ahead=engine.run_ahead,
    )
    meter = Meter(engine)
    rng = np.random.default_rng(0)
    meter.load(rng, machine, 4, WARM_UP_S)
    meter.steps.clear()
    meter.seconds.clear()
    until = time.perf_counter() + budget_s
    while (left_s := until - time.perf_counter()) > 0:
        most = min(machine.max_running, 64)
        meter.load(rng, machine, int(2 ** rng.uniform(0, np.log2(most))), left_s)
        say(f"{len(meter.seconds)} steps measured, {max(left_s, 0):.0f} s left")
    return fit(machine, meter.steps, meter.seconds)


class Meter:
    """The engine's loop without sockets. A step's time is that from the end of the step before to its own."""

    def __init__(self, engine: Engine) -> None:
        self.steps: list[F64] = []
        self.seconds: list[float] = []
        self._engine = engine
        self._in_flight: deque[tuple[StepPlan, StepInFlight]] = deque()
        self._mark = 0.0
        self._keys = 0

    def load(self, rng: np.random.Generator, machine: Machine, requests: int, most_s: float) -> None:
        """Run some requests of random lengths to their end, a few of them arriving late; new ones only for `most_s`."""
        began, late = time.perf_counter(), LATE_REQUESTS
        longest = min(LONGEST_PROMPT, machine.context_tokens // 2, machine.pool_tokens // (requests + 1))
        prompt = float(rng.uniform(np.log(SHORTEST_PROMPT), np.log(max(longest, SHORTEST_PROMPT + 1))))
        self._mark = began
        events = [self._request(rng, prompt, longest) for _ in range(requests)]
        while events or not self._engine.scheduler.idle:
            self._turn(events)
            arrives = late > 0 and time.perf_counter() - began < most_s and rng.random() < LATE_SHARE
            late -= arrives
            anything = float(rng.uniform(np.log(SHORTEST_PROMPT), np.log(max(longest, SHORTEST_PROMPT + 1))))
            events = [self._request(rng, anything, longest)] if arrives else []
        self._engine.scheduler.flush_cache(time.time())

    def _request(self, rng: np.random.Generator, log_length: float, longest: int) -> TokenizedGenerateReqInput:
        self._keys += 1
        tokens = min(max(int(np.exp(log_length + rng.normal(0, 0.2))), 1), longest)
        answer = int(np.exp(rng.uniform(np.log(SHORTEST_ANSWER), np.log(LONGEST_ANSWER))))
        prompt = rng.integers(0, SMALLEST_VOCABULARY, tokens).astype(np.int32)
        params = SamplingParams(temperature=0.0, max_new_tokens=answer, ignore_eos=True)
        return TokenizedGenerateReqInput(self._keys, prompt, params, TextOptions(), True, 0.0)

    def _turn(self, events: list[TokenizedGenerateReqInput]) -> None:
        scheduler, runner = self._engine.scheduler, self._engine.runner
        plan = scheduler.plan(events, time.time())
        if plan is not None:
            self._in_flight.append((plan, runner.launch(plan)))
        while self._in_flight and (plan is None or len(self._in_flight) > self._engine.run_ahead):
            oldest, step = self._in_flight.popleft()
            result = runner.retire(step)
            if result.error is not None:
                raise RadixError(f"a step failed: {result.error}")
            scheduler.commit(result, time.time())
            output = scheduler.take_output()
            if output is not None:
                encode(output)
            now = time.perf_counter()
            self.steps.append(units(oldest))
            self.seconds.append(now - self._mark)
            self._mark = now
            if plan is None:
                break
        scheduler.take_log_lines()

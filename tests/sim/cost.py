"""Host cost of scheduling: `python -m tests.sim.cost` prints microseconds of plan and commit per decode step."""

import time

import numpy as np

from radixlm.cache.manager import CacheManager
from radixlm.config.groups import ScheduleConfig
from radixlm.protocol.messages import TextOptions, TokenizedGenerateReqInput
from radixlm.protocol.plan import SAMPLE, StepPlan, StepResult
from radixlm.protocol.sampling import SamplingParams
from radixlm.scheduler.scheduler import Scheduler, SchedulerLimits

STEPS = 200


def answer(plan: StepPlan) -> StepResult:
    tokens = np.where((plan.flags & SAMPLE) != 0, 7, -1).astype(np.int32)
    return StepResult(plan.step, tokens)


def measure(rows: int, page_size: int, stream: bool) -> tuple[float, float, float, float]:
    """Mean microseconds of (plan, commit, take_output), and the worst plan, over decode steps of `rows` requests."""
    longest = 1024
    cache = CacheManager(rows * longest // page_size, page_size)
    limits = SchedulerLimits(longest, longest, rows, 32000, (2,))
    scheduler = Scheduler(ScheduleConfig(chunked_prefill_size=8192), cache, limits, None)
    params = SamplingParams(max_new_tokens=900, ignore_eos=True)
    rng = np.random.default_rng(0)
    events = [
        TokenizedGenerateReqInput(key, rng.integers(0, 32000, 40, np.int32), params, TextOptions(), stream, 0.0)
        for key in range(rows)
    ]
    plan = scheduler.plan(events, 0.0)
    while plan is not None and plan.decode_rows < rows:
        scheduler.commit(answer(plan), 0.0)
        plan = scheduler.plan([], 0.0)
    times = np.zeros((STEPS, 3))
    for step in range(STEPS):
        assert plan is not None and plan.decode_rows == rows
        result = answer(plan)
        start = time.perf_counter()
        scheduler.commit(result, 0.0)
        committed = time.perf_counter()
        scheduler.take_output()
        taken = time.perf_counter()
        plan = scheduler.plan([], 0.0)
        times[step] = time.perf_counter() - taken, committed - start, taken - committed
    plan_us, commit_us, output_us = times.mean(axis=0) * 1e6
    return float(plan_us), float(commit_us), float(output_us), float(times[:, 0].max()) * 1e6


def main() -> None:
    print("rows  page  plan us  commit us  take_output us (streaming)  worst plan us")
    for page_size in (1, 16):
        for rows in (1, 256, 2000):
            plan_us, commit_us, output_us, worst_us = measure(rows, page_size, stream=True)
            print(f"{rows:4}  {page_size:4}  {plan_us:7.0f}  {commit_us:9.0f}  {output_us:14.0f}  {worst_us:25.0f}")


if __name__ == "__main__":
    main()

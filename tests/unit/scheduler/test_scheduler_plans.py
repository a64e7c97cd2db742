"""What is planned: budgets, mixing, reservation, ratio, log lines, statistics."""

import numpy as np
import pytest

from radixlm.cache.manager import CacheManager
from radixlm.config.groups import ScheduleConfig
from radixlm.protocol.messages import TextOptions, TokenizedGenerateReqInput
from radixlm.protocol.plan import SAMPLE, StepPlan, StepResult
from radixlm.protocol.sampling import SamplingParams
from radixlm.scheduler.scheduler import Scheduler, SchedulerLimits


def make(page_size: int = 1, tokens: int = 4096, slots: int = 64, chunk: int | None = 64, **config: float) -> Scheduler:
    limits = SchedulerLimits(1024, 1024, slots, 1000, (2,))
    settings = ScheduleConfig(chunked_prefill_size=chunk, **config)  # type: ignore[arg-type]
    return Scheduler(settings, CacheManager(tokens // page_size, page_size), limits, None)


def ask(key: int, prompt: int, max_new: int = 100) -> TokenizedGenerateReqInput:
    ids = np.random.default_rng(key).integers(10, 1000, prompt).astype(np.int32)
    params = SamplingParams(max_new_tokens=max_new, ignore_eos=True)
    return TokenizedGenerateReqInput(key, ids, params, TextOptions(), False, 0.0)


def commit(scheduler: Scheduler, plan: StepPlan | None, now: float = 0.0) -> StepPlan:
    assert plan is not None
    scheduler.commit(StepResult(plan.step, np.where(plan.flags & SAMPLE, 5, -1).astype(np.int32)), now)
    assert scheduler.check() == []
    return plan


def test_one_step_mixes_decodes_and_chunks_within_the_budget() -> None:
    scheduler = make()
    commit(scheduler, scheduler.plan([ask(1, 10), ask(2, 20)], 0.0))
    plan = commit(scheduler, scheduler.plan([ask(3, 50), ask(4, 50)], 0.0))
    assert plan.decode_rows == 2 and plan.counts.tolist() == [1, 1, 50, 12]
    assert plan.flags.tolist() == [1, 1, 3, 2] and len(plan.tokens) == 62
    plan = commit(scheduler, scheduler.plan([], 0.0))
    assert plan.decode_rows == 3 and plan.counts.tolist() == [1, 1, 1, 38] and plan.starts.tolist()[-1] == 12


def test_no_more_prompts_in_a_step_than_allowed() -> None:
    scheduler = make(prefill_max_requests=2)
    counts = [commit(scheduler, scheduler.plan([ask(k, 10) for k in range(5)], 0.0)).counts.tolist()]
    counts += [commit(scheduler, scheduler.plan([], 0.0)).counts.tolist() for _ in range(3)]
    assert counts == [[10, 10], [1, 1, 10, 10], [1, 1, 1, 1, 10], [1] * 5]


def test_many_decodes_leave_a_quarter_of_the_budget_to_chunks() -> None:
    scheduler = make(chunk=16)
    plan = scheduler.plan([ask(key, 4) for key in range(20)], 0.0)
    while commit(scheduler, plan).decode_rows < 20:
        plan = scheduler.plan([], 0.0)
    plan = commit(scheduler, scheduler.plan([ask(99, 30)], 0.0))
    assert plan.counts.tolist() == [1] * 20 + [4]


def test_without_chunking_only_the_first_prompt_may_exceed_the_cap() -> None:
    scheduler = make(chunk=-1, max_prefill_tokens=100)
    plan = scheduler.plan([ask(1, 150), ask(2, 20)], 0.0)
    assert commit(scheduler, plan).counts.tolist() == [150]
    plan = commit(scheduler, scheduler.plan([ask(3, 70), ask(4, 30)], 0.0))
    assert plan.counts.tolist() == [1, 20, 70]


@pytest.mark.parametrize("page_size", [1, 4, 16, 64])
def test_rows_reserve_sixteen_tokens_at_a_time_and_never_more_than_they_need(page_size: int) -> None:
    scheduler = make(page_size)
    plan = commit(scheduler, scheduler.plan([ask(1, 64, 40)], 0.0))
    assert len(plan.page_updates) == 64 // page_size
    grown = []
    for _ in range(39):
        plan = commit(scheduler, scheduler.plan([], 0.0))
        grown.append(len(plan.page_updates) * page_size)
    step = max(16, page_size)
    assert [tokens for tokens in grown if tokens] == {1: [16, 16, 7], 4: [16, 16, 8], 16: [16, 16, 16], 64: [64]}[
        page_size
    ]
    assert all(tokens == 0 or index % step == 0 for index, tokens in enumerate(grown))
    assert scheduler.idle is False and scheduler.take_output() is not None and scheduler.idle
    assert scheduler.stats(0.0).kv_used_tokens == 0


def test_admission_keeps_room_for_the_outputs_of_those_who_run() -> None:
    scheduler = make(tokens=400)
    commit(scheduler, scheduler.plan([ask(1, 20, 200), ask(2, 20, 200)], 0.0))
    assert (scheduler.running, scheduler.queued) == (1, 1)  # 220 and 220 do not fit in 400
    eager = make(tokens=400, schedule_conservativeness=0.0)
    commit(eager, eager.plan([ask(1, 20, 100), ask(2, 20, 100)], 0.0))
    assert eager.running == 2


def test_the_ratio_falls_and_is_reset_when_idle() -> None:
    scheduler = make()
    plan = scheduler.plan([ask(1, 4, 700)], 0.0)
    assert scheduler.stats(0.0).new_token_ratio == 0.7
    commit(scheduler, plan)
    for _ in range(650):
        commit(scheduler, scheduler.plan([], 0.0))
    assert scheduler.stats(0.0).new_token_ratio == pytest.approx(0.098)
    for _ in range(49):
        commit(scheduler, scheduler.plan([], 0.0))
    scheduler.take_output()
    assert scheduler.plan([], 0.0) is None
    assert scheduler.stats(0.0).new_token_ratio == 0.7


def test_log_lines() -> None:
    scheduler = make(decode_log_interval=4)
    commit(scheduler, scheduler.plan([ask(1, 40), ask(2, 60)], 10.0), 10.5)
    assert scheduler.take_log_lines() == [
        "Prefill batch, #new-seq: 2, #new-token: 64, #cached-token: 0, token usage: 0.02, #running-req: 0, "
        "#queue-req: 0, #pending-token: 36, cuda graph: False, input throughput (token/s): 0.00"
    ]
    for index in range(4):
        commit(scheduler, scheduler.plan([], 12.0 + index), 12.5 + index)
    assert scheduler.take_log_lines() == [
        "Prefill batch, #new-seq: 1, #new-token: 36, #cached-token: 0, token usage: 0.03, #running-req: 1, "
        "#queue-req: 0, #pending-token: 0, cuda graph: False, input throughput (token/s): 18.00",
        "Decode batch, #running-req: 2, #token: 132, token usage: 0.03, cuda graph: False, "
        "gen throughput (token/s): 1.64, #queue-req: 0",
    ]
    assert scheduler.take_log_lines() == []


def test_statistics_add_up() -> None:
    scheduler = make()
    for key, prompt in ((1, 40), (1, 40), (2, 10)):
        plan = scheduler.plan([ask(key, prompt, 3)], 0.0)
        while plan is not None:
            commit(scheduler, plan)
            plan = scheduler.plan([], 0.0)
        scheduler.take_output()
    stats = scheduler.stats(1.0)
    assert (stats.prefill_compute_tokens_total, stats.prefill_cache_tokens_total) == (40 + 1 + 10, 39)
    assert stats.decode_tokens_total == 9 and stats.step == 9
    assert stats.cache_hit_rate == pytest.approx(39 / 90)
    assert stats.kv_available_tokens + stats.kv_evictable_tokens == stats.max_total_num_tokens == 4096
    assert stats.kv_evictable_tokens == 42 + 12 and stats.conservation_errors_total == 0
    assert scheduler.stats(60.0).cache_hit_rate == 0.0


def test_requests_are_served_in_order_of_arrival() -> None:
    scheduler = make(slots=2, chunk=512)
    scheduler.plan([ask(key, 20, 2) for key in range(9, 0, -1)], 0.0)
    order: list[int] = []
    while not scheduler.idle:
        plan = scheduler.plan([], 0.0)
        for record in list(scheduler._in_flight):
            scheduler.commit(StepResult(record.step, np.full(len(record.slots), 5, np.int32)), 0.0)
        output = scheduler.take_output()
        order += [end.key for end in output.finished] if output is not None else []
        assert plan is not None or scheduler.idle or scheduler.queued
    assert order == list(range(9, 0, -1))


def test_the_scheduler_needs_no_torch() -> None:
    import subprocess
    import sys

    code = "import sys, radixlm.scheduler.replay; assert not {'torch', 'zmq', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)

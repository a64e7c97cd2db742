"""How requests end, and what is said about it: reasons, order of tests, aborts, refusals, the output message."""

import re
from typing import Any

import numpy as np
import pytest

from radixlm.cache.manager import CacheManager
from radixlm.config.groups import ScheduleConfig
from radixlm.protocol.messages import AbortReq, BatchTokenIDOutput, TextOptions, TokenizedGenerateReqInput
from radixlm.protocol.messages import encode as encode_message
from radixlm.protocol.plan import HOST, LAST, NOT_FINITE, SAMPLE, StepPlan, StepResult
from radixlm.protocol.sampling import SamplingParams
from radixlm.scheduler.scheduler import Scheduler, SchedulerLimits

EOS = 2
TABLE = [bytes([97 + token % 26]) for token in range(100)]


def make(pages: int = 64, slots: int = 8, table: list[bytes] | None = TABLE, capacity: int = 64) -> Scheduler:
    limits = SchedulerLimits(capacity, 128, slots, 100, (EOS,))
    return Scheduler(ScheduleConfig(chunked_prefill_size=512), CacheManager(pages, 1), limits, table)


def ask(key: int, prompt: int = 10, stream: bool = True, **sampling: Any) -> TokenizedGenerateReqInput:
    params = SamplingParams(**sampling)
    ids = np.full(prompt, 50 + key, np.int32)
    return TokenizedGenerateReqInput(key, ids, params, TextOptions(), stream, 0.0)


def result(plan: StepPlan, *tokens: int) -> StepResult:
    return StepResult(plan.step, np.array(tokens, np.int32))


def step(scheduler: Scheduler, *tokens: int, events: Any = ()) -> BatchTokenIDOutput | None:
    """One synchronous step whose rows sample `tokens`."""
    plan = scheduler.plan(list(events), 0.0)
    assert plan is not None and len(plan.slots) == len(tokens)
    scheduler.commit(result(plan, *tokens), 0.0)
    assert scheduler.check() == []
    return scheduler.take_output()


def reason(output: BatchTokenIDOutput | None) -> dict[str, Any]:
    assert output is not None and len(output.finished) == 1
    end = output.finished[0].reason
    return {f: getattr(end, f) for f in end.__struct_fields__ if getattr(end, f) is not None}


@pytest.mark.parametrize(
    "sampling,tokens,expected",
    [
        ({"max_new_tokens": 2}, (5, 6), {"type": "length", "length": 2}),
        ({}, (5, EOS), {"type": "stop", "matched": EOS}),
        ({"stop_token_ids": (7,)}, (5, 7), {"type": "stop", "matched": 7}),
        ({"max_new_tokens": 2}, (5, EOS), {"type": "stop", "matched": EOS}),  # an end token beats the length
        ({"max_new_tokens": 2, "stop": ("fg",)}, (5, 6), {"type": "stop", "matched": "fg"}),
        ({"stop": ("g",), "stop_regex": ("f.",), "stop_token_ids": (6,)}, (5, 6), {"type": "stop", "matched": "g"}),
        ({"stop_regex": ("f.",), "stop_token_ids": (6,)}, (5, 6), {"type": "stop", "matched": "f."}),
        ({"ignore_eos": True, "stop_token_ids": (7,), "max_new_tokens": 2}, (7, EOS), {"type": "length", "length": 2}),
        ({"ignore_eos": True, "stop": ("c",)}, (7, EOS), {"type": "stop", "matched": "c"}),
        ({"max_new_tokens": 1000}, (5,) * 54, {"type": "length", "length": 54}),  # clamped to the capacity of 64
    ],
)  # fmt: skip
def test_the_reason_of_an_end(sampling: dict[str, Any], tokens: tuple[int, ...], expected: dict[str, Any]) -> None:
    scheduler = make()
    events = [ask(1, **sampling)]
    for token in tokens[:-1]:
        output = step(scheduler, token, events=events)
        assert output is not None and not output.finished
        events = []
    output = step(scheduler, tokens[-1], events=events)
    assert reason(output) == expected
    assert output is not None and output.finished[0].completion_tokens == len(tokens)
    assert scheduler.idle


def test_no_new_tokens_means_prefill_only() -> None:
    scheduler = make()
    plan = scheduler.plan([ask(1, max_new_tokens=0)], 0.0)
    assert plan is not None and plan.flags.tolist() == [HOST | LAST]
    scheduler.commit(result(plan, -1), 0.0)
    output = scheduler.take_output()
    assert reason(output) == {"type": "length", "length": 0}
    assert output is not None and len(output.started) == 1 and output.counts.tolist() == [0]
    assert step(scheduler, 5, events=[ask(1, max_new_tokens=2)]).started[0].cached_tokens == 9  # type: ignore[union-attr]


def test_an_unsampled_row_in_flight_is_dropped_when_the_stop_is_found() -> None:
    scheduler = make()
    first = scheduler.plan([ask(1, max_new_tokens=8)], 0.0)
    second = scheduler.plan([], 0.0)
    assert first is not None and second is not None
    scheduler.commit(result(first, EOS), 0.0)
    assert scheduler.plan([], 0.0) is None and not scheduler.idle
    assert not scheduler.flush_cache(0.0).success
    scheduler.commit(result(second, 9), 0.0)
    output = scheduler.take_output()
    assert output is not None and output.tokens.tolist() == [EOS]
    assert scheduler.idle and scheduler.flush_cache(0.0).success


def test_a_row_whose_limit_is_in_flight_is_not_planned_again() -> None:
    scheduler = make()
    plans = [scheduler.plan([ask(1, max_new_tokens=2)] if i == 0 else [], 0.0) for i in range(3)]
    assert plans[2] is None and plans[1] is not None


@pytest.mark.parametrize("bad", [NOT_FINITE, 100, -7])
def test_a_token_that_is_none_ends_the_request_as_an_error(bad: int) -> None:
    scheduler = make()
    step(scheduler, 5, events=[ask(1)])
    output = step(scheduler, bad)
    assert reason(output)["type"] == "abort" and reason(output)["status_code"] == 500
    assert output is not None and output.finished[0].completion_tokens == 1


def test_aborts_in_every_state() -> None:
    scheduler = make(slots=1)
    step(scheduler, 5, events=[ask(1), ask(2), AbortReq([77])])
    assert (scheduler.running, scheduler.queued) == (1, 1)
    assert scheduler.plan([AbortReq([2])], 0.0) is not None
    queued = scheduler.take_output()
    assert reason(queued) == {"type": "abort", "message": "Abort in waiting queue"}
    assert queued is not None and queued.started[0].key == 2 and queued.finished[0].completion_tokens == 0
    assert scheduler.plan([AbortReq([1]), AbortReq([1, 2])], 0.0) is None
    running = scheduler.take_output()
    assert reason(running) == {"type": "abort", "message": "Aborted"}
    assert running is not None and running.finished[0].completion_tokens == 1
    assert scheduler.check() == []


def test_an_abort_may_say_why() -> None:
    scheduler = make()
    assert scheduler.plan([ask(1), AbortReq([1], "Timed out")], 0.0) is None
    assert reason(scheduler.take_output())["message"] == "Timed out"


@pytest.mark.parametrize(
    "event,part",
    [
        (ask(1, prompt=64, max_new_tokens=1), r"Input length \(64 tokens\).*\(63 tokens\)"),
        (ask(1, prompt=65, max_new_tokens=0), r"Input length \(65 tokens\).*context holds 128.*cache 64"),
        (ask(1, prompt=0), "no tokens"),
        (ask(1, stop_regex=("(",)), "not valid"),
    ],
)
def test_refusals_are_answers(event: TokenizedGenerateReqInput, part: str) -> None:
    scheduler = make()
    assert scheduler.plan([event], 0.0) is None
    output = scheduler.take_output()
    end = reason(output)
    assert (end["type"], end["status_code"], end["err_type"]) == ("abort", 400, "BadRequestError")
    assert re.search(part, end["message"]), end["message"]
    assert output is not None and output.keys.tolist() == [1] and len(output.started) == 1
    assert scheduler.idle


def test_stops_need_a_tokenizer() -> None:
    scheduler = make(table=None)
    scheduler.plan([ask(1, stop=("a",))], 0.0)
    assert reason(scheduler.take_output())["status_code"] == 400


def test_the_longest_request_that_is_promised_runs_alone() -> None:
    scheduler = make(pages=64, capacity=64)
    step(scheduler, 5, events=[ask(1, prompt=63, max_new_tokens=1)])
    output = step(scheduler, 5, events=[ask(2, prompt=32, max_new_tokens=32)])
    while output is None or not output.finished:
        output = step(scheduler, 5)
    assert output.finished[0].completion_tokens == 32


def test_what_can_never_run_is_failed_and_does_not_block() -> None:
    scheduler = make(pages=20, capacity=64)  # the promise is larger than the pool
    output = step(scheduler, 5, events=[ask(1, prompt=40), ask(2, prompt=5, max_new_tokens=1)])
    assert output is not None
    ends = {end.key: end.reason for end in output.finished}
    assert ends[1].status_code == 500 and "40 tokens need 41 KV pages of 1" in str(ends[1].message)
    assert ends[2].type == "length"
    output = step(scheduler, 5, events=[ask(3, prompt=15, max_new_tokens=40)])  # fits at first, then no longer
    while output is None or not output.finished:
        plan = scheduler.plan([], 0.0)
        if plan is not None:
            scheduler.commit(result(plan, 5), 0.0)
        output = scheduler.take_output()
    assert output.finished[0].reason.status_code == 500 and output.finished[0].completion_tokens == 6


def test_streams_get_tokens_as_they_come_and_others_at_the_end() -> None:
    scheduler = make()
    output = step(scheduler, 5, 6, events=[ask(1, max_new_tokens=3), ask(2, stream=False, max_new_tokens=3)])
    assert output is not None
    assert (output.keys.tolist(), output.counts.tolist(), output.tokens.tolist()) == ([1], [1], [5])
    assert [s.key for s in output.started] == [1]
    plans = []
    for tokens in ((7, 8), (9, 10)):
        plan = scheduler.plan([], 0.0)
        assert plan is not None
        plans.append(plan)
        scheduler.commit(result(plan, *tokens), 0.0)
    output = scheduler.take_output()
    assert output is not None and scheduler.take_output() is None
    assert dict(zip(output.keys.tolist(), output.counts.tolist(), strict=True)) == {1: 2, 2: 3}
    assert output.tokens.tolist() == [7, 9, 6, 8, 10]
    assert [s.key for s in output.started] == [2]
    assert len(encode_message(output)) > 0


def test_the_plan_of_a_resumed_request_carries_its_history() -> None:
    limits = SchedulerLimits(40, 128, 4, 100, ())
    scheduler = Scheduler(
        ScheduleConfig(chunked_prefill_size=512, schedule_conservativeness=0.0), CacheManager(60, 1), limits, None
    )
    events = [ask(1, max_new_tokens=30, presence_penalty=1.0), ask(2, prompt=9, max_new_tokens=31)]
    seen: list[StepPlan] = []
    for _ in range(80):
        plan = scheduler.plan(events if not seen else [], 0.0)
        if plan is None:
            break
        seen.append(plan)
        scheduler.commit(result(plan, *(1 if flag & SAMPLE else -1 for flag in plan.flags.tolist())), 0.0)
    again = [init for plan in seen[1:] for init in plan.started]
    assert len(again) == 1 and again[0].outputs.tolist() == [1] * len(again[0].outputs) and len(again[0].outputs) > 0
    assert again[0].prompt.tolist() == [51] * 10  # wanted by penalties
    plan = next(plan for plan in seen[1:] if plan.started)
    row = plan.slots.tolist().index(again[0].slot)
    assert plan.outputs[row] == len(again[0].outputs) and plan.flags[row] == HOST | SAMPLE
    assert len(seen[0].started[1].prompt) == 0
    assert scheduler.stats(0.0).num_retracted_requests_total == 1 and scheduler.idle is False
    output = scheduler.take_output()
    assert output is not None and {end.key: end.retractions for end in output.finished} == {1: 1, 2: 0}
    assert {end.key: end.completion_tokens for end in output.finished} == {1: 30, 2: 31}


def test_results_out_of_order_are_refused() -> None:
    scheduler = make()
    plan = scheduler.plan([ask(1)], 0.0)
    assert plan is not None
    with pytest.raises(ValueError, match="not the next"):
        scheduler.commit(StepResult(plan.step + 1), 0.0)
    with pytest.raises(ValueError, match="in use"):
        scheduler.plan([ask(1)], 0.0)

"""When prompts are made to wait for decodes, and when they are not; and what ends requests where nothing moves."""

import pytest

from radixlm.config.groups import ScheduleConfig
from radixlm.scheduler.pacing import Pacing
from radixlm.scheduler.stall import STALL_S
from tests.sim.drive import Job, Setup, World, run, verify
from tests.sim.test_policies import prompt


def test_rounds_of_decoding_between_prompts() -> None:
    pacing = Pacing(ScheduleConfig(prefill_decode_interval=2), 8)
    waits = []
    for _ in range(6):
        waits.append(pacing.chunks_wait(decoding=3))
        pacing.planned(chunks=0 if waits[-1] else 1, admitted=0)
    assert waits == [False, True, True, False, True, True]
    assert not pacing.chunks_wait(decoding=0)


def test_free_slots_are_waited_for_only_while_something_decodes() -> None:
    pacing = Pacing(ScheduleConfig(min_free_slots_delay=3), 8)
    assert pacing.admission_waits(5, running=6, free_slots=2, usage=0.5, now=0.0)
    assert not pacing.admission_waits(5, running=5, free_slots=3, usage=0.5, now=0.0)
    assert not pacing.admission_waits(5, running=0, free_slots=2, usage=0.5, now=0.0)
    assert not Pacing(ScheduleConfig(min_free_slots_delay=99), 8).admission_waits(1, 0, 8, 0.0, 0.0)


def delayer(**settings: float) -> Pacing:
    return Pacing(ScheduleConfig(enable_prefill_delayer=True, **settings), 8)  # type: ignore[arg-type]


def test_the_delayer_waits_for_as_many_slots_as_were_filled_at_once() -> None:
    pacing = delayer(prefill_delayer_max_delay_passes=3)
    assert not pacing.admission_waits(4, 7, 1, 0.5, 0.0)
    pacing.planned(chunks=4, admitted=4)
    assert [pacing.admission_waits(4, 7, 1, 0.5, 0.0) for _ in range(4)] == [True, True, True, False]
    pacing.planned(chunks=1, admitted=1)
    assert pacing.admission_waits(4, 7, 1, 0.5, 0.0)
    assert not pacing.admission_waits(4, 4, 4, 0.5, 0.0)


def test_the_delayer_waits_for_a_longer_queue_for_a_time() -> None:
    pacing = delayer(prefill_delayer_queue_min_ratio=0.5, prefill_delayer_max_delay_ms=100)
    assert pacing.admission_waits(2, 6, 2, 0.5, now=1.0)
    assert pacing.admission_waits(2, 6, 2, 0.5, now=1.05)
    assert not pacing.admission_waits(2, 6, 2, 0.5, now=1.11)
    assert not pacing.admission_waits(3, 6, 2, 0.5, now=1.0)
    never = delayer(prefill_delayer_queue_min_ratio=0.5, prefill_delayer_max_delay_ms=0)
    assert not never.admission_waits(2, 6, 2, 0.5, now=1.0)


def test_the_delayer_lets_go_while_memory_is_free() -> None:
    pacing = delayer(prefill_delayer_token_usage_low_watermark=0.3)
    pacing.planned(chunks=4, admitted=4)
    assert not pacing.admission_waits(4, 7, 1, 0.2, 0.0)
    assert pacing.admission_waits(4, 7, 1, 0.4, 0.0)


@pytest.mark.parametrize(
    "schedule",
    [
        {"prefill_decode_interval": 3},
        {"min_free_slots_delay": 4},
        {"enable_prefill_delayer": True, "prefill_delayer_queue_min_ratio": 0.5},
    ],
)
def test_no_token_changes_and_prompts_come_in_fewer_steps(schedule: dict[str, int | float | bool]) -> None:
    jobs = [Job(i, prompt(i, 30), 12, ignore_eos=True) for i in range(40)]
    steps = []
    for settings in ({}, schedule):
        outcome = run(jobs, setup := Setup(num_pages=256, slots=8, chunk=256, schedule=settings))
        verify(jobs, setup, outcome)
        steps.append(sum(line.startswith("Prefill batch") for line in outcome.lines))
    assert steps[1] < steps[0]


def test_where_nothing_moves_the_head_of_the_queue_ends_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(Setup())
    planner = world.scheduler._planner
    plan = planner.plan
    monkeypatch.setattr(planner, "plan", lambda step, now, in_flight: None)
    world.turn([Job(0, prompt(1, 8), 4).message(0), Job(0, prompt(2, 8), 4).message(1)])
    for _ in range(int(STALL_S) - 1):
        world.turn([])
    assert not world.outcome.finished
    world.turn([])
    reason = world.outcome.finished[0].reason
    assert reason.type == "abort" and reason.status_code == 500 and "Nothing could run for 30 s" in str(reason.message)
    monkeypatch.setattr(planner, "plan", plan)
    while not world.scheduler.idle:
        world.turn([])
    assert world.outcome.finished[1].reason.type != "abort"

"""Priorities: who starts first, who gives way, and that nobody's tokens change."""

import dataclasses
import random
from collections.abc import Mapping
from typing import Any

import pytest

from tests.sim.drive import VOCAB, Job, Outcome, Setup, run, verify
from tests.sim.test_random import workload

ON = {"enable_priority_scheduling": True}
STILL = {**ON, "disable_priority_preemption": True}


def prompt(seed: int, length: int) -> tuple[int, ...]:
    rng = random.Random(seed)
    return tuple(rng.randrange(VOCAB) for _ in range(length))


def go(jobs: list[Job], schedule: Mapping[str, Any], **world: Any) -> Outcome:
    setup = Setup(**{"num_pages": 40, "page_size": 4, "slots": 4, "schedule": schedule, **world})
    outcome = run(jobs, setup)
    verify(jobs, setup, outcome)
    return outcome


def crowd(count: int, priority: int | None) -> list[Job]:
    return [Job(0, prompt(100 + i, 10), 40, ignore_eos=True, priority=priority) for i in range(count)]


def turns_to_first(outcome: Outcome, jobs: list[Job], key: int) -> int:
    return outcome.first_turn[key] - jobs[key].arrival


def test_urgent_requests_start_first() -> None:
    jobs = [dataclasses.replace(job, priority=i) for i, job in enumerate(crowd(6, 0))]
    one = {"slots": 1}
    assert list(go(jobs, ON, **one).end_turn) == [5, 4, 3, 2, 1, 0]
    assert list(go(jobs, {**ON, "schedule_low_priority_values_first": True}, **one).end_turn) == [0, 1, 2, 3, 4, 5]
    assert list(go(jobs, {}, **one).end_turn) == [0, 1, 2, 3, 4, 5]


def test_who_brings_no_priority_comes_last_or_where_the_default_puts_it() -> None:
    jobs = [*crowd(1, None), *crowd(1, -5), *crowd(1, 5)]
    assert list(go(jobs, ON, slots=1).end_turn) == [2, 1, 0]
    assert list(go(jobs, {**ON, "default_priority_value": 0}, slots=1).end_turn) == [2, 0, 1]
    assert list(go(jobs, {**ON, "default_priority_value": 9}, slots=1).end_turn) == [0, 2, 1]


def test_longest_output_first_comes_after_urgency() -> None:
    jobs = [
        Job(0, prompt(i, 8), new, ignore_eos=True, priority=p) for i, (new, p) in enumerate(((9, 1), (20, 0), (9, 0)))
    ]
    assert list(go(jobs, ON, slots=1, policy="lof").end_turn) == [0, 1, 2]
    assert list(go(jobs, {}, slots=1, policy="lof").end_turn) == [1, 0, 2]


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("world", [{"slots": 4, "num_pages": 400}, {"slots": 32, "num_pages": 40}])
def test_an_urgent_request_takes_the_place_of_others_and_changes_no_token(depth: int, world: dict[str, int]) -> None:
    jobs = [*crowd(8, 0), Job(12, prompt(1, 60), 20, ignore_eos=True, priority=50)]
    without, with_it = go(jobs, STILL, depth=depth, **world), go(jobs, ON, depth=depth, **world)
    assert with_it.tokens == without.tokens
    assert turns_to_first(with_it, jobs, 8) <= 4 + 4 + depth  # four chunks of its prompt
    assert turns_to_first(without, jobs, 8) > turns_to_first(with_it, jobs, 8)
    assert with_it.finished[8].retractions == 0 < with_it.retractions
    assert any("Preempt" in line for line in with_it.lines) and not any("Preempt" in line for line in without.lines)


def test_the_latest_of_the_least_urgent_gives_way_and_no_more_than_needed() -> None:
    jobs = [dataclasses.replace(job, priority=p) for job, p in zip(crowd(4, 0), (1, 0, 0, 1), strict=True)]
    jobs.append(Job(12, prompt(1, 8), 4, ignore_eos=True, priority=50))
    outcome = go(jobs, ON, num_pages=400)
    assert [outcome.finished[key].retractions for key in range(5)] == [0, 0, 1, 0, 0]


@pytest.mark.parametrize("priority,threshold,preempts", [(10, 10, False), (11, 10, True), (1, 0, True), (0, 0, False)])
def test_only_a_gap_above_the_threshold_preempts(priority: int, threshold: int, preempts: bool) -> None:
    jobs = [*crowd(4, 0), Job(12, prompt(1, 8), 4, ignore_eos=True, priority=priority)]
    outcome = go(jobs, {**ON, "priority_scheduling_preemption_threshold": threshold}, num_pages=400)
    assert (outcome.retractions > 0) is preempts


def test_nobody_gives_way_when_it_would_not_be_enough() -> None:
    # the urgent one needs most of the pool; the lower half of it could be had, the other half is as urgent as it is
    jobs = [dataclasses.replace(job, priority=p) for job, p in zip(crowd(4, 0), (50, 50, 50, 0), strict=True)]
    jobs.append(Job(20, prompt(1, 120), 4, ignore_eos=True, priority=50))
    outcome = go(jobs, ON, num_pages=56)
    assert outcome.finished[3].retractions == 0


def test_memory_runs_out_at_the_expense_of_the_least_urgent() -> None:
    # outputs of a least length are not reserved, so that memory does run out; the gap is too small to preempt
    jobs = [dataclasses.replace(job, ignore_eos=False, minimum=40) for job in crowd(4, 0)]
    jobs[3] = dataclasses.replace(jobs[3], arrival=6, priority=5)
    hit = {}
    for retraction in ("length", "priority"):
        schedule = {**ON, "retraction_policy": retraction}
        outcome = go(jobs, schedule, num_pages=40, slots=8, conservativeness=0.0)
        hit[retraction] = [outcome.finished[key].retractions for key in range(4)]
    assert hit == {"length": [0, 0, 0, 1], "priority": [0, 0, 1, 0]}


def test_a_priority_is_refused_where_it_means_nothing() -> None:
    jobs = [*crowd(1, 3), *crowd(1, None)]
    setup = Setup(schedule={"abort_on_priority_when_disabled": True})
    outcome = run(jobs, setup)
    assert outcome.finished[0].reason.status_code == 400 and "priority" in str(outcome.finished[0].reason.message)
    assert outcome.finished[1].reason.type == "length"
    assert go(jobs, {}).finished[0].reason.type == "length"


def test_urgent_requests_wait_less_under_load() -> None:
    rng = random.Random(3)
    jobs = [
        Job(turn, prompt(500 + turn, rng.randint(5, 40)), rng.randint(5, 40), ignore_eos=True, priority=20 * (turn % 3))
        for turn in range(150)
    ]
    waits = {}
    for name, schedule in (("off", {}), ("still", STILL), ("on", ON)):
        outcome = go(jobs, schedule)
        waits[name] = [
            sum(turns_to_first(outcome, jobs, key) for key in range(level, 150, 3)) / 50 for level in range(3)
        ]
    for name in ("still", "on"):
        assert waits[name][2] < waits[name][1] < waits[name][0]
        assert waits[name][2] < waits["off"][2] / 4
    assert waits["on"][2] < waits["still"][2]


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_any_priorities_in_tiny_pools(page_size: int, depth: int) -> None:
    rng = random.Random(page_size + depth)
    jobs = [
        dataclasses.replace(job, priority=rng.choice((None, 0, 5, 30, -(1 << 63), (1 << 63) - 1)))
        for job in workload(rng, 100, 140, 0.5)
    ]
    schedule = {**ON, "retraction_policy": rng.choice(("length", "priority"))}
    world = {"num_pages": 320 // page_size, "page_size": page_size, "slots": 12, "depth": depth}
    go(jobs, schedule, conservativeness=0.05, eviction="priority", **world)


@pytest.mark.parametrize("schedule", [{}, ON])
def test_important_prefixes_stay_cached_whoever_starts_first(schedule: Mapping[str, Any]) -> None:
    """One page of five prompts is left over for a sixth: it takes that of the least important, not the oldest."""
    jobs = [Job(10 * i, prompt(i, 9), 1, ignore_eos=True, priority=p) for i, p in enumerate((5, 5, 1, None, 9))]
    jobs += [Job(60, prompt(9, 9), 1, ignore_eos=True, priority=7)]
    jobs += [Job(70 + 10 * i, job.prompt, 1, ignore_eos=True, priority=5) for i, job in enumerate(jobs[:2])]
    found = {}
    for eviction in ("lru", "priority"):
        outcome = go(jobs, schedule, num_pages=12, slots=1, eviction=eviction)
        found[eviction] = [outcome.finished[key].cached_tokens for key in (6, 7)]
    assert found["priority"] == [8, 8] and found["lru"] != [8, 8]

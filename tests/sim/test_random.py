"""Random workloads in small worlds: tokens equal those of a lone request, nothing leaks, starves or hangs."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.sim.drive import VOCAB, Job, Setup, run, verify


def workload(rng: random.Random, count: int, longest: int, spacing: float) -> list[Job]:
    """`count` jobs; many share prefixes of several lengths, some are aborted, some have stops."""
    prefixes = [[rng.randrange(VOCAB) for _ in range(rng.choice((7, 33, 64, 100)))] for _ in range(4)]
    jobs, turn = [], 0.0
    for _ in range(count):
        turn += rng.expovariate(1 / spacing) if spacing else 0
        prefix = rng.choice(prefixes)[: rng.randint(1, longest)] if rng.random() < 0.7 else []
        own = [rng.randrange(VOCAB) for _ in range(rng.randint(0 if prefix else 1, 40))]
        prompt = (prefix + own)[:longest]
        jobs.append(
            Job(
                arrival=int(turn),
                prompt=tuple(prompt),
                max_new=rng.choice((0, 1, 2, 8, 30, 60)),
                stream=rng.random() < 0.5,
                abort=int(turn) + rng.randint(0, 30) if rng.random() < 0.15 else None,
                stop=tuple("".join(chr(33 + rng.randrange(VOCAB)) for _ in range(rng.randint(1, 2))) for _ in range(2))
                if rng.random() < 0.2
                else (),
                stop_ids=(rng.randrange(VOCAB),) if rng.random() < 0.2 else (),
                ignore_eos=rng.random() < 0.1,
                minimum=rng.choice((0, 0, 2)),
                salt=rng.choice(("", "", "a")),
            )
        )
    return jobs


@pytest.mark.parametrize("page_size", [1, 4, 16, 64])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_thousands_of_requests_in_tiny_pools(page_size: int, depth: int) -> None:
    rng = random.Random(page_size * 10 + depth)
    retractions = 0
    for chunk in (16, 512, None):
        setup = Setup(320 // page_size, page_size, slots=12, depth=depth, chunk=chunk, conservativeness=0.05)
        jobs = workload(rng, 120, 140, rng.choice((0.0, 0.3, 1.0)))
        outcome = run(jobs, setup)
        verify(jobs, setup, outcome)
        retractions += outcome.retractions
    assert page_size == 64 or retractions > 0, "the pool was not tight enough to test anything"


@pytest.mark.parametrize("radix", [False, True])
def test_a_large_pool_needs_no_retraction(radix: bool) -> None:
    setup = Setup(num_pages=4096, page_size=4, slots=32, radix=radix, chunk=64)
    jobs = workload(random.Random(5), 200, 140, 0.2)
    outcome = run(jobs, setup)
    verify(jobs, setup, outcome)
    assert outcome.retractions == 0


jobs_strategy = st.lists(
    st.builds(
        lambda arrival, group, shared, own, max_new, stream, abort, priority: Job(
            arrival=arrival,
            prompt=tuple((group * 31 + i) % VOCAB for i in range(shared))
            + tuple((own * 7 + i * i) % VOCAB for i in range(own)),
            max_new=max_new,
            stream=stream,
            abort=None if abort is None else arrival + abort,
            priority=priority,
        ),
        arrival=st.integers(0, 20),
        group=st.integers(0, 2),
        shared=st.sampled_from((1, 16, 32, 40, 64, 96)),
        own=st.integers(0, 20),
        max_new=st.sampled_from((0, 1, 5, 20, 50)),
        stream=st.booleans(),
        abort=st.none() | st.integers(0, 25),
        priority=st.none() | st.integers(-20, 20),
    ),
    min_size=1,
    max_size=24,
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    jobs=jobs_strategy,
    page_size=st.sampled_from((1, 4, 16, 64)),
    tokens=st.sampled_from((192, 256, 512)),
    depth=st.integers(0, 2),
    chunk=st.sampled_from((16, 512, None)),
    slots=st.sampled_from((1, 3, 8)),
    radix=st.booleans(),
    conservativeness=st.sampled_from((0.0, 1.0)),
    policy=st.sampled_from(("fcfs", "lpm", "dfs-weight", "hrrn", "lof", "random")),
    priorities=st.booleans(),
)
def test_any_workload(
    jobs: list[Job],
    page_size: int,
    tokens: int,
    depth: int,
    chunk: int | None,
    slots: int,
    radix: bool,
    conservativeness: float,
    policy: str,
    priorities: bool,
) -> None:
    on = {"enable_priority_scheduling": True, "retraction_policy": "priority"}
    schedule = on if priorities and policy in ("fcfs", "lof") else {}
    world = (tokens // page_size, page_size, slots, 192, depth, chunk, radix, conservativeness)
    setup = Setup(*world, policy=policy, schedule=schedule)
    verify(jobs, setup, run(jobs, setup))

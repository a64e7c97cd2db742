"""Every queue policy in the real scheduler: same tokens, shared prefixes once, and who may starve."""

import random

import pytest

from radixlm.scheduler.policies.table import POLICIES
from tests.sim.drive import VOCAB, Job, Outcome, Setup, run, verify
from tests.sim.test_random import workload

NAMES = POLICIES.names()


def prompt(seed: int, length: int) -> tuple[int, ...]:
    rng = random.Random(seed)
    return tuple(rng.randrange(VOCAB) for _ in range(length))


@pytest.mark.parametrize("policy", NAMES)
def test_the_order_changes_no_token(policy: str) -> None:
    setup = Setup(num_pages=80, page_size=4, slots=6, policy=policy, conservativeness=0.05)
    jobs = workload(random.Random(7), 60, 140, 0.5)
    verify(jobs, setup, run(jobs, setup))


@pytest.mark.parametrize("policy", NAMES)
def test_a_shared_prefix_that_arrives_together_is_computed_once(policy: str) -> None:
    prefix = prompt(1, 512)
    jobs = [Job(0, (*prefix, i, *prompt(100 + i, 9)), 4, ignore_eos=True) for i in range(16)]
    setup = Setup(num_pages=2048, page_size=1, slots=16, context=600, chunk=128, policy=policy)
    outcome = run(jobs, setup)
    verify(jobs, setup, outcome)
    assert outcome.computed_tokens == 512 + 16 * (10 + 3)


def under_short_traffic(policy: str, every: int) -> tuple[list[Job], Outcome]:
    """300 turns with a short request every `every` turns; the last job, from turn 50 on, needs most of the pool."""
    jobs = [Job(turn, prompt(1000 + turn, 12), 6, ignore_eos=True) for turn in range(0, 300, every)]
    jobs.append(Job(50, prompt(10, 200), 10, ignore_eos=True))
    setup = Setup(num_pages=70, page_size=4, slots=8, chunk=16, policy=policy)
    outcome = run(jobs, setup)
    verify(jobs, setup, outcome)
    return jobs, outcome


@pytest.mark.parametrize("policy", NAMES)
def test_a_long_prompt_finishes_under_steady_short_traffic(policy: str) -> None:
    jobs, outcome = under_short_traffic(policy, every=2)
    assert outcome.end_turn[len(jobs) - 1] < 50 + 60
    assert max(outcome.end_turn[key] - job.arrival for key, job in enumerate(jobs[:-1])) < 60


def test_first_come_bounds_the_wait_even_under_overload() -> None:
    jobs, outcome = under_short_traffic("fcfs", every=1)
    ahead = sum(len(job.prompt) for job in jobs[:50])  # all that had come before, at 8 prompt tokens a turn or more
    assert outcome.end_turn[len(jobs) - 1] < 50 + (ahead + 200) // 8
    _, other = under_short_traffic("shortest-prefill-first", every=1)
    assert other.end_turn[len(jobs) - 1] > 300, "the load is no overload: this shows nothing"

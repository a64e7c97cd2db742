"""The arrival process, and how a load is split over client processes."""

import io
import itertools
import sys

import pytest

from radixlm.benchmark.backends import BodySettings
from radixlm.benchmark.http1 import Target
from radixlm.benchmark.load import Plan, arrivals
from radixlm.benchmark.outcome import Request
from radixlm.benchmark.workers import split_plan, worker_main


def test_arrivals_are_a_poisson_process() -> None:
    times = arrivals(20_000, 50.0, 3)
    assert times[0] == 0.0 and times == sorted(times) and len(times) == 20_000
    gaps = [b - a for a, b in itertools.pairwise(times)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(0.02, rel=0.03)
    assert (sum((g - mean) ** 2 for g in gaps) / len(gaps)) ** 0.5 == pytest.approx(mean, rel=0.05)
    assert sum(g > mean for g in gaps) / len(gaps) == pytest.approx(0.3679, rel=0.05)  # 1 / e
    assert times == arrivals(20_000, 50.0, 3) != arrivals(20_000, 50.0, 4)


def test_all_at_once_and_few() -> None:
    assert arrivals(3, float("inf"), 0) == [0.0, 0.0, 0.0]
    assert arrivals(1, 2.0, 0) == [0.0]
    assert arrivals(0, 2.0, 0) == []


@pytest.mark.parametrize(("processes", "limit"), [(1, 4), (3, 7), (4, 4), (3, None)])
def test_a_split_plan_is_the_same_load(processes: int, limit: int | None) -> None:
    times = arrivals(11, 5.0, 0)
    requests = [Request([i], 1, 1) for i in range(11)]
    body = BodySettings("m")
    parts = split_plan(Plan(Target("h", 1), "sglang", body, requests, list(range(11)), times, limit), processes)
    together = sorted(
        (index, request.prompt, due)
        for part in parts
        for index, request, due in zip(part.indices, part.requests, part.arrivals_s, strict=True)
    )
    assert together == [(i, [i], times[i]) for i in range(11)]
    assert [part.max_concurrency is None for part in parts] == [limit is None] * processes
    if limit is not None:
        assert sum(part.max_concurrency or 0 for part in parts) == limit
        assert min(part.max_concurrency or 0 for part in parts) >= 1


@pytest.mark.parametrize("words", [["--bogus"], []])
def test_a_worker_that_is_told_nothing(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    assert worker_main(words) == 2 and "radixlm bench starts this" in capsys.readouterr().err

"""Goodput against hand-made outcomes, and a sweep over the stub, whose speed is known."""

import json
import random
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from radixlm.benchmark.outcome import Outcome
from radixlm.benchmark.overload import falls_behind
from radixlm.benchmark.slo import Goodput, Slo
from radixlm.benchmark.svg import Series, line_chart
from radixlm.benchmark.sweep import Point, main, verdict
from tests.unit.benchmark.fakes import stub_server

IDS = ["--dataset-name", "random-ids", "--vocab-size", "5000", "--tokenize-prompt", "--random-range-ratio", "1.0"]


def outcome(ttft_s: float, gaps_s: list[float], late_s: float = 0.0, error: str | None = None) -> Outcome:
    events = [10.0 + late_s + ttft_s]
    for gap_s in gaps_s:
        events.append(events[-1] + gap_s)
    tokens = [1] * len(events)
    made = Outcome(0, due_s=10.0, sent_s=10.0 + late_s, end_s=events[-1], event_s=events, event_tokens=tokens)
    made.output_tokens, made.error = len(events), error
    return made


def test_bounds_hold_for_each_request() -> None:
    quick, slow_start = outcome(0.1, [0.02] * 9), outcome(0.9, [0.02] * 9)
    stalled, failed = outcome(0.1, [0.01] * 8 + [0.11]), outcome(0.1, [0.02] * 9, error="broken")
    late = outcome(0.1, [0.02] * 9, late_s=1.0)
    every = [quick, slow_start, stalled, failed, late]
    assert [Slo(slo_ttft_ms=500).met(one, True) for one in every] == [True, False, True, False, False]
    assert [Slo(slo_ttft_ms=500).met(one, False) for one in every] == [True, False, True, False, True]
    assert [Slo(slo_tpot_ms=21).met(one, True) for one in every] == [True, True, False, False, True]
    assert [Slo(slo_itl_ms=50).met(one, True) for one in every] == [True, True, False, False, True]
    assert [Slo(slo_e2e_ms=600).met(one, True) for one in every] == [True, False, True, False, False]
    good = Goodput.of(Slo(slo_ttft_ms=500, slo_itl_ms=50), every, 2.0, True)
    assert (good.per_s, good.attainment) == (0.5, 0.2)
    assert Goodput.of(Slo(slo_ttft_ms=500), [], 0.0, True) == Goodput(0.0, 0.0)


def queue(rate: float, count: int, seed: int, service_s: float = 0.1, failed: int = 0) -> list[Outcome]:
    """One server that takes 0.5 to 1.5 times `service_s` for each, arrivals of a Poisson process."""
    rng = random.Random(seed)
    made, due_s, free_s = [], 0.0, 0.0
    for index in range(count):
        due_s += rng.expovariate(rate)
        free_s = max(free_s, due_s) + service_s * rng.uniform(0.5, 1.5)
        made.append(Outcome(index, due_s, due_s, free_s, error="refused" if index < failed else None))
    return made


def test_only_a_queue_that_grows_has_fallen_behind() -> None:
    assert all(falls_behind(queue(rate, 100, seed)) for rate in (15.0, 30.0) for seed in range(20))
    accused = sum(
        falls_behind(queue(rate, count, seed)) for rate in (0.5, 5.0) for count in (8, 40) for seed in range(50)
    )
    assert accused == 0
    assert not falls_behind(queue(50.0, 8, 1))  # too few to say
    assert falls_behind(queue(1.0, 40, 1, failed=10)) and not falls_behind([])


def point(load: float, attainment: float, behind: bool = False) -> Point:
    return Point(load, load, 0.0, load * attainment, (0.0, 0.0), attainment, 0.0, 0.0, 0, behind)


def test_verdict() -> None:
    points = [point(1, 1), point(2, 0.95, behind=True), point(3, 0.95), point(4, 0.3, behind=True)]
    said = verdict(points, Slo(slo_ttft_ms=1), True)
    assert "up to rate 3" in said and "from rate 4 on less comes back" in said and "highest" not in said
    assert "highest concurrency tried" in verdict(points[:2], Slo(slo_ttft_ms=1), False)
    assert "try lower ones" in verdict(points[3:], Slo(slo_ttft_ms=1), True)
    said = verdict([point(1, 1), point(2, 0.75), point(8, 0.95)], Slo(slo_ttft_ms=1), True)
    assert "up to rate 1," in said and "8 keeps them though a lower rate does not" in said and "highest" not in said


def test_a_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """20 tokens at 200/s are 0.1 s: 4 at a time make 40 requests/s and 12 make 120, all within the bound."""
    lines, plot = tmp_path / "out.jsonl", tmp_path / "plot.svg"
    words = [*IDS, "--num-prompts", "24", "--random-input-len", "30", "--random-output-len", "20", "--disable-tqdm"]
    with stub_server("--events-per-s", "200") as port:
        words += ["--port", str(port), "--warmup-requests", "0", "--output-file", str(lines)]
        sweep = ["--max-concurrencies", "12", "4", "--slo-e2e-ms", "10000", "--plot", str(plot)]
        assert main([*sweep, *words]) == 0
    shown = capsys.readouterr().out
    assert "up to concurrency 12" in shown
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [row["max_concurrency"] for row in rows] == [4, 12] and [row["seed"] for row in rows] == [42, 43]
    assert all(row["flush_cache"] and row["slo_attainment"] == 1.0 for row in rows)
    assert rows[0]["goodput"] == pytest.approx(24 / rows[0]["duration"]) and rows[0]["goodput"] < rows[1]["goodput"]
    ElementTree.fromstring(plot.read_text())


@pytest.mark.parametrize("words", [["--slo-ttft-ms", "1"], ["--request-rates", "1"], ["--request-rates", "0"]])
def test_what_makes_no_sweep(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2 and capsys.readouterr().err.startswith("error:")


def test_chart_of_anything() -> None:
    text = line_chart("a < b", "x", "y", [1.0, 2.0, 4.0], [Series("s", [0.0, None, 7.0]), Series("t", [1, 2, 3])])
    root = ElementTree.fromstring(text)
    lines = root.findall("{http://www.w3.org/2000/svg}polyline")
    assert [len(line.attrib["points"].split()) for line in lines] == [2, 3]
    ElementTree.fromstring(line_chart("", "", "", [3.0], [Series("s", [0.0])]))

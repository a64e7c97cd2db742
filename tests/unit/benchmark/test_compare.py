"""Ratios with their spread, and what must be the same for them to mean anything."""

import json
from pathlib import Path
from typing import Any

import pytest

from radixlm.benchmark.compare import copies, distinct, main, not_comparable, ratio_of, ratios, settings_that_differ
from radixlm.benchmark.results import Result
from tests.unit.benchmark.corpus import radixlm, vllm


def runs(*throughputs: float, **changes: Any) -> list[Result]:
    return [Result("radixlm", f"f:{i}", radixlm() | {"median_ttft_ms": t} | changes) for i, t in enumerate(throughputs)]


def test_ratio_and_its_error() -> None:
    one = ratio_of("x", [10.0, 12.0, 14.0], [15.0, 18.0, 21.0], True)
    assert one.ratio == 1.5 and one.margin == pytest.approx(
        3.18 * (4 / 3 + 9 / 3) ** 0.5 / 12
    )  # 3.45 degrees of freedom
    assert one.verdict == "within the spread"  # at three runs two standard errors would be too few
    close = ([11.0, 12.0, 13.0], [17.0, 18.0, 19.0])
    assert ratio_of("x", *close, True).verdict == "better" and ratio_of("x", *close, False).verdict == "worse"
    assert ratio_of("x", [10.0, 10.0], [10.0, 10.0], True).verdict == "the same"
    assert ratio_of("x", [10.0, 14.0], [11.0, 14.0], True).verdict == "within the spread"
    assert ratio_of("x", [10.0], [20.0, 21.0], True).verdict == "spread unknown"


def test_every_number_that_both_have() -> None:
    found = {one.label: one for one in ratios(runs(50.0, 51.0, 49.0), runs(25.0, 26.0, 24.0))}
    assert found["median TTFT ms"].ratio == 0.5 and found["median TTFT ms"].verdict == "better"
    assert found["requests/s"].verdict == "the same" and found["median E2E ms"].ratio == 1.0
    theirs = [Result("vllm", "v", vllm())]
    assert {one.label for one in ratios(runs(50.0), theirs)} >= {"median E2E ms", "p99 TPOT ms"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"random_input_len": 1024}, "input length: 512 against 1024"),
        ({"request_rate": 20.0}, "request rate: 10.0 against 20.0"),
        ({"max_concurrency": 8}, None),  # not set on the other side
        ({"ignore_eos": False}, "ignore_eos: True against False"),
        ({"total_output_tokens": 128_000}, "mean output length: 128 against 107 tokens"),
        ({"backend": "sglang-oai"}, "ITL: one side counts chunks"),
        ({"output_throughput": 1.0}, "B f:0: totals"),
        ({"seed": 43}, None),
    ],
)
def test_what_is_not_comparable(change: dict[str, Any], said: str | None) -> None:
    obstacles = not_comparable(runs(50.0), runs(50.0, **change))
    assert (not obstacles) if said is None else any(line.startswith(said) for line in obstacles)


def test_copies_are_no_repetitions() -> None:
    three, faster = runs(50.0, 50.0, 50.0), runs(49.5, 49.5, 49.5)
    assert len(distinct(three)) == 1 and [one.where for one in distinct(runs(1.0, 2.0, 1.0))] == ["f:0", "f:1"]
    assert all(one.verdict == "spread unknown" for one in ratios(distinct(three), distinct(faster)))
    assert copies(three, faster) == ["A holds 2 runs twice; each counts once", "B holds 2 runs twice; each counts once"]
    assert "a run of A is also in B" in copies(runs(1.0), runs(1.0))
    assert copies(runs(1.0, 2.0), runs(3.0))[0].startswith("all runs of A have seed 42")


def test_a_side_that_mixes_loads() -> None:
    a = [*runs(1.0), *runs(2.0, backend="sglang-oai", request_rate=1.0, random_input_len=4096)]
    said = not_comparable(a, a)
    for words in ("backend: sglang, sglang-oai", "input length: 4096, 512", "request rate: 1.0, 10.0"):
        assert f"A mixes loads, {words}" in said and f"B mixes loads, {words}" in said


def test_settings_that_differ_are_told() -> None:
    info = {"chunked_prefill_size": 4096, "pid": 3, "internal_states": [{}], "load_format": "auto"}
    lines = settings_that_differ(runs(1.0), runs(1.0, model="n", server_info=info | {"mem_fraction_static": 0.9}))
    assert lines == ["model: m against n", "server mem_fraction_static: 0.85 against 0.9"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    a.write_text(json.dumps(radixlm()))
    b.write_text(json.dumps(radixlm() | {"random_output_len": 64}))
    assert main([str(a), str(a)]) == 0
    assert "may be chance" in capsys.readouterr().out
    assert main([str(a), str(b)]) == 1
    assert "not comparable: output length: 128 against 64" in capsys.readouterr().out
    assert main([str(a)]) == 2

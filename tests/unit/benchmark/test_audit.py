"""Every rule finds its file, and leaves the good one alone; the three formats are read alike."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from radixlm.base.errors import ConfigError
from radixlm.benchmark.audit import main
from radixlm.benchmark.audit_rules import audit
from radixlm.benchmark.results import Result, read_results
from tests.unit.benchmark.corpus import MAKERS, REQUESTS, TTFTS

Change = Callable[[dict[str, Any]], None]


def put(**values: Any) -> Change:
    return lambda raw: raw.update(values)


def scaled(raw: dict[str, Any], factor: float) -> None:
    """The same rates over another time."""
    for key in ("duration", "completed", "total_input_tokens", "total_output_tokens", "num_prompts"):
        if raw.get(key) is not None:
            raw[key] = raw[key] * factor
    for key in ("server_prompt_tokens", "total_requested_output_tokens", "total_output_tokens_retokenized"):
        if raw.get(key) is not None:
            raw[key] = raw[key] * factor
    for key in ("input_lens", "output_lens", "ttfts", "errors", "itls", "generated_texts"):
        if key in raw:
            raw[key] = raw[key][: int(REQUESTS * factor)]
    raw["completed"] = int(raw["completed"])


def shorter(raw: dict[str, Any]) -> None:
    raw["output_lens"] = [96] * REQUESTS
    raw["total_output_tokens"] = 96 * REQUESTS
    raw["output_throughput"] *= 0.75


def halved(raw: dict[str, Any]) -> None:
    raw |= {"random_range_ratio": 0.0, "input_lens": [260] * REQUESTS, "total_input_tokens": 260 * REQUESTS}
    raw |= {"input_throughput": 260 * REQUESTS / 120, "server_prompt_tokens": 260 * REQUESTS}


def some_failed(share: float) -> Change:
    def change(raw: dict[str, Any]) -> None:
        bad = int(REQUESTS * share)
        raw["errors"] = ["HTTP 500"] * bad + [""] * (REQUESTS - bad)
        raw["output_lens"] = [0] * bad + [128] * (REQUESTS - bad)
        raw |= {"completed": REQUESTS - bad, "failed": bad, "total_output_tokens": 128 * (REQUESTS - bad)}
        raw |= {"request_throughput": (REQUESTS - bad) / 120, "output_throughput": 128 * (REQUESTS - bad) / 120}
        raw |= {"concurrency": (REQUESTS - bad) / 120 * 1.3}

    return change


def without(*keys: str) -> Change:
    return lambda raw: [raw.pop(key, None) for key in keys] and None


SLOW_START = put(ttfts=[1.5, *TTFTS[1:]])
GROWING = put(request_rate=20.0, ttfts=[0.05 + 0.02 * i for i in range(REQUESTS)])
BURST = put(request_rate="inf")
SGLANG_BURST = put(request_rate=None)  # as readers that make null of Infinity leave it
# 20 requests at 8 per second should be over in 2.5 s and an answer; they took 9 s at 8 at once.
HELD = put(
    duration=9.0,
    completed=20,
    request_rate=8.0,
    max_concurrency=8,
    concurrency=6.8,
    request_throughput=2.22,
    errors=[""] * 20,
    ttfts=TTFTS[:20],
    p99_e2e_latency_ms=3300.0,
)
UNSTREAMED = put(stream=False, mean_ttft_ms=1300.0, mean_itl_ms=0.0)
OPENAI_CHUNKS = put(backend="sglang-oai", mean_itl_ms=39.2)

TRIGGERS: list[tuple[str, str, Change]] = [
    ("failures-unknown", "sglang", without("errors", "ttfts")),
    ("failures", "radixlm", some_failed(0.05)),
    ("failures", "sglang", some_failed(0.2)),
    ("failures", "vllm", some_failed(0.05)),
    ("totals", "radixlm", put(output_throughput=2000.0)),
    ("totals", "sglang", put(total_output_tokens=130_000)),
    ("totals", "vllm", put(request_throughput=11.0)),
    ("totals", "sglang", put(concurrency=20.0)),
    ("details", "radixlm", put(mean_ttft_ms=5.0)),
    ("details", "sglang", put(p99_itl_ms=5.0)),
    ("fields", "radixlm", put(mean_ttft_ms=None)),  # as NaN is read
    ("fields", "sglang", put(duration="abc")),
    ("fields", "vllm", put(mean_tpot_ms=-1.0)),
    ("fields", "radixlm", without("completed")),
    ("nothing-succeeded", "sglang", put(completed=0)),
    ("inputs-too-short", "sglang", put(random_input_len=2048)),
    ("order", "radixlm", put(mean_ttft_ms=1400.0)),
    ("order", "vllm", put(p99_tpot_ms=1.0)),
    ("lengths-not-reached", "radixlm", shorter),
    ("lengths-not-reached", "sglang", shorter),
    ("range-ratio", "sglang", halved),
    ("range-ratio", "radixlm", halved),
    ("cache-unknown", "sglang", without("cache_report")),
    ("warm-cache", "radixlm", put(cache_hit_rate=0.4)),
    ("warm-cache", "sglang", put(cache_report={"cache_hit_rate_pct": 97.0})),
    ("warm-up-counted", "sglang", SLOW_START),
    ("warm-up-counted", "vllm", SLOW_START),
    ("no-warm-up", "radixlm", put(warmup_requests=0)),
    ("client-saturated", "radixlm", put(client_cpu_percent=97.0)),
    ("client-unknown", "sglang", lambda raw: raw.update(duration=30.0, **{k: 4 * raw[k] for k in RATES})),
    ("few-requests", "radixlm", lambda raw: scaled(raw, 0.1)),
    ("few-requests", "vllm", lambda raw: scaled(raw, 0.1)),
    ("above-saturation", "radixlm", GROWING),
    ("above-saturation", "vllm", GROWING),
    ("above-saturation", "sglang", HELD),
    ("burst", "radixlm", BURST),
    ("burst", "sglang", SGLANG_BURST),
    ("burst", "vllm", BURST),
    ("client-queue", "radixlm", put(mean_client_queue_ms=700.0)),
    ("usage-missing", "radixlm", put(output_lens_assumed=REQUESTS)),
    ("usage-missing", "sglang", put(backend="sglang-oai", total_output_tokens_retokenized=70 * REQUESTS)),
    ("short-run", "radixlm", lambda raw: scaled(raw, 0.05)),
    ("short-run", "sglang", lambda raw: scaled(raw, 0.05)),
    ("itl-per-chunk", "sglang", OPENAI_CHUNKS),
    ("itl-per-chunk", "vllm", put(mean_itl_ms=39.2)),
    ("not-streamed", "radixlm", UNSTREAMED),
    ("prompt-lengths", "radixlm", put(server_prompt_tokens=600 * REQUESTS)),
    ("accept-length", "sglang", put(accept_length=3.1)),
    ("dummy-weights", "sglang", put(server_info={"load_format": "dummy"})),
    ("server-unknown", "radixlm", put(server_info=None)),
]
RATES = ("request_throughput", "input_throughput", "output_throughput", "concurrency")
# What a good file of each client still leaves open.
GOOD: dict[str, set[str]] = {"radixlm": set(), "sglang": set(), "vllm": {"cache-unknown", "server-unknown"}}


def rules(source: str, change: Change = lambda raw: None) -> dict[str, str]:
    raw = MAKERS[source]()
    change(raw)
    return {finding.rule: finding.severity for finding in audit(Result(source, "here", raw))}  # type: ignore[arg-type]


@pytest.mark.parametrize("source", MAKERS)
def test_a_good_run_is_left_alone(source: str) -> None:
    found = rules(source)
    assert set(found) == GOOD[source] and set(found.values()) <= {"note"}


@pytest.mark.parametrize(
    ("rule", "source", "change"), TRIGGERS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_each_rule_finds_its_file(rule: str, source: str, change: Change) -> None:
    assert rule in rules(source, change) and rule not in rules(source).keys() - GOOD[source]


def test_how_bad() -> None:
    assert rules("sglang", some_failed(0.2))["failures"] == "wrong"
    assert rules("radixlm", some_failed(0.05))["failures"] == "misleading"
    assert rules("radixlm", lambda raw: scaled(raw, 0.4))["few-requests"] == "note"
    assert rules("radixlm", lambda raw: scaled(raw, 0.1))["few-requests"] == "misleading"
    assert rules("radixlm", lambda raw: scaled(raw, 0.4))["short-run"] == "note"
    assert rules("radixlm", lambda raw: scaled(raw, 0.05))["short-run"] == "misleading"


def test_what_only_looks_like_a_finding() -> None:
    chat = put(backend="sglang-oai-chat", cache_hit_rate=0.05, server_prompt_tokens=540 * REQUESTS)
    found = rules("radixlm", chat)  # a chat template is the same before every prompt
    assert "warm-cache" not in found and found["prompt-lengths"] == "note"
    assert "warm-cache" not in rules("radixlm", put(cache_hit_rate=0.4, dataset_name="generated-shared-prefix"))
    assert "burst" not in rules("radixlm", put(request_rate="inf", max_concurrency=16))
    assert "itl-per-chunk" not in rules("sglang", put(mean_itl_ms=39.2))  # the native one counts tokens
    assert "range-ratio" not in rules("sglang", put(random_range_ratio=0.9))
    few = put(duration=3.6, completed=20, num_prompts=20, request_rate=8.0, request_throughput=5.6)
    assert "above-saturation" not in rules("radixlm", few)  # 20 arrivals at 8 per second take 2.5 s, give or take 0.6
    assert "fields" not in rules("radixlm", put(slo_ttft_ms=None))
    assert "few-requests" not in rules("sglang", put(completed=0))


def test_evidence_holds_the_numbers() -> None:
    raw = MAKERS["radixlm"]()
    raw["cache_hit_rate"] = 0.413
    (finding,) = audit(Result("radixlm", "here", raw))
    assert "41.3 %" in finding.evidence and "--flush-cache" in finding.advice


@pytest.mark.parametrize("source", MAKERS)
def test_files_are_read_and_told_apart(source: str, tmp_path: Path) -> None:
    raw = MAKERS[source]()
    lines, whole = tmp_path / "lines.jsonl", tmp_path / "whole.json"
    lines.write_text(json.dumps(raw) + "\n\n" + json.dumps(raw) + "\n")
    whole.write_text(json.dumps(raw, indent=2))
    results = read_results(str(lines))
    assert [result.source for result in results] == [source, source] and results[1].where.endswith("lines.jsonl:3")
    assert [result.source for result in read_results(str(whole))] == [source]
    assert results[0].completed == REQUESTS and results[0].failed == 0 and results[0].rate_per_s == 10.0
    assert results[0].latency("e2e_latency", "p99") == 1380.0


def test_infinity_and_files_that_are_no_results(tmp_path: Path) -> None:
    file = tmp_path / "f.jsonl"
    file.write_text(json.dumps(MAKERS["sglang"]() | {"request_rate": float("inf"), "accept_length": float("nan")}))
    (result,) = read_results(str(file))
    assert result.rate_per_s == float("inf") and result.number("accept_length") is None
    for content in ("", "[1]", '{"a": 1}', "not json", '{"duration": 1}'):
        file.write_text(content)
        with pytest.raises(ConfigError, match=r"f\.jsonl"):
            read_results(str(file))
    with pytest.raises(ConfigError, match="cannot read"):
        read_results(str(tmp_path / "absent"))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    good.write_text(json.dumps(MAKERS["radixlm"]()))
    bad.write_text(json.dumps(MAKERS["radixlm"]() | {"client_cpu_percent": 99.0}))
    assert main([str(good)]) == 0 and "0 findings" in capsys.readouterr().out
    assert main([str(good), str(bad)]) == 1
    shown = capsys.readouterr().out
    assert "MISLEADING client-saturated" in shown and "99 %" in shown and "do:" in shown
    assert main(["--json", str(bad)]) == 1
    assert json.loads(capsys.readouterr().out)["findings"][0]["rule"] == "client-saturated"
    assert main([]) == 2 and main(["--what", str(good)]) == 2

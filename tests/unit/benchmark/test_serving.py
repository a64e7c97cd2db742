"""Whole runs against the stub in a process of its own, good and bad."""

import asyncio
import json
import math
import socket
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from radixlm.base.errors import RadixError
from radixlm.benchmark.http1 import HttpClient, Target
from radixlm.benchmark.options import parse
from radixlm.benchmark.report import output_file_name, without_secrets
from radixlm.benchmark.scoring import Scorer
from radixlm.benchmark.serving import main, wait_ready
from tests.unit.benchmark.fakes import stub_server

STATISTICS = ("mean", "median", "std", "p90", "p95", "p99")
LATENCIES = [f"{stat}_{name}_ms" for name in ("e2e_latency", "ttft", "tpot", "itl") for stat in STATISTICS]
RUN_KEYS = """
    tag backend dataset_name request_rate max_concurrency sharegpt_output_len random_input_len random_output_len
    random_range_ratio server_info duration completed total_input_tokens total_input_text_tokens
    total_input_vision_tokens total_output_tokens total_output_tokens_retokenized request_throughput input_throughput
    output_throughput total_throughput concurrency accept_length max_output_tokens_per_s max_concurrent_requests
"""
SGLANG_KEYS = {*RUN_KEYS.split(), *LATENCIES}
DETAIL_KEYS = {"input_lens", "output_lens", "ttfts", "itls", "generated_texts", "errors"}
OWN_KEYS = {"client_cpu_percent", "seed", "warmup_requests", "failed", "errors_sample", "cache_hit_rate", "max_itl_ms"}
IDS = ["--dataset-name", "random-ids", "--vocab-size", "5000", "--tokenize-prompt", "--random-range-ratio", "1.0"]
SMALL = [*IDS, "--num-prompts", "24", "--random-input-len", "30", "--random-output-len", "20"]


def run(port: int, output: Path, *words: str) -> tuple[int, dict[str, Any]]:
    """Exit status and the last line written."""
    status = main(["--port", str(port), "--output-file", str(output), *words])
    return status, json.loads(output.read_text().splitlines()[-1]) if output.exists() else {}


@pytest.mark.parametrize("backend", ["sglang", "sglang-oai", "vllm"])
def test_a_paced_run(backend: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The stub gives every stream 100 events/s, so what has to come out is known."""
    with stub_server("--events-per-s", "100") as port:
        words = ["--backend", backend, "--max-concurrency", "12", "--tag", "t", "--output-details", "--flush-cache"]
        status, line = run(port, tmp_path / "out.jsonl", *SMALL, *words)
    assert status == 0
    assert set(line) >= SGLANG_KEYS | DETAIL_KEYS | OWN_KEYS
    assert (line["backend"], line["tag"], line["completed"], line["failed"]) == (backend, "t", 24, 0)
    assert (line["total_input_tokens"], line["server_prompt_tokens"], line["total_output_tokens"]) == (720, 720, 480)
    assert line["request_rate"] == "inf" and line["server_info"]["version"] == "stub"
    assert all(math.isfinite(line[key]) for key in LATENCIES)
    assert 0.38 < line["duration"] < 2.0  # two waves of 20 steps of 10 ms
    assert line["median_tpot_ms"] == pytest.approx(10, rel=0.2) == line["median_itl_ms"]
    assert line["output_throughput"] == pytest.approx(480 / line["duration"])
    assert 6 < line["concurrency"] <= 12
    assert line["mean_client_queue_ms"] > 50  # the second wave waited for the first
    assert line["input_lens"] == [30] * 24 and line["output_lens"] == [20] * 24 and line["errors"] == [""] * 24
    assert all(len(gaps) == 19 for gaps in line["itls"])
    assert line["generated_texts"][0] == " tok" * 20
    assert line["cache_hit_rate"] == 0.0 and line["output_lens_assumed"] == 0
    shown = capsys.readouterr().out
    for label in ("Serving Benchmark Result", "Successful requests:", "P99 ITL (ms):", "Max ITL (ms):", "Client CPU"):
        assert label in shown
    assert "warning" not in shown
    assert all(len(row) <= 60 for row in shown.splitlines() if row.startswith(("Mean", "P9", "Total", "=")))


def test_client_processes_share_one_run(tmp_path: Path) -> None:
    with stub_server("--events-per-s", "200", "--tokens-per-event", "3", "--incremental") as port:
        words = ["--client-processes", "3", "--request-rate", "100", "--output-details", "--cache-report"]
        status, line = run(port, tmp_path / "out.jsonl", *SMALL, *words)
    assert status == 0 and line["client_processes"] == 3 and line["completed"] == 24
    assert line["total_output_tokens"] == 480 and line["generated_texts"] == [" tok" * 20] * 24
    assert line["input_lens"] == [30] * 24 and all(len(gaps) == 17 for gaps in line["itls"])
    assert line["cache_report"]["total_prompt_tokens"] == 720 and line["cache_report"]["cache_hit_rate_pct"] == 0.0
    assert 0 < line["client_cpu_percent"] < 100


def test_no_streaming(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with stub_server() as port:
        for backend in ("sglang", "sglang-oai"):
            status, line = run(port, tmp_path / "out.jsonl", *SMALL, "--backend", backend, "--disable-stream")
            assert status == 0 and line["total_output_tokens"] == 480 and line["mean_itl_ms"] == 0.0
            assert line["mean_ttft_ms"] == line["mean_e2e_latency_ms"] > 0
            assert "nothing was streamed" in capsys.readouterr().out


def test_failures_are_counted_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The warm-up is the stub's first answer; then each 5th of all fails, each 7th is cut."""
    with stub_server("--fail-every", "5", "--cut-every", "7") as port:
        words = ["--output-details", "--max-concurrency", "1"]
        status, line = run(port, tmp_path / "out.jsonl", *SMALL, *words)
    assert status == 0
    assert (line["completed"], line["failed"]) == (16, 8)
    assert [i for i, e in enumerate(line["errors"]) if "HTTP 500" in e] == [3, 8, 13, 18, 23]
    assert [i for i, e in enumerate(line["errors"]) if "connection closed" in e] == [5, 12, 19]
    assert sum(1 for n in line["output_lens"] if n) == 16 and line["total_output_tokens"] == 16 * 20
    assert any("failing as asked" in e for e in line["errors_sample"])
    shown = capsys.readouterr().out
    assert "8 of 24 requests failed" in shown
    assert next(row for row in shown.splitlines() if row.startswith("Failed requests:")).split()[-1] == "8"


def test_a_failed_warm_up_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with stub_server("--fail-every", "1") as port:
        status, line = run(port, tmp_path / "out.jsonl", *SMALL)
        assert (status, line) == (1, {})
        assert "the warm-up failed: HTTP 500" in capsys.readouterr().err
        status, line = run(port, tmp_path / "out.jsonl", *SMALL, "--warmup-requests", "0")
        assert status == 1 and (line["completed"], line["failed"]) == (0, 24)
        assert line["mean_ttft_ms"] == 0.0


def test_nobody_listens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: connections are refused
        port = taken.getsockname()[1]
        status, _ = run(port, tmp_path / "out.jsonl", *SMALL, "--ready-check-timeout-sec", "0.5")
        assert status == 1 and "no answer from" in capsys.readouterr().err
        words = ["--ready-check-timeout-sec", "0", "--model", "m", "--warmup-requests", "0"]
        status, line = run(port, tmp_path / "out.jsonl", *SMALL, *words)
        assert status == 1 and line["failed"] == 24 and "cannot connect" in line["errors_sample"][0]


class Refusing(HttpClient):
    """A server that wants a key."""

    async def fetch(self, method: str, path: str, timeout_s: float, body: bytes = b"") -> tuple[int, bytes]:
        return 401, b'{"error":"Unauthorized"}'


def test_a_refused_key_is_told_at_once() -> None:
    client = Refusing(Target("there", 1))
    for ask in (wait_ready(client, 60.0), Scorer(client).longest_tokens()):
        with pytest.raises(RadixError, match=r"http://there:1.* wants a key \(status 401\): give --api-key"):
            asyncio.run(asyncio.wait_for(ask, 0.5))


def test_a_wait_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RadixError, match="no answer"):
        asyncio.run(wait_ready(HttpClient(Target("127.0.0.1", 1)), 1.5))
    assert capsys.readouterr().err == "waiting for http://127.0.0.1:1, 1.5 s at most\n"


def test_as_a_command(tmp_path: Path) -> None:
    """No torch and no transformers, and a file named as SGLang names it."""
    code = (
        "import sys; from radixlm.benchmark.serving import main; status = main(sys.argv[1:]); "
        "assert not {'torch', 'transformers'} & set(sys.modules); sys.exit(status)"
    )
    path = [str(Path(__file__).parents[3])]
    with stub_server() as port:
        command = [sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}; {code}", "--port", str(port), *SMALL]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    (file,) = tmp_path.iterdir()
    assert file.name.startswith("sglang_") and file.name.endswith("_24_30_20.jsonl")
    assert set(json.loads(file.read_text())) >= SGLANG_KEYS


def test_file_names_and_secrets() -> None:
    now = datetime(2026, 3, 9)
    random = parse(["--dataset-name", "random-ids", "--num-prompts", "5", "--random-input-len", "6"])
    assert output_file_name(random, now) == "sglang_0309_5_6_1024.jsonl"
    shared = parse(["--dataset-name", "generated-shared-prefix", "--backend", "vllm"])
    assert output_file_name(shared, now) == "vllm_0309_1000_generated-shared-prefix.jsonl"
    info = {"api_key": "k", "internal_states": [{"admin_api_key": "a", "x": 1}], "hf_token": None}
    cleaned = {"api_key": "***", "internal_states": [{"admin_api_key": "***", "x": 1}], "hf_token": None}
    assert without_secrets(info) == cleaned


def test_waiting_in_the_client_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with stub_server("--events-per-s", "100") as port:
        words = ["--request-rate", "100", "--max-concurrency", "4", "--warmup-requests", "0"]
        status, line = run(port, tmp_path / "out.jsonl", *SMALL, *words)
    assert status == 0 and line["mean_client_queue_ms"] > 100
    assert "does not keep up" in capsys.readouterr().out

"""The measuring tools against one real server: sizes agree with its report, scores with each other, numbers add up."""

import asyncio
import json
import math
from pathlib import Path

import pytest

from radixlm.benchmark import evaluate, one_batch_server
from radixlm.benchmark.http1 import HttpClient, target_of
from radixlm.benchmark.scoring import Scorer
from radixlm.benchmark.serving import main as serving
from radixlm.tools import size
from tests.wire.live import LiveServer, live_server

pytestmark = pytest.mark.slow
QUESTIONS = [
    {"question": "The capital of France is", "choices": ["Paris", "a dog"], "answer": 0},
    {"question": "Water is made of hydrogen and", "choices": ["nobody", "oxygen"], "answer": "B"},
]


def sizes_agree(server: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert size.main(["demo", "--device", "cpu", "--max-total-tokens", "20000", "--json"]) == 0
    ours, told = json.loads(capsys.readouterr().out), server.get("/server_info").json()
    for key in ("weights_bytes", "kv_cache_bytes", "max_total_num_tokens"):
        assert ours[key] == pytest.approx(told[key], rel=0.02), key
    for key in ("page_size", "context_len", "max_running_requests", "chunked_prefill_size", "dtype"):
        assert ours[key] == told[key], key


def scores_agree(url: str, tmp_path: Path) -> None:
    """Windows with all of the text before them give its perplexity; a server does not diverge from itself."""
    text, tasks, out = tmp_path / "t.txt", tmp_path / "q.jsonl", tmp_path / "eval.jsonl"
    text.write_text("The sun rises in the east and sets in the west. " * 4)
    tasks.write_text("\n".join(json.dumps(task) for task in QUESTIONS))
    words = ["--base-url", url, "--text", str(text), "--window", "16", "--context", "400", "--output-file", str(out)]
    assert evaluate.main([*words, "--choices", str(tasks), "--against", url]) == 0
    found = json.loads(out.read_text())
    assert found["accuracy"] == 1.0 and found["kl_divergence"] == pytest.approx(0, abs=1e-3)
    assert found["same_likeliest_token"] > 0.95

    async def whole() -> float:
        client = HttpClient(target_of(url, {}))
        scorer = Scorer(client)
        (ids,) = await scorer.tokenize([text.read_text()])
        scores = await scorer.score(ids, 1)
        client.close()
        return math.exp(-sum(scores.logprobs) / len(scores.logprobs))

    assert found["perplexity"] == pytest.approx(asyncio.run(whole()), rel=0.02)


def test_measuring(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with live_server("demo", "--max-total-tokens", "20000", "--enable-cache-report") as server:
        sizes_agree(server, capsys)
        scores_agree(server.url, tmp_path)
        batch = ["--base-url", server.url, "--batch-size", "2", "--input-len", "48", "--output-len", "6"]
        batch += ["--cache-hit-rate", "0.7", "--skip-warmup", "--result-filename", str(tmp_path / "b.jsonl")]
        assert one_batch_server.main(batch) == 0
        line = json.loads((tmp_path / "b.jsonl").read_text())
        assert line["total_output_tokens"] == 12 and line["cache_hit_rate"] == pytest.approx(32 / 48)  # whole pages
        words = ["--base-url", server.url, "--dataset-name", "random-ids", "--num-prompts", "4", "--output-details"]
        words += ["--random-input-len", "24", "--random-output-len", "6", "--random-range-ratio", "1", "--flush-cache"]
        out = tmp_path / "s.jsonl"
        assert serving([*words, "--return-logprob", "--output-file", str(out)]) == 0
    recomputed(json.loads(out.read_text()))


def recomputed(line: dict[str, list[float]]) -> None:
    """The aggregates of the file, from its own details."""
    latencies = [ttft + sum(gaps) for ttft, gaps in zip(line["ttfts"], line["itls"], strict=True)]  # type: ignore[arg-type]
    assert line["completed"] == 4 and sum(line["output_lens"]) == line["total_output_tokens"] == 24
    assert line["mean_ttft_ms"] == pytest.approx(1000 * sum(line["ttfts"]) / 4)
    assert line["mean_e2e_latency_ms"] == pytest.approx(
        1000 * sum(latencies) / 4, rel=0.05
    )  # the stream's end is later
    tpots = [sum(gaps) / 5 for gaps in line["itls"]]  # type: ignore[arg-type]
    assert line["mean_tpot_ms"] == pytest.approx(1000 * sum(tpots) / 4, rel=0.05)
    assert line["output_throughput"] == pytest.approx(24 / line["duration"])  # type: ignore[operator]

"""The front end with its worker processes and a paced engine: it serves, it is measured, and it dies with a worker."""

import json
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from radixlm.benchmark import front
from radixlm.benchmark.gpu_matrix import MODELS, Server, made_up_tokenizer, make_model
from tests.helpers.vocabularies import SAMPLE
from tests.wire.serving import eventually

FLAGS = ["--tokenizer-worker-num", "2", "--detokenizer-worker-num", "1"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    made_up_tokenizer(1000).save(str(folder / "tokenizer.json"))
    return folder


def test_the_benchmark_says_what_each_process_costs(tokenizer: Path, tmp_path: Path) -> None:
    arguments = ["--out", str(tmp_path), "--tokenizer", str(tokenizer), "--cases", "rate", "--client-processes", "1"]
    sizes = ["--requests", "12", "--prompt-tokens", "300", "--output-tokens", "12", "--step-ms", "5"]
    assert front.main([*arguments, *sizes, "--flags", " ".join(FLAGS)]) == 0
    result = json.loads((tmp_path / "front.jsonl").read_text())
    assert set(result["cpu_percent"]) == {"front", "scheduler", "detokenizer", "tokenizer-0", "tokenizer-1"}
    assert result["failed"] == 0 and result["events_per_s"] > 0 and result["front_us_per_event"] > 0


def test_prompts_of_all_sizes_are_answered_and_a_dead_tokenizer_ends_the_server(
    tokenizer: Path, tmp_path: Path
) -> None:
    model = make_model(tmp_path / "model", MODELS["qwen3-0.6b"], tokenizer)
    program = (front.PACED, "--step-ms", "2")
    server = Server(model, FLAGS, tmp_path / "log", program)
    try:
        url = f"http://127.0.0.1:{server.port}/generate"

        def ask(text: Any, **more: Any) -> httpx.Response:
            body = {"text": text, "sampling_params": {"max_new_tokens": 3}, **more}
            return httpx.post(url, content=json.dumps(body), timeout=30)

        texts = ["a", SAMPLE[0] * 20, SAMPLE[2] * 300]
        answers = ask(texts, return_prompt_token_ids=True).json()
        alone = [ask(text, return_prompt_token_ids=True).json() for text in texts]
        assert [one["prompt_token_ids"] for one in answers] == [one["prompt_token_ids"] for one in alone]
        assert [one["meta_info"]["completion_tokens"] for one in answers] == [3, 3, 3]
        assert ask(SAMPLE[0] * 20 + "\ud800").status_code == 400
        assert ask(SAMPLE[2] * 3000).status_code == 400  # longer than the context

        [victim] = [child for child in psutil.Process(server.pid).children() if "tokenizer-1" in child.cmdline()[0]]
        victim.kill()
        eventually(lambda: not server.alive, within_s=20)
        assert "tokenizer-1 process" in server.log.read_text() and "SIGKILL" in server.log.read_text()
    finally:
        server.stop()

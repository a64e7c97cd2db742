"""A whole server around a tiny encoder: vectors through HTTP and processes, many at once, and what it says at start."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openai
import pytest
import torch.nn.functional as F
import transformers

from radixlm.loader.source import resolve
from radixlm.loader.tokenizer import load_tokenizer
from tests.helpers.pooled import make_model, reference, save_tokenizer
from tests.wire.live import LiveServer, live_server

LETTERS = "abcdefghijklmnopqrstuvwxyz"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bert")


@pytest.fixture(scope="module")
def model(folder: Path) -> transformers.PreTrainedModel:
    save_tokenizer(folder)
    return make_model("BertModel", folder, pad_token_id=0)


@pytest.fixture(scope="module")
def server(folder: Path, model: transformers.PreTrainedModel) -> Iterator[LiveServer]:
    with live_server(str(folder), "--device", "cpu", "--allow-auto-truncate") as running:
        yield running


def test_many_texts(server: LiveServer, folder: Path, model: transformers.PreTrainedModel) -> None:
    texts = [" ".join(LETTERS[: 1 + (7 * i) % 26]) for i in range(300)]
    tokenizer = load_tokenizer(resolve(str(folder)))
    want = reference(
        [tokenizer.encode(text) for text in texts],
        lambda ids: F.normalize(model(ids).last_hidden_state[:, 0], dim=-1),
    )
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
        answer = client.embeddings.create(model="m", input=texts)
    assert np.abs(np.array([one.embedding for one in answer.data]) - want).max() < 1e-5
    assert answer.usage.prompt_tokens == sum(len(tokenizer.encode(text)) for text in texts)
    state = server.settle()
    assert state["conservation_errors_total"] == 0
    assert state["kv_used_tokens"] == 0


def test_a_text_that_is_too_long_keeps_its_last_token(server: LiveServer) -> None:
    answer = server.post("/encode", {"text": "a " * 500, "return_prompt_token_ids": True}).json()
    ids = answer["prompt_token_ids"]
    assert len(ids) == 130 and ids[0] == 2 and ids[-1] == 3
    assert answer["meta_info"]["truncated_tokens"] == 372


def test_a_hang_up_and_a_bad_request_leave_no_trace(server: LiveServer) -> None:
    assert server.post("/encode", {"input_ids": [5, 160]}).status_code == 400
    assert server.post("/generate", {"text": "a"}).status_code == 400
    assert server.get("/health_generate").status_code == 200
    assert server.settle()["num_running_reqs"] == 0


def test_what_it_says(server: LiveServer) -> None:
    assert server.get("/model_info").json()["is_generation"] is False
    report = "\n".join(server.get("/server_info").json()["startup_report"])
    assert "KV pool: none (an encoder keeps no keys and values)" in report
    assert "attention: full" in report

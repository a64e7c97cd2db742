"""The GPU matrix: model folders that our loader reads, options that its own client takes, and a table that lines up."""

import json
from pathlib import Path

import pytest

from radixlm.benchmark import gpu_matrix
from radixlm.benchmark.gpu_matrix import MODELS, WORKLOADS, Workload, made_up_tokenizer, make_model, row, table
from radixlm.benchmark.options import parse
from radixlm.loader.card import load_card
from radixlm.loader.source import resolve
from radixlm.loader.tokenizer import Tokenizer, load_tokenizer


@pytest.mark.parametrize(
    ("name", "kv_bytes", "billions"), [("qwen3-8b", 147_456, (8.1, 8.3)), ("qwen3-0.6b", 114_688, (0.59, 0.61))]
)
def test_models_have_the_true_shapes(tmp_path: Path, name: str, kv_bytes: int, billions: tuple[float, float]) -> None:
    card = load_card(resolve(str(make_model(tmp_path, MODELS[name], tokenizer=tmp_path))))
    assert card.kv_bytes_per_token(2) == kv_bytes and card.head_dim == 128
    attention = card.hidden_size * card.head_dim * (2 * card.num_heads + 2 * card.num_kv_heads)
    layer = attention + 3 * card.hidden_size * card.intermediate_size
    heads = 1 if card.tie_word_embeddings else 2
    total = card.num_layers * layer + heads * card.vocab_size * card.hidden_size
    assert billions[0] < total / 1e9 < billions[1]


def test_made_up_tokenizer(tmp_path: Path) -> None:
    made_up_tokenizer(1000).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps(MODELS["qwen3-8b"]))
    tokenizer: Tokenizer = load_tokenizer(resolve(str(tmp_path)))
    assert tokenizer.vocab_size == 1000
    assert tokenizer.decode(tokenizer.encode("Grüße, 世界")) == "Grüße, 世界"
    assert tokenizer.decode([999]).startswith(" ") and len(tokenizer.decode([999])) == 5


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_the_client_takes_every_workload(workload: Workload) -> None:
    options = parse(["--tokenize-prompt", "--vocab-size", "1000", *workload.client])
    assert options.dataset.num_prompts >= 8 and workload.model in MODELS


def test_workloads_of_one_model_stand_together() -> None:
    models = [workload.model for workload in WORKLOADS]
    assert models == sorted(models, reverse=True) and len({workload.name for workload in WORKLOADS}) == len(WORKLOADS)


def test_rows_and_table() -> None:
    line = {"median_tpot_ms": 4.126, "median_ttft_ms": 26.04, "completed": 8, "num_prompts": 8}
    line |= {"client_cpu_percent": 3.4, "cache_hit_rate": 0.5, "total_throughput": 28_431.0}
    cells = row(WORKLOADS[0], line)
    assert cells[3:] == ["4.13 / 26.04", "5.05 / 40", "4.2 / 26", "8/8", "3 %", "50 %"]
    off = next(workload for workload in WORKLOADS if workload.name == "off")
    assert row(off, line | {"cache_hit_rate": None})[3] == "28.4k"
    lines = table([cells, row(off, line)]).splitlines()
    assert (
        len(lines) == 3
        and len({text.index(start) for text, start in zip(lines, ("SGLang", "5.05", "20.5"), strict=True)}) == 1
    )


def test_a_server_that_does_not_start_costs_its_rows_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_matrix, "MODELS", {name: {"vocab_size": 300} for name in MODELS})
    out = tmp_path / "out"
    assert gpu_matrix.main(["--out", str(out), "--models", str(tmp_path), "--workloads", "c1,rate"]) == 0
    text = (out / "table.txt").read_text()
    assert text.count("failed") == 2 and "no server: " in text
    with pytest.raises(SystemExit):
        gpu_matrix.main(["--out", str(out), "--workloads", "c1,nonsense"])

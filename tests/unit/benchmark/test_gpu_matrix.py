"""The matrices: model folders that our loader reads, options that the client takes, and what is said of failures."""

import json
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from radixlm.base.errors import RadixError
from radixlm.benchmark import cpu_matrix, front, gpu_matrix, stub
from radixlm.benchmark.gpu_matrix import MODELS, WORKLOADS, Workload, made_up_tokenizer, make_model, row, table
from radixlm.benchmark.options import parse
from radixlm.loader.card import load_card
from radixlm.loader.source import resolve
from radixlm.loader.tokenizer import Tokenizer, load_tokenizer

KEYS = [key for workload in WORKLOADS for _, key in workload.shown]


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


def test_a_server_that_does_not_start_costs_its_rows_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_matrix, "MODELS", {name: {"vocab_size": 300} for name in MODELS})
    out = tmp_path / "out"
    assert gpu_matrix.main(["--out", str(out), "--models", str(tmp_path), "--workloads", "c1", "rate"]) == 1
    text = (out / "table.txt").read_text()
    assert text.count("failed") == 2 and "no server: " in text
    assert capsys.readouterr().err == "error: 2 of 2 runs failed: c1 #1, rate #1\n"


def test_one_failed_run_among_others_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Standing:
        """Where a server would stand."""

        alive, port, started_s = True, 1, 0.0

        def __init__(self, *_: object) -> None: ...
        def stop(self) -> None: ...

    lines = iter([{"completed": 8}, {"completed": 8}])

    def run_client(workload: Workload, *_: object) -> dict[str, Any]:
        if workload.name == "c1":
            return next(lines) | {"num_prompts": 8, "client_cpu_percent": 1, **dict.fromkeys(KEYS, 1.0)}
        raise RadixError("not done within 240 s")

    monkeypatch.setattr(gpu_matrix, "Server", Standing)
    monkeypatch.setattr(gpu_matrix, "run_client", run_client)
    monkeypatch.setattr(gpu_matrix, "make_model", lambda *_: tmp_path)
    words = ["--out", str(tmp_path), "--models", str(tmp_path), "--repeat", "2", "--workloads"]
    assert gpu_matrix.main([*words, "c1", "off"]) == 1
    assert capsys.readouterr().err == "error: 2 of 4 runs failed: off #1, off #2\n"
    lines = iter([{"completed": 8}, {"completed": 8}])
    assert gpu_matrix.main([*words, "c1"]) == 0 and not capsys.readouterr().err


@pytest.mark.parametrize(
    ("program", "words", "complaint"),
    [
        (gpu_matrix, ["--tokenizer", "/nowhere"], "--tokenizer: /nowhere is no folder with a tokenizer.json"),
        (gpu_matrix, ["--repeat", "0"], "--repeat: must be at least 1, not 0"),
        (gpu_matrix, ["--workloads", "c1", "bogus"], "--workloads: 'bogus' is not one of: c1, c32, off"),
        (gpu_matrix, ["--models", "/dev/null/x"], "--models: /dev/null/x cannot be made: Not a directory"),
        (gpu_matrix, ["--bogus"], "unknown argument --bogus"),
        (cpu_matrix, ["--repeat", "0"], "--repeat: must be at least 1, not 0"),
        (cpu_matrix, ["--workloads", "S9"], "--workloads: 'S9' is not one of: S1, S2, S3, S4"),
        (cpu_matrix, ["--peer", "no-such-server {port}"], "--peer: there is no program no-such-server"),
        (cpu_matrix, ["--peer", "sleep 9"], "--peer: must say where its port belongs: {port}"),
        (cpu_matrix, ["--peer", "sleep '9"], "--peer: No closing quotation"),
        (cpu_matrix, ["--peer-backend", "bogus"], "--peer-backend: 'bogus' is not one of: sglang"),
        (front, ["--cases", "bogus"], "--cases: 'bogus' is not one of: events, requests, rate"),
        (front, ["--tokenizer", "/nowhere"], "--tokenizer: /nowhere is no folder with a tokenizer.json"),
        (front, ["--client-processes", "0"], "--client-processes: must be at least 1, not 0"),
        (front, ["--out", "/dev/null/x"], "--out: /dev/null/x cannot be made: Not a directory"),
        (stub, ["--tokens-per-event", "0"], "--tokens-per-event: must be at least 1, not 0"),
        (stub, ["--port", "70000"], "--port: must lie between 0 and 65535, not 70000"),
    ],
)
def test_a_wrong_command_line_is_refused_at_once_naming_the_flag(
    program: ModuleType, words: list[str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path / "out")] if program is not stub and "--out" not in words else []
    assert program.main([*out, *words]) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"error: {complaint}") and said.err.count("\n") == 1 and not said.out


@pytest.mark.parametrize("program", [gpu_matrix, cpu_matrix])
def test_a_matrix_needs_a_folder(program: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main([]) == 2 and capsys.readouterr().err == "error: --out is required\n"


def test_the_cpu_matrix_ends_with_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_client(*_: object) -> dict[str, Any]:
        raise RadixError("not done within 240 s")

    one = cpu_matrix.Contestant("radixlm", SimpleNamespace(port=1), ())  # type: ignore[arg-type]
    monkeypatch.setattr(cpu_matrix, "contestants", lambda *_: [one])
    monkeypatch.setattr(cpu_matrix, "run_client", run_client)
    assert cpu_matrix.main(["--out", str(tmp_path), "--peer", "", "--workloads", "S2"]) == 1
    assert capsys.readouterr().err == "error: S2 on radixlm failed: not done within 240 s\n"

"""Sizes are the server's own arithmetic; flags that are advised do what they promise."""

import json
from pathlib import Path

import pytest

from radixlm.base.errors import CapacityError, ConfigError, ModelError
from radixlm.benchmark.gpu_matrix import MODELS
from radixlm.config.capacity import kv_pool_tokens
from radixlm.config.cli import read_serve
from radixlm.config.groups import Config
from radixlm.config.resolve import resolve
from radixlm.loader.card import load_card
from radixlm.loader.source import ModelSource
from radixlm.tools import size as program
from radixlm.tools.driver import parse
from radixlm.tools.gpus import GPUS, gpu_named
from radixlm.tools.size import machine, main, memory_bytes
from radixlm.tools.sizing import advise, size
from tests.unit.config.machines import MACHINES


@pytest.fixture
def qwen(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(MODELS["qwen3-8b"]))
    return tmp_path


def config(**flags: object) -> Config:
    return Config.from_flat({"model_path": "m", **flags})


def test_it_is_the_servers_arithmetic(qwen: Path) -> None:
    card = load_card(ModelSource("m", qwen, "folder"))
    facts = MACHINES["h100"]
    sizing = size(config(), facts, card)
    assert facts.gpu is not None
    pool = kv_pool_tokens(resolve(config(), facts, card), card, 2 * card.num_parameters, facts.gpu.available_bytes, 2)
    assert sizing.pool == pool and sizing.kv_bytes_per_token == 147_456
    assert sizing.users(1024) == min(pool.tokens // 1024, sizing.running) and sizing.users(41_000) == 0
    double = size(config(kv_cache_dtype="float32"), facts, card)
    assert double.kv_bytes_per_token == 294_912 and double.pool.tokens == pytest.approx(pool.tokens / 2, rel=0.001)
    assert f"max_total_num_tokens={pool.tokens}" in sizing.report()[-1]


@pytest.mark.parametrize("name", ["L4", "4090", "H200", "A100-40G"])
def test_advice_keeps_its_promise(qwen: Path, name: str) -> None:
    card = load_card(ModelSource("m", qwen, "folder"))
    facts = machine(name, None, "auto")
    before = size(config(), facts, card)
    advice = advise(before, config(), facts, 2048)
    flags = {text.split()[0][2:].replace("-", "_"): text.split()[1] for text, _ in advice.flags}
    after = size(config(**flags), facts, card)
    assert (after.pool, after.running) == (advice.then.pool, advice.then.running)
    assert after.users(2048) >= before.users(2048) and not advise(after, config(**flags), facts, 2048).flags


def test_a_model_that_only_fits_with_another_share(qwen: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On an L4 the default reserve leaves 736 tokens beside 8 billion weights."""
    assert main([str(qwen), "--gpu", "L4"]) == 0
    shown = capsys.readouterr().out
    assert "--mem-fraction-static 0.92" in shown and "736 tokens" in shown
    assert shown.splitlines()[-1].startswith(f"radixlm serve {qwen} --mem-fraction-static 0.92 --context-length")


def test_the_command(qwen: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(qwen), "--memory", "80G", "--context", "8k", "--request-tokens", "2000", "9000", "--json"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["context_len"], found["kv_bytes_per_token"], found["users"]["9000"]) == (8000, 147_456, 0)
    assert main([str(qwen), "--memory", "16G"]) == 1
    assert "not enough memory" in capsys.readouterr().err
    assert main([str(qwen), "--device", "cpu", "--memory", "64G", "--dtype", "bfloat16"]) == 0
    assert "CPU" in capsys.readouterr().out
    assert main([str(qwen), "--kv-cache-dtype", "fp8_e4m3"]) == 1
    assert "'fp8_e4m3' is not one of: auto, bf16" in capsys.readouterr().err
    for bad in (["--gpu", "what"], ["--gpu", "L4", "--memory", "1G"], ["--memory", "x"], ["--request-tokens", "0"]):
        assert main([str(qwen), *bad]) == 1 and capsys.readouterr().err.startswith("error:")


def test_the_command_that_it_prints_starts_what_was_sized(qwen: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--kv-cache-dtype", "float32", "--page-size", "32", "--mem-fraction-static", "0.9", "--device", "cuda"]
    assert main([str(qwen), *given, "--gpu", "H100", "--context", "4k", "--request-tokens", "2000"]) == 0
    shown = capsys.readouterr().out.splitlines()
    words = shown[-1].split()
    assert words[:2] == ["radixlm", "serve"]
    asked = read_serve(words[2:]).flat()
    assert {"kv_cache_dtype": "float32", "page_size": 32, "mem_fraction_static": 0.9}.items() <= asked.items()
    assert (asked["device"], asked["context_length"], asked["model_path"]) == ("cuda", 4000, str(qwen))
    assert asked["max_running_requests"] is not None  # what is advised stands behind
    assert any("GiB float32 (" in line for line in shown)


def test_machines() -> None:
    assert memory_bytes("24G") == memory_bytes("24GiB") == memory_bytes("24GB") == 24 * 2**30
    assert machine("nvidia h100", None, "auto").gpu == gpu_named("H100")
    assert all(gpu_named(name).available_bytes > 0 for name in GPUS)
    with pytest.raises(ConfigError, match="--device cpu"):
        machine("L4", None, "cpu")
    found = parse("NVIDIA L4, 23034, 400, 8.9, 570.1\n")
    assert not isinstance(found, str) and found[0].facts.capability == (8, 9)
    assert found[0].facts.available_bytes == 22_634 * 2**20
    assert isinstance(parse("No devices were found"), str) and isinstance(parse(""), str)


def test_too_small_and_unknown(qwen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = load_card(ModelSource("m", qwen, "folder"))
    with pytest.raises(CapacityError):
        size(config(), MACHINES["t4"], card)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError, match="no folder or file here"):
        program.find(config(model_path="nobody/nothing"))

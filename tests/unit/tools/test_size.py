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
from radixlm.tools.gpus import GPUS, _plain, gpu_named
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


def test_a_model_that_leaves_the_default_share_little(qwen: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On an L4 SGLang's reserve would leave 736 tokens beside 8 billion weights: the share grows, and says why."""
    assert main([str(qwen), "--gpu", "NVIDIA L4"]) == 0
    shown = capsys.readouterr().out
    reason = "the default of 0.701 would hold less than a prompt chunk and an answer beside the weights"
    assert f"  memory share: 0.9 ({reason})" in shown and "KV pool: 32,482 tokens" in shown
    assert shown.splitlines()[-1].startswith(f"radixlm serve {qwen} --context-length")
    assert main([str(qwen), "--gpu", "L4", "--mem-fraction-static", "0.701"]) == 0
    shown = capsys.readouterr().out
    assert "memory share: 0.701 (as asked)" in shown and "KV pool: 736 tokens" in shown


def test_the_command(qwen: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(qwen), "--memory", "80G", "--context", "8k", "--request-tokens", "2000", "9000", "--json"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["context_len"], found["kv_bytes_per_token"], found["users"]["9000"]) == (8000, 147_456, 0)
    assert main([str(qwen), "--memory", "16G"]) == 1
    assert "not enough memory" in capsys.readouterr().err
    assert main([str(qwen), "--device", "cpu", "--memory", "64G", "--dtype", "bfloat16"]) == 0
    assert "CPU" in capsys.readouterr().out
    assert main([str(qwen), "--kv-cache-dtype", "fp8_e4m3"]) == 2
    assert "'fp8_e4m3' is not one of: auto, bf16" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "status", "complaint"),
    [
        ("--gpu what", 2, "--gpu what: known are T4, "),
        ("--gpu L4 --memory 1G", 2, "--gpu and --memory exclude each other"),
        ("--memory x", 2, "--memory: 'x' is not an integer"),
        ("--memory=", 2, "--memory: '' is not an integer"),
        ("--memory 24", 2, "--memory 24: 24 bytes hold no model; give a unit, such as 24G"),
        ("--memory 0", 2, "--memory 0: 0 bytes hold no model"),
        ("--request-tokens 0", 2, "--request-tokens must be at least 1"),
        ("--gpu L4 --attention-backend nosuch", 2, "--attention-backend: 'nosuch' is not one of: auto, triton"),
        ("--gpu L4 --attention-backend native_cpu", 1, "--attention-backend native_cpu runs on cpu, not on cuda"),
        ('--gpu L4 --radix-eviction-policy-config {"x":1}', 1, "lru has no option 'x'"),
        ("--gpu L4 --schedule-policy shortest-prefill-first --disable-radix-cache", 1, "no --schedule-policy fits"),
        ("--gpu T4 --dtype bfloat16", 1, "--dtype bfloat16: Tesla T4 has no bfloat16"),
        ("--memory 2M --device cuda", 1, "not enough memory"),
    ],
)
def test_what_the_server_refuses(
    qwen: Path, words: str, status: int, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its exit status: 2 for what is wrong by itself, 1 for what does not go with the model or the machine."""
    assert main([str(qwen), *words.split()]) == status
    said = capsys.readouterr().err
    assert said.startswith("error: ") and complaint in said and said.count("\n") == 1


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
    with pytest.raises(ConfigError, match="--device cpu"):
        machine("L4", None, "cpu")


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("RTX 4060", "4060"),
        ("rtx-4060", "4060"),
        ("GeForce RTX 4090", "4090"),
        ("NVIDIA GeForce RTX 3060", "3060"),
        ("RTX3060 12GB", "3060"),
        ("rtx 4060 ti 16gb", "4060-Ti-16G"),
        ("nvidia l4", "L4"),
        ("Tesla T4", "T4"),
        ("RTX A6000", "A6000"),
        ("RTX 6000 Ada", "6000-Ada"),
        ("RTX PRO 6000 Blackwell", "PRO-6000"),
        ("A100 80GB", "A100"),
        ("A100-SXM4-40GB", "A100-40G"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("h100 nvl", "H100-NVL"),
        ("DGX Spark", "GB10"),
        ("NVIDIA GB10", "GB10"),
    ],
)
def test_gpus_are_named_as_people_write_them(name: str, key: str) -> None:
    assert gpu_named(name) == GPUS[key].facts


@pytest.mark.parametrize("name", ["", "RTX", "RTX 4090 Laptop GPU", "4060 Ti", "Quadro RTX 6000", "L4000"])
def test_gpus_that_are_not_known_are_no_others(name: str) -> None:
    with pytest.raises(ConfigError, match="known are"):
        gpu_named(name)


def test_names_of_gpus_are_told_apart() -> None:
    names = [{_plain(name) for name in (key, gpu.name, *gpu.others)} for key, gpu in GPUS.items()]
    assert sum(map(len, names)) == len(set().union(*names))
    assert all(gpu.facts.available_bytes > 0 for gpu in GPUS.values())
    assert [key for key, gpu in GPUS.items() if gpu.integrated] == ["GB10"]


def test_what_the_driver_says() -> None:
    host = MACHINES["gb10"]
    found = parse("NVIDIA L4, 23034, 400, 8.9, 570.1\nNVIDIA GB10, [N/A], [N/A], 12.1, 580.95.05\n")
    assert not isinstance(found, str)
    card, chip = (gpu.facts(host) for gpu in found)
    assert (card.capability, card.available_bytes, card.integrated) == ((8, 9), 22_634 * 2**20, False)
    assert (chip.capability, chip.integrated) == ((12, 1), True)
    assert (chip.memory_bytes, chip.available_bytes) == (host.memory_bytes, host.available_bytes)
    assert isinstance(parse("No devices were found"), str) and isinstance(parse(""), str)


def test_too_small_and_unknown(qwen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = load_card(ModelSource("m", qwen, "folder"))
    with pytest.raises(CapacityError):
        size(config(), MACHINES["t4"], card)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError, match="no folder or file here"):
        program.find(config(model_path="nobody/nothing"))

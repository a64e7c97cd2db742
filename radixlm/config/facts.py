"""What resolution may know of the machine: plain numbers and names. Probes the host; knows no torch, so no GPU.

Whoever has torch adds the GPU: `dataclasses.replace(probe_host(), gpu=GpuFacts(...))`.
"""

import math
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

import psutil

_SEED_LIMIT = 2**30


@dataclass(frozen=True)
class GpuFacts:
    """One CUDA device. `capability` is its compute capability, such as (9, 0); `sms` counts its multiprocessors.

    `integrated`: it has no memory but the host's, which both use.
    """

    name: str
    memory_bytes: int
    available_bytes: int
    sms: int
    capability: tuple[int, int]
    integrated: bool = False

    @property
    def bf16(self) -> bool:
        """Whether it multiplies bfloat16."""
        return self.capability >= (8, 0)


@dataclass(frozen=True)
class HardwareFacts:
    """The machine as this process may use it.

    Attributes:
        cores: logical CPUs that affinity and cgroup quota leave us.
        memory_bytes, available_bytes: RAM in all and free to take, cgroup limits respected.
        cpu_flags: instruction sets by their /proc/cpuinfo names (`avx512_bf16`, `amx_bf16`); empty off Linux.
        drawn_seed: a random number, used where no seed is set; drawn here so that resolution stays a pure function.
        gpu: the CUDA device, or None.
    """

    cores: int
    memory_bytes: int
    available_bytes: int
    cpu_flags: frozenset[str] = frozenset()
    drawn_seed: int = 0
    gpu: GpuFacts | None = None

    @property
    def cpu_bf16(self) -> bool:
        """Whether the CPU multiplies bfloat16 natively."""
        return bool(self.cpu_flags & {"avx512_bf16", "amx_bf16"})


@dataclass(frozen=True)
class CgroupLimits:
    """What the control groups of this process allow; None where they set no limit."""

    memory_bytes: int | None = None
    available_bytes: int | None = None
    cores: int | None = None


def free_ram_bytes() -> int:
    """RAM that is free to take, page cache that the kernel would give back included, cgroup limits respected."""
    return _smaller(psutil.virtual_memory().available, cgroup_limits().available_bytes)


def probe_host() -> HardwareFacts:
    """The facts of this machine without its GPUs."""
    memory = psutil.virtual_memory()
    limits = cgroup_limits()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return HardwareFacts(
        cores=min(cores, limits.cores or cores),
        memory_bytes=_smaller(memory.total, limits.memory_bytes),
        available_bytes=_smaller(memory.available, limits.available_bytes),
        cpu_flags=_cpu_flags(Path("/proc/cpuinfo")),
        drawn_seed=secrets.randbelow(_SEED_LIMIT),
    )


def cgroup_limits(proc: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> CgroupLimits:
    """The tightest limits of our control groups and their ancestors, of version 2 and 1, as far as they are visible.

    Page cache that the kernel can drop counts as available.
    """
    limits = CgroupLimits()
    for line in _read(proc).splitlines():
        _, controllers, path = line.split(":", 2)
        names = controllers.split(",")
        memory: list[tuple[int | None, int | None]] = []
        cores: list[int | None] = []
        if controllers == "":
            folders = _ancestors(root, path)
            memory = [_memory(folder, "memory.max", "memory.current", "inactive_file") for folder in folders]
            cores = [_quota(_read(folder / "cpu.max")) for folder in folders]
        elif "memory" in names:
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            memory = [_memory(folder, *files) for folder in _ancestors(root / "memory", path)]
        elif "cpu" in names:
            folders = _ancestors(root / "cpu", path)
            cores = [_quota(_read(f / "cpu.cfs_quota_us") + _read(f / "cpu.cfs_period_us")) for f in folders]
        limits = CgroupLimits(
            _least([limits.memory_bytes, *(limit for limit, _ in memory)]),
            _least([limits.available_bytes, *(available for _, available in memory)]),
            _least([limits.cores, *cores]),
        )
    return limits


def _ancestors(mount: Path, path: str) -> list[Path]:
    """The folder of a control group and those above it, up to the mount; a container may see no more."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    folders = [mount.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]
    return [folder for folder in folders if folder.is_dir()]


def _memory(folder: Path, limit_file: str, usage_file: str, cache_key: str) -> tuple[int | None, int | None]:
    limit, usage = _read(folder / limit_file).strip(), _read(folder / usage_file).strip()
    if not limit.isdigit() or not usage.isdigit():
        return None, None
    statistics = dict(line.split(maxsplit=1) for line in _read(folder / "memory.stat").splitlines() if " " in line)
    used = max(int(usage) - int(statistics.get(cache_key, "0")), 0)
    return int(limit), max(int(limit) - used, 0)


def _quota(text: str) -> int | None:
    """Cores of "quota period", both in microseconds; None when the quota is "max", -1 or missing."""
    words = text.split()
    if len(words) != 2 or not all(word.isdigit() for word in words):
        return None
    return max(math.ceil(int(words[0]) / int(words[1])), 1)


def _cpu_flags(cpuinfo: Path) -> frozenset[str]:
    for line in _read(cpuinfo).splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", errors="replace")
    except OSError:
        return ""


def _least(values: list[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)


def _smaller(value: int, limit: int | None) -> int:
    return value if limit is None else min(value, limit)

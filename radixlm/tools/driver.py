"""What the NVIDIA driver says of its GPUs, asked by its own program: no torch is needed. Knows no model."""

import shutil
import subprocess
from dataclasses import dataclass

from radixlm.config.facts import GpuFacts

MIB = 2**20
TIMEOUT_S = 20.0
_FIELDS = ("name", "memory.total", "memory.used", "compute_cap", "driver_version")


@dataclass(frozen=True)
class DriverGpu:
    """One GPU as nvidia-smi shows it."""

    name: str
    memory_mib: int
    used_mib: int
    capability: tuple[int, int]
    driver: str

    @property
    def facts(self) -> GpuFacts:
        """For resolution; the multiprocessors are not told and do not enter sizes."""
        available_bytes = (self.memory_mib - self.used_mib) * MIB
        return GpuFacts(self.name, self.memory_mib * MIB, available_bytes, 0, self.capability)


def driver_gpus() -> list[DriverGpu] | str:
    """The GPUs, or in one line why the driver shows none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return "no nvidia-smi on the PATH"
    command = [program, f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"nvidia-smi: {error}"
    if done.returncode:
        return f"nvidia-smi: {(done.stderr or done.stdout).strip().splitlines()[:1]}"
    return parse(done.stdout)


def parse(text: str) -> list[DriverGpu] | str:
    """The lines of nvidia-smi's CSV."""
    found = []
    for line in text.strip().splitlines():
        try:
            name, total, used, capability, driver = (part.strip() for part in line.split(","))
            major, minor = capability.split(".")
            found.append(DriverGpu(name, int(total), int(used), (int(major), int(minor)), driver))
        except ValueError:
            return f"nvidia-smi said something else: {line[:100]}"
    return found or "nvidia-smi shows no GPU"

"""What the NVIDIA driver says of its GPUs, asked by its own program: no torch is needed. Knows no model."""

import shutil
import subprocess
from dataclasses import dataclass

from radixlm.config.facts import GpuFacts, HardwareFacts

MIB = 2**20
TIMEOUT_S = 20.0
_FIELDS = ("name", "memory.total", "memory.used", "compute_cap", "driver_version")
_UNTOLD = ("[N/A]", "[Not Supported]")  # the memory of GB10 and of Jetson boards


@dataclass(frozen=True)
class DriverGpu:
    """One GPU as nvidia-smi shows it. `memory_mib`, in all and used: None for one that has no memory but the host's."""

    name: str
    memory_mib: tuple[int, int] | None
    capability: tuple[int, int]
    driver: str

    def facts(self, host: HardwareFacts) -> GpuFacts:
        """For resolution; the multiprocessors are not told and do not enter sizes."""
        if self.memory_mib is None:
            return GpuFacts(self.name, host.memory_bytes, host.available_bytes, 0, self.capability, integrated=True)
        total_mib, used_mib = self.memory_mib
        return GpuFacts(self.name, total_mib * MIB, (total_mib - used_mib) * MIB, 0, self.capability)


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
        said = (done.stderr or done.stdout).strip().splitlines() or [f"exit status {done.returncode}"]
        return f"nvidia-smi: {said[0]}"
    return parse(done.stdout)


def parse(text: str) -> list[DriverGpu] | str:
    """The lines of nvidia-smi's CSV."""
    found = []
    for line in text.strip().splitlines():
        try:
            name, total, used, capability, driver = (part.strip() for part in line.split(","))
            major, minor = capability.split(".")
            memory = None if total in _UNTOLD else (int(total), int(used))
            found.append(DriverGpu(name, memory, (int(major), int(minor)), driver))
        except ValueError:
            return f"nvidia-smi said something else: {line[:100]}"
    return found or "nvidia-smi shows no GPU"

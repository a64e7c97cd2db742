"""GPUs by name: what resolution has to know of one that is not there. Memory as the driver reports it."""

from dataclasses import dataclass

from radixlm.base.errors import ConfigError
from radixlm.config.facts import GpuFacts

MIB = 2**20
TAKEN_MIB = 600  # by the driver's context and the libraries before anything is loaded


@dataclass(frozen=True)
class Gpu:
    """One model: full name, memory, compute capability, multiprocessors."""

    name: str
    memory_mib: int
    capability: tuple[int, int]
    sms: int


GPUS = {
    "T4": Gpu("Tesla T4", 15_360, (7, 5), 40),
    "V100-16G": Gpu("Tesla V100", 16_384, (7, 0), 80),
    "V100": Gpu("Tesla V100", 32_768, (7, 0), 80),
    "A10": Gpu("NVIDIA A10", 23_028, (8, 6), 72),
    "A10G": Gpu("NVIDIA A10G", 23_028, (8, 6), 80),
    "L4": Gpu("NVIDIA L4", 23_034, (8, 9), 58),
    "3090": Gpu("GeForce RTX 3090", 24_576, (8, 6), 82),
    "4090": Gpu("GeForce RTX 4090", 24_564, (8, 9), 128),
    "5090": Gpu("GeForce RTX 5090", 32_607, (12, 0), 170),
    "A6000": Gpu("RTX A6000", 49_140, (8, 6), 84),
    "L40S": Gpu("NVIDIA L40S", 46_068, (8, 9), 142),
    "A100-40G": Gpu("NVIDIA A100", 40_960, (8, 0), 108),
    "A100": Gpu("NVIDIA A100", 81_920, (8, 0), 108),
    "H100": Gpu("NVIDIA H100", 81_559, (9, 0), 132),
    "H200": Gpu("NVIDIA H200", 143_771, (9, 0), 132),
    "B200": Gpu("NVIDIA B200", 183_359, (10, 0), 148),
}


def gpu_named(name: str) -> GpuFacts:
    """The facts of a GPU of that name; ConfigError lists the known ones."""
    plain = name.upper().removeprefix("NVIDIA").removeprefix("RTX").strip(" -_")
    found = GPUS.get(plain)
    if found is None:
        raise ConfigError(f"--gpu {name}: known are {', '.join(GPUS)}; for another give --memory")
    available_bytes = (found.memory_mib - TAKEN_MIB) * MIB
    return GpuFacts(found.name, found.memory_mib * MIB, available_bytes, found.sms, found.capability)


def gpu_of_size(memory_bytes: int) -> GpuFacts:
    """The facts of a GPU of which only the memory is known: one with bfloat16."""
    available_bytes = max(memory_bytes - TAKEN_MIB * MIB, 0)
    return GpuFacts(f"a GPU of {memory_bytes / 2**30:.0f} GiB", memory_bytes, available_bytes, 100, (8, 9))

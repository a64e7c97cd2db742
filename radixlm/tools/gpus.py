"""GPUs by name: what resolution has to know of one that is not there. Memory as the driver reports it."""

import re
from dataclasses import dataclass

from radixlm.base.errors import ConfigError
from radixlm.config.facts import GpuFacts

MIB = 2**20
TAKEN_MIB = 600  # by the driver's context and the libraries before anything is loaded


@dataclass(frozen=True)
class Gpu:
    """One model: its full name, memory, compute capability, multiprocessors, other names that it has.

    `integrated`: it has no memory but the host's, of which `taken_mib` are the system's.
    """

    name: str
    memory_mib: int
    capability: tuple[int, int]
    sms: int
    others: tuple[str, ...] = ()
    integrated: bool = False
    taken_mib: int = TAKEN_MIB

    @property
    def facts(self) -> GpuFacts:
        available_bytes = (self.memory_mib - self.taken_mib) * MIB
        return GpuFacts(self.name, self.memory_mib * MIB, available_bytes, self.sms, self.capability, self.integrated)


GPUS = {
    "T4": Gpu("Tesla T4", 15_360, (7, 5), 40),
    "V100-16G": Gpu("Tesla V100-SXM2-16GB", 16_384, (7, 0), 80),
    "V100": Gpu("Tesla V100-SXM2-32GB", 32_768, (7, 0), 80, ("V100-32G",)),
    "A10": Gpu("NVIDIA A10", 23_028, (8, 6), 72),
    "A10G": Gpu("NVIDIA A10G", 23_028, (8, 6), 80),
    "L4": Gpu("NVIDIA L4", 23_034, (8, 9), 58),
    "3060": Gpu("NVIDIA GeForce RTX 3060", 12_288, (8, 6), 28, ("3060-12G",)),
    "3090": Gpu("NVIDIA GeForce RTX 3090", 24_576, (8, 6), 82),
    "4060": Gpu("NVIDIA GeForce RTX 4060", 8188, (8, 9), 24, ("4060-8G",)),
    "4060-Ti-16G": Gpu("NVIDIA GeForce RTX 4060 Ti 16G", 16_380, (8, 9), 34),
    "4070": Gpu("NVIDIA GeForce RTX 4070", 12_282, (8, 9), 46),
    "4080": Gpu("NVIDIA GeForce RTX 4080", 16_376, (8, 9), 76),
    "4090": Gpu("NVIDIA GeForce RTX 4090", 24_564, (8, 9), 128),
    "5060-Ti-16G": Gpu("NVIDIA GeForce RTX 5060 Ti 16G", 16_311, (12, 0), 36),
    "5070": Gpu("NVIDIA GeForce RTX 5070", 12_227, (12, 0), 48),
    "5080": Gpu("NVIDIA GeForce RTX 5080", 16_303, (12, 0), 84),
    "5090": Gpu("NVIDIA GeForce RTX 5090", 32_607, (12, 0), 170),
    "A4000": Gpu("NVIDIA RTX A4000", 16_376, (8, 6), 48),
    "A5000": Gpu("NVIDIA RTX A5000", 24_564, (8, 6), 64),
    "A6000": Gpu("NVIDIA RTX A6000", 49_140, (8, 6), 84),
    "6000-Ada": Gpu("NVIDIA RTX 6000 Ada Generation", 49_140, (8, 9), 142),
    "PRO-6000": Gpu("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 97_887, (12, 0), 188, ("PRO 6000 Blackwell",)),
    "L40": Gpu("NVIDIA L40", 46_068, (8, 9), 142),
    "L40S": Gpu("NVIDIA L40S", 46_068, (8, 9), 142),
    "A30": Gpu("NVIDIA A30", 24_576, (8, 0), 56),
    "A100-40G": Gpu("NVIDIA A100-SXM4-40GB", 40_960, (8, 0), 108),
    "A100": Gpu("NVIDIA A100-SXM4-80GB", 81_920, (8, 0), 108, ("A100-80G",)),
    "H100": Gpu("NVIDIA H100 80GB HBM3", 81_559, (9, 0), 132, ("H100-80G", "H100-SXM")),
    "H100-NVL": Gpu("NVIDIA H100 NVL", 95_830, (9, 0), 132),
    "H20": Gpu("NVIDIA H20", 97_871, (9, 0), 78),
    "GH200": Gpu("NVIDIA GH200 480GB", 97_871, (9, 0), 132, ("GH200-96G",)),
    "H200": Gpu("NVIDIA H200", 143_771, (9, 0), 132),
    "B200": Gpu("NVIDIA B200", 183_359, (10, 0), 148),
    "B300": Gpu("NVIDIA B300 SXM6 AC", 275_040, (10, 3), 148),
    "GB10": Gpu("NVIDIA GB10", 124_610, (12, 1), 48, ("DGX Spark",), integrated=True, taken_mib=6144),
}


def gpu_named(name: str) -> GpuFacts:
    """The facts of a GPU of that name, with or without its maker and its series; ConfigError lists the known ones."""
    found = next((gpu for key, gpu in GPUS.items() if _plain(name) in map(_plain, (key, gpu.name, *gpu.others))), None)
    if found is None:
        raise ConfigError(f"--gpu {name}: known are {', '.join(GPUS)}; for another give --memory")
    return found.facts


def _plain(name: str) -> str:
    """The letters and digits that tell models apart."""
    letters = re.sub("NVIDIA|GEFORCE|TESLA|RTX|[^A-Z0-9]", "", name.upper())
    return re.sub(r"(\d)GB", r"\1G", letters)


def gpu_of_size(memory_bytes: int) -> GpuFacts:
    """The facts of a GPU of which only the memory is known: one with bfloat16."""
    available_bytes = max(memory_bytes - TAKEN_MIB * MIB, 0)
    return GpuFacts(f"a GPU of {memory_bytes / 2**30:.0f} GiB", memory_bytes, available_bytes, 100, (8, 9))

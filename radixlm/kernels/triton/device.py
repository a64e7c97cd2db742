"""What tile sizes are chosen by: a device's multiprocessors and shared memory. Knows no kernel."""

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


@dataclass(frozen=True)
class Device:
    """multiprocessors; shared_bytes: the most shared memory one program may take; capability: (major, minor)."""

    multiprocessors: int
    shared_bytes: int
    capability: tuple[int, int]


@cache
def device_of(device: torch.device) -> Device:
    """Facts of a CUDA device; for the CPU, where kernels run in Triton's interpreter, those of an H100."""
    if device.type != "cuda":
        return Device(132, 232448, (9, 0))
    facts = torch.cuda.get_device_properties(device)
    return Device(facts.multi_processor_count, facts.shared_memory_per_block_optin, (facts.major, facts.minor))


def early_launch(device: torch.device) -> dict[str, bool]:
    """Launch options with which a kernel may start while the one before it ends (programmatic dependent launch).

    Such a kernel has EARLY set, calls gdc_wait before it touches what others write, and gdc_launch_dependents at once.
    """
    if device.type == "cuda" and device_of(device).capability >= (9, 0):
        return {"EARLY": True, "launch_pdl": True}
    return {"EARLY": False}


def to_device(array: npt.NDArray[np.int32], device: torch.device) -> Tensor:
    """A copy under way, for which the host does not wait: beyond 64 KiB it would, if the memory were not pinned."""
    tensor = torch.from_numpy(array)
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)

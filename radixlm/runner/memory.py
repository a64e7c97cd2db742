"""How much device memory is free, also where device and host have one memory."""

import torch

from radixlm.config.facts import free_ram_bytes


def free_device_bytes() -> int:
    """Bytes of the current CUDA device that can be taken.

    An integrated device's are the host's: its driver counts the page cache as taken, which the kernel would give back.
    """
    if torch.cuda.get_device_properties(torch.cuda.current_device()).is_integrated:
        return free_ram_bytes()
    return torch.cuda.mem_get_info()[0]

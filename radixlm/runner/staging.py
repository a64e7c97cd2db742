"""Numbers between host and device, in as few copies as can be and without waiting. Knows arrays, not plans.

On CUDA both directions go through pinned memory: a copy out of pageable memory would make the host wait for the device.
On the CPU nothing is copied.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

HostArray: TypeAlias = NDArray[np.int32] | NDArray[np.int64] | NDArray[np.float32]

ALIGN_BYTES = 16
FIRST_BYTES = 1 << 18
_DTYPES: dict[str, torch.dtype] = {"int32": torch.int32, "int64": torch.int64, "float32": torch.float32}


def packed_bytes(arrays: Sequence[HostArray]) -> int:
    """The size of a block that holds `arrays` one after another, each aligned."""
    return sum(_aligned(array.nbytes) for array in arrays)


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGN_BYTES) * ALIGN_BYTES


@dataclass
class _Pinned:
    """Pinned memory and the event after which it may be written again."""

    memory: Tensor
    bytes: NDArray[np.uint8]
    free: torch.cuda.Event

    @staticmethod
    def make(size_bytes: int) -> "_Pinned":
        memory = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)
        return _Pinned(memory, memory.numpy(), torch.cuda.Event())


class Staging:
    """Sends arrays to the device, all that belong together in one copy."""

    def __init__(self, device: torch.device, buffers: int = 2) -> None:
        """`buffers`: how many copies may be under way before the host waits for the first of them."""
        self.device = device
        self._pinned = [_Pinned.make(FIRST_BYTES) for _ in range(buffers)] if device.type == "cuda" else []
        self._next = 0

    def send(self, arrays: Sequence[HostArray], block: Tensor | None = None) -> list[Tensor]:
        """Tensors on the device with the values, shapes and dtypes of `arrays`.

        block: uint8 [>= packed_bytes(arrays)] on the device, filled from its start on, so that what is sent in the same
        shapes lies at the same addresses; new memory when None. On the CPU it is not used, and the tensors share the
        arrays' memory.
        """
        if self.device.type == "cpu":
            return [torch.from_numpy(array if array.flags.writeable else array.copy()) for array in arrays]
        size = packed_bytes(arrays)
        pinned = self._take(size)
        at = 0
        for array in arrays:
            target: NDArray[Any] = pinned.bytes[at : at + array.nbytes].view(array.dtype)
            target.reshape(array.shape)[...] = array
            at += _aligned(array.nbytes)
        device = torch.empty(size, dtype=torch.uint8, device=self.device) if block is None else block
        device[:size].copy_(pinned.memory[:size], non_blocking=True)
        pinned.free.record()
        return self._views(device, arrays)

    def _take(self, size: int) -> _Pinned:
        """The buffer used longest ago, made larger if need be."""
        turn = self._next
        self._next = (turn + 1) % len(self._pinned)
        pinned = self._pinned[turn]
        pinned.free.synchronize()
        if len(pinned.bytes) < size:
            pinned = self._pinned[turn] = _Pinned.make(1 << (size - 1).bit_length())
        return pinned

    @staticmethod
    def _views(device: Tensor, arrays: Sequence[HostArray]) -> list[Tensor]:
        views, at = [], 0
        for array in arrays:
            piece = device[at : at + array.nbytes].view(_DTYPES[array.dtype.name])
            views.append(piece if array.ndim == 1 else piece.view(array.shape))
            at += _aligned(array.nbytes)
        return views


@dataclass(frozen=True)
class Arrival:
    """Tokens on their way to the host: int64, in pinned memory on CUDA once `event` has come."""

    tokens: Tensor
    event: torch.cuda.Event | None
    memory: Tensor | None


class Landing:
    """Brings each step's sampled tokens to the host; the memory is used again once they were read."""

    def __init__(self, device: torch.device, most_tokens: int) -> None:
        self._on_cuda = device.type == "cuda"
        self._most_tokens = most_tokens
        self._spare: list[tuple[Tensor, torch.cuda.Event]] = []

    def start(self, tokens: Tensor) -> Arrival:
        """Start the copy of `tokens` (int64 [L]); their memory may be written again by what is launched after this."""
        if not self._on_cuda:
            return Arrival(tokens, None, None)
        memory, event = self._spare.pop() if self._spare else self._make()
        landed = memory[: len(tokens)]
        landed.copy_(tokens, non_blocking=True)
        event.record()
        return Arrival(landed, event, memory)

    def wait(self, arrival: Arrival) -> NDArray[np.int32]:
        """The tokens, once they are there; to be called once."""
        if arrival.event is not None and arrival.memory is not None:
            arrival.event.synchronize()
            self._spare.append((arrival.memory, arrival.event))
        return arrival.tokens.numpy().astype(np.int32)

    def _make(self) -> tuple[Tensor, torch.cuda.Event]:
        return torch.empty(self._most_tokens, dtype=torch.int64, pin_memory=True), torch.cuda.Event()

"""Numbers between host and device, in as few copies as can be and without waiting. Knows arrays, not plans.

On CUDA both directions go through pinned memory: a copy out of pageable memory would make the host wait for the device.
On the CPU nothing is copied.
"""

from collections import deque
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


def views(block: Tensor, arrays: Sequence[HostArray]) -> list[Tensor]:
    """Tensors over the block, where each of `arrays` lies when it holds them: their shapes and dtypes."""
    found, at = [], 0
    for array in arrays:
        piece = block[at : at + array.nbytes].view(_DTYPES[array.dtype.name])
        found.append(piece if array.ndim == 1 else piece.view(array.shape))
        at += _aligned(array.nbytes)
    return found


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
        return _Pinned(memory, memory.numpy(), _event())


class Staging:
    """Sends arrays to the device, all that belong together in one copy."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pinned: deque[_Pinned] = deque()  # as many as were ever under way at once, the one used longest ago first

    def send(self, arrays: Sequence[HostArray]) -> list[Tensor]:
        """Tensors on the device with the values, shapes and dtypes of `arrays`; on the CPU they share memory."""
        if self.device.type == "cpu":
            return [torch.from_numpy(array if array.flags.writeable else array.copy()) for array in arrays]
        block = torch.empty(packed_bytes(arrays), dtype=torch.uint8, device=self.device)
        self.fill(arrays, block)
        return views(block, arrays)

    def fill(self, arrays: Sequence[HostArray], block: Tensor) -> None:
        """Send `arrays` to block (uint8 [>= packed_bytes(arrays)], on CUDA), where `views` finds them."""
        size = packed_bytes(arrays)
        pinned = self._take(size)
        at = 0
        for array in arrays:
            target: NDArray[Any] = pinned.bytes[at : at + array.nbytes].view(array.dtype)
            target.reshape(array.shape)[...] = array
            at += _aligned(array.nbytes)
        block[:size].copy_(pinned.memory[:size], non_blocking=True)
        pinned.free.record()

    def _take(self, size: int) -> _Pinned:
        """A buffer that may be written. Never waits: a copy under way may stand behind a whole step."""
        if not self._pinned or not self._pinned[0].free.query():  # type: ignore[no-untyped-call]
            self._pinned.appendleft(_Pinned.make(FIRST_BYTES))
        pinned = self._pinned.popleft()
        if len(pinned.bytes) < size:
            pinned = _Pinned.make(1 << (size - 1).bit_length())
        self._pinned.append(pinned)
        return pinned


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
        return torch.empty(self._most_tokens, dtype=torch.int64, pin_memory=True), _event()


def _event() -> torch.cuda.Event:
    return torch.cuda.Event()  # type: ignore[no-untyped-call]


def event_after(tensor: Tensor) -> torch.cuda.Event | None:
    """An event behind all that was launched so far, where `tensor` is on a CUDA device; on the CPU all is done."""
    if not tensor.is_cuda:
        return None
    event = _event()
    event.record()
    return event

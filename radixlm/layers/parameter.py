"""What a layer says of its tensors: checkpoint names, where they go, how ranks would share them. Knows no model."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor


class Shard(Enum):
    """The axis of a checkpoint tensor that tensor-parallel ranks divide among themselves."""

    NONE = None  # every rank holds the whole
    OUTPUT = 0  # rows of a weight, elements of its bias
    INPUT = 1  # columns of a weight


@dataclass(frozen=True)
class Parameter:
    """One tensor of a checkpoint.

    Attributes:
        name: its name in a Hugging Face checkpoint.
        data: where its values go, already in shape and dtype; often a view into a fused tensor.
        shard: how ranks would divide it.
        centre: the value around which random stand-in weights are drawn.
    """

    name: str
    data: Tensor
    shard: Shard
    centre: float = 0.0


@dataclass(frozen=True)
class Placement:
    """The dtype and device on which a model's tensors are made.

    `invariant`: a row's result must be the same bits whatever other rows are computed with it.
    """

    dtype: torch.dtype
    device: torch.device
    invariant: bool = False

    def empty(self, *shape: int) -> Tensor:
        """An uninitialised tensor; on the CPU its memory is taken as it is first written."""
        return torch.empty(shape, dtype=self.dtype, device=self.device)


class Layer(ABC):
    """A building block that owns parameters."""

    @abstractmethod
    def parameters(self, prefix: str) -> Iterator[Parameter]:
        """The checkpoint tensors it takes, their names under `prefix` (which ends with a dot, or is empty).

        After `pack` they may be copies of the values, to be read only.
        """

    def pack(self) -> None:  # noqa: B027
        """Lay the loaded weights out for running; called once, after loading. Most layers have nothing to do."""

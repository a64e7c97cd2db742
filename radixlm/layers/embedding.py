"""Token embedding and output head, which may share one matrix. Knows no model."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from radixlm.kernels.linear import PackedLinear, pack_linear
from radixlm.layers.parameter import Layer, Parameter, Placement, Shard


class Embedding(Layer):
    """Token id to hidden vector."""

    def __init__(
        self, name: str, vocab_size: int, hidden_size: int, place: Placement, scale: float | None = None
    ) -> None:
        """`scale`: what vectors are multiplied by, in their dtype."""
        self._name = name
        self._scale = None if scale is None else torch.tensor(scale, dtype=place.dtype).item()
        self.weight = place.empty(vocab_size, hidden_size)

    def __call__(self, input_ids: Tensor) -> Tensor:
        """input_ids: int64 [T]. Returns a new [T, hidden_size]."""
        vectors = F.embedding(input_ids, self.weight)
        return vectors if self._scale is None else vectors.mul_(self._scale)

    def parameters(self, prefix: str) -> Iterator[Parameter]:
        yield Parameter(f"{prefix}{self._name}.weight", self.weight, Shard.OUTPUT)


class Head(Layer):
    """Hidden vector to logits; with `tied` it uses that embedding's matrix and takes nothing from a checkpoint."""

    def __init__(self, name: str, vocab_size: int, hidden_size: int, tied: Embedding | None, place: Placement) -> None:
        self._name = name
        self._tied = tied is not None
        weight = tied.weight if tied is not None else place.empty(vocab_size, hidden_size)
        self._invariant = place.invariant
        self._run = PackedLinear(weight, None)

    def __call__(self, hidden: Tensor) -> Tensor:
        """hidden: [L, hidden_size]. Returns float32 [L, vocab_size]."""
        return self.raw(hidden).float()

    def raw(self, hidden: Tensor) -> Tensor:
        """The same in the dtype of `hidden`, unless its sums are there in float32: rounding makes tokens tie."""
        return self._run.wide(hidden)

    def parameters(self, prefix: str) -> Iterator[Parameter]:
        if not self._tied:
            yield Parameter(f"{prefix}{self._name}.weight", self._run.weight, Shard.OUTPUT)

    def pack(self) -> None:
        self._run = pack_linear(self._run.weight, None, self._invariant)

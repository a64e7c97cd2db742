"""Normalisations with their weights. Knows no model."""

from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from radixlm.kernels.norm import add_rms_norm, rms_norm
from radixlm.layers.parameter import Layer, Parameter, Placement, Shard


class RMSNorm(Layer):
    """Normalises the last axis to a root mean square of 1, with a weight (arXiv 1910.07467)."""

    def __init__(self, name: str, size: int, eps: float, place: Placement) -> None:
        """`name`: the layer's own in the checkpoint."""
        self._name = name
        self.weight = place.empty(size)
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        """x: [..., size]. Returns the same shape and dtype."""
        return rms_norm(x, self.weight, self._eps)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """residual += x in place, then the normalised residual. Both [T, size]."""
        return add_rms_norm(x, residual, self.weight, self._eps)

    def parameters(self, prefix: str) -> Iterator[Parameter]:
        yield Parameter(f"{prefix}{self._name}.weight", self.weight, Shard.NONE, centre=1.0)


class OffsetRMSNorm(RMSNorm):
    """The norm of the Gemma family, whose weight is what a checkpoint has plus 1: in float32, where it is exact."""

    def __init__(self, name: str, size: int, eps: float, place: Placement) -> None:
        super().__init__(name, size, eps, replace(place, dtype=torch.float32))
        self._offset = 0.0

    def parameters(self, prefix: str) -> Iterator[Parameter]:
        loaded = self.weight - self._offset if self._offset else self.weight
        yield Parameter(f"{prefix}{self._name}.weight", loaded, Shard.NONE)

    def pack(self) -> None:
        self._offset = 1.0
        self.weight.add_(1.0)


class LayerNorm(Layer):
    """Normalises the last axis to mean 0 and variance 1, with weight and bias (arXiv 1607.06450)."""

    def __init__(self, name: str, size: int, eps: float, place: Placement) -> None:
        self._name = name
        self._weight, self._bias = place.empty(size), place.empty(size)
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        """x: [..., size]. Returns the same shape and dtype."""
        return F.layer_norm(x, self._weight.shape, self._weight, self._bias, self._eps)

    def parameters(self, prefix: str) -> Iterator[Parameter]:
        yield Parameter(f"{prefix}{self._name}.weight", self._weight, Shard.NONE, centre=1.0)
        yield Parameter(f"{prefix}{self._name}.bias", self._bias, Shard.NONE)

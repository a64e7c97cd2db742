"""y = x Wᵀ + b, with room for a backend to lay the weights out once after loading. Knows tensors only."""

import torch
import torch.nn.functional as F
from torch import Tensor

from radixlm.kernels import triton
from radixlm.kernels.activation import Activation, gate_mul


class PackedLinear:
    """A linear map ready to run; the reference keeps the weights as they are.

    A subclass may hold the weights in another layout and drop the originals; it is made once, after loading.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """weight: [out_features, in_features]; bias: [out_features] or None; both in the model's dtype."""
        self.weight = weight
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """x: [T, in_features], contiguous rows. Returns a new [T, out_features] in x's dtype."""
        return F.linear(x, self.weight, self.bias)

    def wide(self, x: Tensor) -> Tensor:
        """The map with results as exact as they come, in x's dtype or float32."""
        return self(x)

    def gated(self, x: Tensor, activation: Activation) -> Tensor:
        """`gate_mul` of the map, which is a gate's projection and the gated one's: [T, out_features / 2]."""
        return gate_mul(self(x), activation)


class DeviceLinear(PackedLinear):
    """The vendor's matrix product, but where there are few rows and reading the weights is all, our own."""

    def __call__(self, x: Tensor) -> Tensor:
        from radixlm.kernels.triton import gemv

        most_rows = gemv.MOST_ROWS if self.weight.numel() >= gemv.MANY_WEIGHTS else gemv.FEW_ROWS
        if x.shape[0] <= most_rows:
            return gemv.linear(x, self.weight, self.bias)
        return F.linear(x, self.weight, self.bias)

    def gated(self, x: Tensor, activation: Activation) -> Tensor:
        from radixlm.kernels.triton import gemv

        if x.shape[0] <= gemv.MOST_GATED_ROWS:
            return gemv.gated_linear(x, self.weight, self.bias, activation)
        return gate_mul(F.linear(x, self.weight, self.bias), activation)


class InvariantLinear(PackedLinear):
    """Our own matrix product for every number of rows: a row's result does not depend on the others, to the bit."""

    def __call__(self, x: Tensor) -> Tensor:
        from radixlm.kernels.triton.matmul import invariant_linear

        return invariant_linear(x, self.weight, self.bias)


def pack_linear(weight: Tensor, bias: Tensor | None, invariant: bool = False) -> PackedLinear:
    """The best way this machine knows to apply these weights; called once per layer after loading.

    `invariant`: a row's result must be the same bits alone and among others, which the native kernels' always is.
    """
    from radixlm.kernels.native.linear import pack_native  # it extends PackedLinear

    if weight.is_cuda and invariant:
        return InvariantLinear(weight, bias)
    if weight.is_cuda and weight.dtype in (torch.bfloat16, torch.float16) and triton.available():
        return DeviceLinear(weight, bias)
    return pack_native(weight, bias) or PackedLinear(weight, bias)

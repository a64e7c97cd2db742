"""A linear layer over packed weights: our own kernel for every number of rows. Knows tensors only."""

from __future__ import annotations

import torch
from torch import Tensor

from radixlm.kernels.linear import PackedLinear
from radixlm.kernels.native.library import Kernel, Library, library


class NativeLinear(PackedLinear):
    """y = x Wᵀ + b with W copied once into the kernel's order; the original weight may be dropped.

    Sums are float32. A row's result is bit for bit the same alone or among any number of other rows: each output is one
    chain of additions in rising order of the inner dimension (pairs of neighbours for bfloat16).
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, kernels: Library) -> None:
        self.out_features, self.in_features = weight.shape
        self.dtype = weight.dtype
        rows = weight if weight.stride(1) == 1 else weight.contiguous()
        self.packed = torch.empty(kernels.packed_elements(*weight.shape), dtype=weight.dtype)
        kernels.pack[weight.dtype](
            rows.data_ptr(), rows.stride(0), self.packed.data_ptr(), self.out_features, self.in_features
        )
        self.float_bias = None if bias is None else bias.float().contiguous()
        self._run = kernels.linear[weight.dtype, weight.dtype]
        self._run_wide = kernels.linear[weight.dtype, torch.float32]
        self._packed_at = self.packed.data_ptr()
        self._bias_at = None if self.float_bias is None else self.float_bias.data_ptr()

    @property
    def weight(self) -> Tensor:
        """[out_features, in_features], unpacked: the exact values, as a copy."""
        eye = torch.eye(self.in_features, dtype=self.dtype)
        rows = torch.empty((self.in_features, self.out_features), dtype=self.dtype)
        self._run(
            eye.data_ptr(), self.in_features, self._packed_at, None, rows.data_ptr(),
            self.in_features, self.out_features, self.in_features,
        )  # fmt: skip
        return rows.T

    @property
    def bias(self) -> Tensor | None:
        """[out_features] or None, as a copy."""
        return None if self.float_bias is None else self.float_bias.to(self.dtype)

    def __call__(self, x: Tensor) -> Tensor:
        """x: [T, in_features] in the weight's dtype, contiguous rows. Returns a new [T, out_features]."""
        return self._into(self.dtype, self._run, x)

    def wide(self, x: Tensor) -> Tensor:
        return self._into(torch.float32, self._run_wide, x)

    def _into(self, dtype: torch.dtype, run: Kernel, x: Tensor) -> Tensor:
        rows, width = x.shape
        if x.dtype is not self.dtype or width != self.in_features or x.stride(1) != 1:
            raise ValueError(f"expected contiguous rows of {self.in_features} {self.dtype}, got {x.shape} {x.dtype}")
        y = torch.empty((rows, self.out_features), dtype=dtype)
        run(x.data_ptr(), x.stride(0), self._packed_at, self._bias_at, y.data_ptr(), rows, self.out_features, width)
        return y


def pack_native(weight: Tensor, bias: Tensor | None) -> NativeLinear | None:
    """The layer for CPU weights in bfloat16 or float32 where the kernels are built; None otherwise."""
    if not weight.is_cpu or weight.shape[1] % 2:
        return None
    kernels = library()
    if kernels is None or weight.dtype not in kernels.pack:
        return None
    return NativeLinear(weight, bias, kernels)

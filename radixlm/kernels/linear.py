"""y = x Wᵀ + b, with room for a backend to lay the weights out once after loading. Knows tensors only."""

import torch.nn.functional as F
from torch import Tensor


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


def pack_linear(weight: Tensor, bias: Tensor | None) -> PackedLinear:
    """The best way this machine knows to apply these weights; called once per layer after loading."""
    from radixlm.kernels.native.linear import pack_native  # it extends PackedLinear

    return pack_native(weight, bias) or PackedLinear(weight, bias)

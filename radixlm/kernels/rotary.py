"""Rotary position embedding of query and key heads: the torch reference, and native. Knows tensors only."""

import torch
from torch import Tensor

from radixlm.kernels.native import elementwise as native


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each head's pairs (i, i + head_dim / 2) by its token's angles, in float32 (arXiv 2104.09864).

    x: [T, heads, head_dim], any strides over T; queries and keys may come in one call, as neighbouring heads.
    cos, sin: float32 [T, 1, head_dim], both halves alike but for the sign: sin's first half is negated, so that the
    result is x * cos + swap_halves(x) * sin. Returns [T, heads, head_dim] in x's dtype; x is not changed.
    """
    y = native.rotary(x, cos, sin)
    if y is not None:
        return y
    swapped = x.roll(x.shape[-1] // 2, -1)
    return torch.addcmul(x * cos, swapped, sin).to(x.dtype)

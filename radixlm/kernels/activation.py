"""The gated activation of the feed-forward block: torch's, native and Triton's. Knows tensors only."""

import torch.nn.functional as F
from torch import Tensor

from radixlm.kernels import triton
from radixlm.kernels.native import elementwise as native


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of a fused projection (SwiGLU, arXiv 2002.05202).

    gate_up: [T, 2 * n], gate first. Returns [T, n] in the same dtype; gate_up is not changed.
    """
    if gate_up.is_cuda and triton.available():
        from radixlm.kernels.triton import elementwise as device

        return device.silu_mul(gate_up)
    y = native.silu_mul(gate_up)
    if y is not None:
        return y
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)

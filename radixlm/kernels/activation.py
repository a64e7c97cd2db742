"""The gated activation of the feed-forward block: torch's, native and Triton's. Knows tensors only."""

from collections.abc import Callable
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from radixlm.kernels import triton
from radixlm.kernels.native import elementwise as native

# SiLU, and the approximation of GELU by a hyperbolic tangent (arXiv 1606.08415).
Activation = Literal["silu", "gelu_tanh"]

_FUNCTIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


def gate_mul(gate_up: Tensor, activation: Activation = "silu") -> Tensor:
    """activation(gate) * up of a fused projection (SwiGLU, GEGLU: arXiv 2002.05202).

    gate_up: [T, 2 * n], gate first. Returns [T, n] in the same dtype; gate_up is not changed.
    """
    if gate_up.is_cuda and triton.available():
        from radixlm.kernels.triton import elementwise as device

        return device.gate_mul(gate_up, activation)
    y = native.gate_mul(gate_up, activation)
    if y is not None:
        return y
    gate, up = gate_up.chunk(2, dim=-1)
    return _FUNCTIONS[activation](gate).mul_(up)

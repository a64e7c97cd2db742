"""Native forms of normalisation, rotation and gating; each answers None when torch has to do it. Knows tensors only."""

import torch
from torch import Tensor

from radixlm.kernels.native.library import library


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor | None = None) -> Tensor | None:
    """`radixlm.kernels.norm.rms_norm` for CPU tensors: contiguous, rows apart, or a token's neighbouring heads."""
    kernels = library() if x.is_cpu else None
    run = kernels.rms_norm.get((x.dtype, weight.dtype)) if kernels else None
    if run is None or not weight.is_contiguous():
        return None
    y = torch.empty(x.shape, dtype=x.dtype) if out is None else out
    n = x.shape[-1]
    heads = 1 if (x.is_contiguous() and y.is_contiguous()) or x.dim() != 3 else x.shape[1]
    x_row, y_row = _row(x, heads), _row(y, heads)
    if x_row is None or y_row is None:
        return None
    run(x.data_ptr(), x_row, heads, weight.data_ptr(), y.data_ptr(), y_row, x.numel() // n, n, eps)
    return y


def _row(x: Tensor, heads: int) -> int | None:
    """The distance between tokens of `heads` neighbouring vectors each, or None when they do not lie so."""
    n = x.shape[-1]
    if x.is_contiguous():
        return heads * n
    if x.dim() not in (2, 3) or x.stride(-1) != 1 or (x.dim() == 3 and x.stride(1) != n):
        return None
    return x.stride(0)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor | None:
    """`radixlm.kernels.norm.add_rms_norm` for contiguous CPU tensors."""
    kernels = library() if x.is_cpu else None
    run = kernels.add_rms_norm.get((x.dtype, weight.dtype)) if kernels else None
    if run is None or x.dtype is not residual.dtype:
        return None
    if not (x.is_contiguous() and residual.is_contiguous() and weight.is_contiguous() and x.shape == residual.shape):
        return None
    n = x.shape[-1]
    y = torch.empty(x.shape, dtype=x.dtype)
    run(x.data_ptr(), residual.data_ptr(), weight.data_ptr(), y.data_ptr(), x.numel() // n, n, eps)
    return y


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor | None:
    """`radixlm.kernels.rotary.rotary` for CPU heads that lie side by side within a token."""
    kernels = library() if x.is_cpu else None
    run = kernels.rotary.get(x.dtype) if kernels else None
    tokens, heads, head_dim = x.shape
    if run is None or head_dim % 2 or x.stride(2) != 1 or x.stride(1) != head_dim:
        return None
    if cos.dtype is not torch.float32 or sin.dtype is not torch.float32 or cos.numel() != tokens * head_dim:
        return None
    if not (cos.is_contiguous() and sin.is_contiguous()):
        return None
    y = torch.empty((tokens, heads, head_dim), dtype=x.dtype)
    run(x.data_ptr(), x.stride(0), cos.data_ptr(), sin.data_ptr(), y.data_ptr(), tokens, heads, head_dim)
    return y


def gate_mul(gate_up: Tensor, activation: str = "silu") -> Tensor | None:
    """`radixlm.kernels.activation.gate_mul` for a contiguous CPU tensor."""
    kernels = library() if gate_up.is_cpu else None
    run = kernels.gate_mul[activation].get(gate_up.dtype) if kernels else None
    if run is None or not gate_up.is_contiguous():
        return None
    tokens, width = gate_up.shape
    y = torch.empty((tokens, width // 2), dtype=gate_up.dtype)
    run(gate_up.data_ptr(), y.data_ptr(), tokens, width // 2)
    return y

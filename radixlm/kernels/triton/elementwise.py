"""Normalisation and gating, one launch each; references: `kernels.norm`, `kernels.activation`. Knows tensors only."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from radixlm.kernels.triton.device import early_launch


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`radixlm.kernels.norm.rms_norm` for x [..., n], its last axis contiguous."""
    n = x.shape[-1]
    rows = x if x.dim() == 2 and x.stride(1) == 1 else x.contiguous().view(-1, n)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if rows.shape[0]:
        block, warps = _width(n)
        _rms_norm[(rows.shape[0],)](
            rows, rows, weight, y, rows.stride(0), 0, n, eps,
            BLOCK=block, ADD=False, num_warps=warps, **early_launch(x.device),
        )  # fmt: skip
    return y


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`radixlm.kernels.norm.add_rms_norm` for x and residual [T, n], their rows contiguous."""
    n = x.shape[-1]
    y = torch.empty(x.shape, dtype=residual.dtype, device=x.device)
    if x.shape[0]:
        block, warps = _width(n)
        _rms_norm[(x.shape[0],)](
            x, residual, weight, y, x.stride(0), residual.stride(0), n, eps,
            BLOCK=block, ADD=True, num_warps=warps, **early_launch(x.device),
        )  # fmt: skip
    return y


def gate_mul(gate_up: Tensor, activation: str = "silu") -> Tensor:
    """`radixlm.kernels.activation.gate_mul` for gate_up [T, 2 * n], its rows contiguous."""
    tokens, width = gate_up.shape
    n = width // 2
    y = torch.empty((tokens, n), dtype=gate_up.dtype, device=gate_up.device)
    if tokens:
        block = min(1024, triton.next_power_of_2(n))
        _gate_mul[(tokens, triton.cdiv(n, block))](
            gate_up, y, gate_up.stride(0), n,
            ACTIVATION=activation, BLOCK=block, num_warps=4, **early_launch(gate_up.device),
        )  # fmt: skip
    return y


def _width(n: int) -> tuple[int, int]:
    """The block for rows of n elements, and its warps."""
    block = triton.next_power_of_2(n)
    return block, min(16, max(1, block // 512))


@triton.jit(do_not_specialize_on_alignment=["x"])
def _rms_norm(
    x, residual, weight, y, x_stride, residual_stride, n, eps,
    BLOCK: tl.constexpr, ADD: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    real = column < n
    value = tl.load(x + row * x_stride + column, mask=real, other=0.0).to(tl.float32)
    if ADD:
        at = residual + row * residual_stride + column
        value += tl.load(at, mask=real, other=0.0).to(tl.float32)
        rounded = value.to(residual.dtype.element_ty)
        tl.store(at, rounded, mask=real)
        value = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, 0) / n + eps)
    w = tl.load(weight + column, mask=real, other=0.0).to(tl.float32)
    tl.store(y + row * n + column, (value * scale * w).to(y.dtype.element_ty), mask=real)


@triton.jit
def _gate_mul(gate_up, y, stride, n, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = column < n
    gate = tl.load(gate_up + row * stride + column, mask=real, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * stride + n + column, mask=real, other=0.0).to(tl.float32)
    tl.store(y + row * n + column, (activated(gate, ACTIVATION) * up).to(y.dtype.element_ty), mask=real)


@triton.jit
def activated(x, KIND: tl.constexpr):
    """SiLU of x or, by (1 + tanh(z)) / 2 = sigmoid(2 z), the approximation of GELU by a hyperbolic tangent."""
    if KIND == "gelu_tanh":
        return x * tl.sigmoid(1.5957691216057308 * x * (1.0 + 0.044715 * x * x))
    return x * tl.sigmoid(x)

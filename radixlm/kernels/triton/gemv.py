"""Linear maps of a few rows, which take as long as their weights take to arrive. Knows tensors only.

References: `kernels.linear.PackedLinear`, and `kernels.activation.silu_mul` after it. A program has some rows of the
weights to itself, and may start while the kernel before it still runs.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from radixlm.kernels.triton.device import device_of, early_launch

MOST_WEIGHTS = 1 << 23  # beyond, the memory is the limit, and a library reads it as well as we do
MOST_ROWS = 16  # up to here a tile of the tensor cores holds all rows


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [1, K] times weight [N, K] transposed, plus bias [N]: [1, N] in x's dtype, summed in float32."""
    n, k = weight.shape
    y = torch.empty((1, n), dtype=x.dtype, device=x.device)
    block_n, block_k = (2, 1024) if n <= 2048 else (4, 512)
    _linear[(triton.cdiv(n, block_n),)](
        x,
        weight,
        x if bias is None else bias,
        y,
        n,
        k,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        BIAS=bias is not None,
        num_warps=4,
        **early_launch(x.device),
    )
    return y


def gated_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`silu_mul` of the linear map of x [M, K], without its result going to memory: [M, N / 2], M up to MOST_ROWS."""
    rows, k = x.shape
    n = weight.shape[0] // 2
    y = torch.empty((rows, n), dtype=x.dtype, device=x.device)
    if rows == 0:
        return y
    device = device_of(x.device)
    block_n, block_k = (64, 128) if n >= 64 * device.multiprocessors else (32, 256)
    _gated[(triton.cdiv(n, block_n),)](
        x,
        weight,
        x if bias is None else bias,
        y,
        rows,
        n,
        k,
        x.stride(0),
        ROWS=MOST_ROWS,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        BIAS=bias is not None,
        EVEN=k % block_k == 0,
        num_warps=4,
        num_stages=5 if device.shared_bytes > 200_000 else 2,
        **early_launch(x.device),
    )
    return y


@triton.jit(do_not_specialize_on_alignment=["x", "bias"])
def _linear(
    x,
    weight,
    bias,
    y,
    n,
    k,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BIAS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One row: nothing to share between rows, so the products are summed without tensor cores."""
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    lane = tl.arange(0, BLOCK_K)
    there = column < n
    # A row of weights too many repeats the last one, and is not stored.
    at = weight + tl.minimum(column, n - 1).to(tl.int64)[:, None] * k
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    w = tl.load(at + lane[None, :], mask=(lane < k)[None, :], other=0.0)  # nobody writes weights: no need to wait
    if EARLY:
        tl.extra.cuda.gdc_wait()
    total = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    for first in tl.range(0, k, BLOCK_K):
        ahead = first + BLOCK_K + lane
        values = tl.load(x + first + lane, mask=first + lane < k, other=0.0).to(tl.float32)
        w_next = tl.load(at + ahead[None, :], mask=(ahead < k)[None, :], other=0.0)
        total += w.to(tl.float32) * values[None, :]
        w = w_next
    result = tl.sum(total, 1)
    if BIAS:
        result += tl.load(bias + column, mask=there, other=0.0).to(tl.float32)
    tl.store(y + column, result.to(y.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=["bias"])
def _gated(
    x,
    weight,
    bias,
    y,
    rows,
    n,
    k,
    x_stride,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BIAS: tl.constexpr,
    EVEN: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Several rows on tensor cores; n counts the gates, whose rows come first in the weights."""
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row, lane = tl.arange(0, ROWS), tl.arange(0, BLOCK_K)
    there, real = column < n, row < rows
    # A row of weights too many repeats the last one, and is not stored.
    at = weight + tl.minimum(column, n - 1).to(tl.int64)[:, None] * k
    up_at = at + n.to(tl.int64) * k
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    gate = tl.zeros([ROWS, BLOCK_N], tl.float32)
    up = tl.zeros([ROWS, BLOCK_N], tl.float32)
    for first in tl.range(0, k, BLOCK_K):
        inner = first + lane
        mask = real[:, None] & (inner < k)[None, :]
        values = tl.load(x + row[:, None] * x_stride + inner[None, :], mask=mask, other=0.0)
        gate = tl.dot(values, tl.trans(_weights(at, inner, k, EVEN)), gate)
        up = tl.dot(values, tl.trans(_weights(up_at, inner, k, EVEN)), up)
    if BIAS:
        gate += tl.load(bias + column, mask=there, other=0.0).to(tl.float32)[None, :]
        up += tl.load(bias + n + column, mask=there, other=0.0).to(tl.float32)[None, :]
    # Rounded in between as the two steps would.
    gate, up = gate.to(y.dtype.element_ty).to(tl.float32), up.to(y.dtype.element_ty).to(tl.float32)
    result = (gate * tl.sigmoid(gate) * up).to(y.dtype.element_ty)
    tl.store(y + row[:, None] * n + column[None, :], result, mask=real[:, None] & there[None, :])


@triton.jit
def _weights(at, inner, k, EVEN: tl.constexpr):
    """A tile of weights; `at`: where its rows begin."""
    return tl.load(at + inner[None, :]) if EVEN else tl.load(at + inner[None, :], mask=(inner < k)[None, :], other=0.0)

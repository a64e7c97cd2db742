"""Linear maps of a few rows, which take as long as their weights take to arrive. Knows tensors only.

References: `kernels.linear.PackedLinear`, and `kernels.activation.silu_mul` after it. A program has some rows of the
weights to itself, and may start while the kernel before it still runs.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from radixlm.kernels.triton.device import device_of, early_launch

MOST_ROWS = 16  # up to here a tile of the tensor cores holds all rows
MOST_COLUMNS = 2048  # of a row of weights at a time: four warps then have 32 bytes each in flight per thread


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [1, K] times weight [N, K] transposed, plus bias [N]: [1, N] in x's dtype, summed in float32."""
    return _one_row(x, weight, bias, False)


def gated_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`silu_mul` of the linear map of x [M, K], without its result going to memory: [M, N / 2], M up to MOST_ROWS."""
    rows, k = x.shape
    if rows == 1:
        return _one_row(x, weight, bias, True)
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


def _one_row(x: Tensor, weight: Tensor, bias: Tensor | None, gated: bool) -> Tensor:
    n, k = weight.shape
    n = n // 2 if gated else n
    y = torch.empty((1, n), dtype=x.dtype, device=x.device)
    block_k = min(MOST_COLUMNS, triton.next_power_of_2(k))
    block_n = MOST_COLUMNS // block_k
    _row[(triton.cdiv(n, block_n),)](
        x,
        weight,
        x if bias is None else bias,
        y,
        n,
        k,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        PIECES=triton.cdiv(k, block_k),
        EVEN=k % block_k == 0,
        BIAS=bias is not None,
        GATED=gated,
        num_warps=4,
        **early_launch(x.device),
    )
    return y


@triton.jit(do_not_specialize_on_alignment=["bias"])
def _row(
    x,
    weight,
    bias,
    y,
    n,
    k,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PIECES: tl.constexpr,
    EVEN: tl.constexpr,
    BIAS: tl.constexpr,
    GATED: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One row: nothing to share between rows, so the products are summed without tensor cores.

    Weights are asked for a piece ahead, and the first before the kernel before this one is done: nobody writes them.
    """
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    lane = tl.arange(0, BLOCK_K)
    # A row of weights too many repeats the last one, and is not stored.
    at = weight + tl.minimum(column, n - 1).to(tl.int64)[:, None] * k
    up_at = at + n.to(tl.int64) * k
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    w = _weights(at, lane, k, EVEN)
    if GATED:
        u = _weights(up_at, lane, k, EVEN)
    if EARLY:
        tl.extra.cuda.gdc_wait()
    total = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    up_total = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    for piece in tl.static_range(PIECES):
        inner = piece * BLOCK_K + lane
        values = tl.load(x + inner, mask=inner < k, other=0.0).to(tl.float32)[None, :]
        w_now = w
        if piece + 1 < PIECES:
            w = _weights(at, inner + BLOCK_K, k, EVEN)
        total += w_now.to(tl.float32) * values
        if GATED:
            u_now = u
            if piece + 1 < PIECES:
                u = _weights(up_at, inner + BLOCK_K, k, EVEN)
            up_total += u_now.to(tl.float32) * values
    there = column < n
    result = tl.sum(total, 1)
    if BIAS:
        result += tl.load(bias + column, mask=there, other=0.0).to(tl.float32)
    if GATED:
        up = tl.sum(up_total, 1)
        if BIAS:
            up += tl.load(bias + n + column, mask=there, other=0.0).to(tl.float32)
        result = _gate(result, up, y.dtype.element_ty)
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
    result = _gate(gate, up, y.dtype.element_ty).to(y.dtype.element_ty)
    tl.store(y + row[:, None] * n + column[None, :], result, mask=real[:, None] & there[None, :])


@triton.jit
def _gate(gate, up, dtype: tl.constexpr):
    """SiLU of the gate times the other, rounded in between as the two steps would."""
    gate, up = gate.to(dtype).to(tl.float32), up.to(dtype).to(tl.float32)
    return gate * tl.sigmoid(gate) * up


@triton.jit
def _weights(at, inner, k, EVEN: tl.constexpr):
    """A tile of weights, each of which is read once; `at`: where its rows begin."""
    if EVEN:
        return tl.load(at + inner[None, :], eviction_policy="evict_first")
    return tl.load(at + inner[None, :], mask=(inner < k)[None, :], other=0.0, eviction_policy="evict_first")

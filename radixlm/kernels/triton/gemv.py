"""Linear maps of a few rows, which take as long as their weights take to arrive. Knows tensors only.

References: `kernels.linear.PackedLinear`, and `kernels.activation.gate_mul` after it. A program has some rows of the
weights to itself, and may start while the kernel before it still runs.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from radixlm.kernels.triton.device import device_of, early_launch
from radixlm.kernels.triton.elementwise import activated

MOST_ROWS = 32  # beyond, the rows themselves are much of what is read, and the vendor's kernels share them
MOST_GATED_ROWS = 16  # beyond, two tiles of weights and one of rows leave too little under way
MANY_WEIGHTS = 1 << 23  # fewer are read so fast that for more than FEW_ROWS the vendor's splitting of sums pays
FEW_ROWS = 4
MOST_COLUMNS = 2048  # of a row of weights at a time: four warps then have 32 bytes each in flight per thread
TILE_ROWS, TILE_COLUMNS = 64, 128  # of weights at a time, where tensor cores multiply
MOST_STAGES = 7  # such tiles under way


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [M, K] times weight [N, K] transposed, plus bias [N]: [M, N] in x's dtype; sums in float32, M <= MOST_ROWS."""
    return _one_row(x, weight, bias, None) if x.shape[0] == 1 else _several_rows(x, weight, bias, None)


def gated_linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str = "silu") -> Tensor:
    """`gate_mul` of the linear map of x [M, K], without its result going to memory: [M, N / 2], M <= MOST_ROWS."""
    return _one_row(x, weight, bias, activation) if x.shape[0] == 1 else _several_rows(x, weight, bias, activation)


def _several_rows(x: Tensor, weight: Tensor, bias: Tensor | None, gate: str | None) -> Tensor:
    rows, k = x.shape
    n = weight.shape[0] // 2 if gate else weight.shape[0]
    y = torch.empty((rows, n), dtype=x.dtype, device=x.device)
    if rows == 0:
        return y
    device = device_of(x.device)
    height = max(16, triton.next_power_of_2(rows))
    stage_bytes = ((2 if gate else 1) * TILE_ROWS + height) * TILE_COLUMNS * x.element_size()
    _several[(triton.cdiv(n, TILE_ROWS),)](
        x,
        weight,
        x if bias is None else bias,
        y,
        rows,
        n,
        k,
        x.stride(0),
        ROWS=height,
        BLOCK_N=TILE_ROWS,
        BLOCK_K=TILE_COLUMNS,
        EVEN=k % TILE_COLUMNS == 0,
        BIAS=bias is not None,
        GATE=gate,
        num_warps=4,
        num_stages=min(MOST_STAGES, device.shared_bytes // stage_bytes),
        **early_launch(x.device),
    )
    return y


def _one_row(x: Tensor, weight: Tensor, bias: Tensor | None, gate: str | None) -> Tensor:
    n, k = weight.shape
    n = n // 2 if gate else n
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
        GATE=gate,
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
    GATE: tl.constexpr,
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
    if GATE is not None:
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
        if GATE is not None:
            u_now = u
            if piece + 1 < PIECES:
                u = _weights(up_at, inner + BLOCK_K, k, EVEN)
            up_total += u_now.to(tl.float32) * values
    there = column < n
    result = tl.sum(total, 1)
    if BIAS:
        result += tl.load(bias + column, mask=there, other=0.0).to(tl.float32)
    if GATE is not None:
        up = tl.sum(up_total, 1)
        if BIAS:
            up += tl.load(bias + n + column, mask=there, other=0.0).to(tl.float32)
        result = _gate(result, up, y.dtype.element_ty, GATE)
    tl.store(y + column, result.to(y.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=["bias"])
def _several(
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
    EVEN: tl.constexpr,
    BIAS: tl.constexpr,
    GATE: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Several rows on tensor cores, of which weights are the tall operand; n counts outputs, gates come first."""
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row, lane = tl.arange(0, ROWS), tl.arange(0, BLOCK_K)
    # A row too many repeats the last one, and is not stored; so for rows of weights.
    at = weight + tl.minimum(column, n - 1).to(tl.int64)[:, None] * k
    up_at = at + n.to(tl.int64) * k
    x_at = x + tl.minimum(row, rows - 1)[None, :] * x_stride
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    result = tl.zeros([BLOCK_N, ROWS], tl.float32)
    up = tl.zeros([BLOCK_N, ROWS], tl.float32)
    for first in tl.range(0, k, BLOCK_K):
        inner = first + lane
        values = (
            tl.load(x_at + inner[:, None])
            if EVEN
            else tl.load(x_at + inner[:, None], mask=(inner < k)[:, None], other=0.0)
        )
        result = tl.dot(_weights(at, inner, k, EVEN), values, result)
        if GATE is not None:
            up = tl.dot(_weights(up_at, inner, k, EVEN), values, up)
    there = column < n
    if BIAS:
        result += tl.load(bias + column, mask=there, other=0.0).to(tl.float32)[:, None]
        if GATE is not None:
            up += tl.load(bias + n + column, mask=there, other=0.0).to(tl.float32)[:, None]
    if GATE is not None:
        result = _gate(result, up, y.dtype.element_ty, GATE)
    y_at = y + row[None, :] * n + column[:, None]
    tl.store(y_at, result.to(y.dtype.element_ty), mask=there[:, None] & (row < rows)[None, :])


@triton.jit
def _gate(gate, up, dtype: tl.constexpr, KIND: tl.constexpr):
    """The activation of the gate times the other, rounded in between as the two steps would."""
    gate, up = gate.to(dtype).to(tl.float32), up.to(dtype).to(tl.float32)
    return activated(gate, KIND) * up


@triton.jit
def _weights(at, inner, k, EVEN: tl.constexpr):
    """A tile of weights, each of which is read once; `at`: where its rows begin."""
    if EVEN:
        return tl.load(at + inner[None, :], eviction_policy="evict_first")
    return tl.load(at + inner[None, :], mask=(inner < k)[None, :], other=0.0, eviction_policy="evict_first")

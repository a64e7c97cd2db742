"""Matrix products whose every element is summed in the same order, however many rows there are. Knows tensors only.

A vendor's library takes another kernel, and with it another order of sums, for other numbers of rows. Here a row's
result is the same bits alone and in any company ("Defeating Nondeterminism in LLM Inference", He et al., 2025).
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from radixlm.kernels.triton.device import device_of

GROUP_ROWS = 8  # blocks of rows that go through the weights together, so that these stay in the second-level cache


@dataclass(frozen=True)
class Tiling:
    """Rows, columns and depth of a tile, warps, pipeline depth."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


def invariant_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [M, K] times weight [N, K] transposed, plus bias [N]: [M, N] in x's dtype, summed in float32.

    Rows of x and weight contiguous. Row i of the result depends on row i of x only, to the bit.
    """
    m, k = x.shape
    n = weight.shape[0]
    y = torch.empty((m, n), dtype=x.dtype, device=x.device)
    if m == 0:
        return y
    tiling = _tiling(m, x)
    blocks = triton.cdiv(m, tiling.rows) * triton.cdiv(n, tiling.columns)
    _matmul[(blocks,)](
        x,
        weight,
        x if bias is None else bias,
        y,
        m,
        n,
        k,
        x.stride(0),
        ROWS=tiling.rows,
        COLUMNS=tiling.columns,
        DEPTH=tiling.depth,
        GROUP=GROUP_ROWS,
        BIAS=bias is not None,
        EVEN=k % tiling.depth == 0,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    return y


def _tiling(m: int, x: Tensor) -> Tiling:
    """All tilings of a dtype add a row's products up in the same order: one after the other, 16 at a time."""
    if x.element_size() == 4:
        return Tiling(32, 32, 32, 4, 2)
    roomy = device_of(x.device).shared_bytes > 160_000
    if m <= 16:
        return Tiling(16, 32, 256, 4, 5 if roomy else 2)
    if m <= 64:
        return Tiling(64, 64, 128, 4, 4 if roomy else 2)
    if m <= 256 or not roomy:
        return Tiling(64, 128, 64, 4, 4 if roomy else 3)
    return Tiling(128, 256, 64, 8, 3)


@triton.jit(do_not_specialize=["m"], do_not_specialize_on_alignment=["x", "bias"])
def _matmul(
    x,
    weight,
    bias,
    y,
    m,
    n,
    k,
    x_stride,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    GROUP: tl.constexpr,
    BIAS: tl.constexpr,
    EVEN: tl.constexpr,
):
    blocks_m, blocks_n = tl.cdiv(m, ROWS), tl.cdiv(n, COLUMNS)
    group = tl.program_id(0) // (GROUP * blocks_n)
    inside = tl.program_id(0) - group * GROUP * blocks_n
    height = tl.minimum(blocks_m - group * GROUP, GROUP)
    row = (group * GROUP + inside % height) * ROWS + tl.arange(0, ROWS)
    column = inside // height * COLUMNS + tl.arange(0, COLUMNS)
    lane = tl.arange(0, DEPTH)
    # A row or column too many repeats the last one, and is not stored.
    x_at = x + tl.minimum(row, m - 1).to(tl.int64)[:, None] * x_stride + lane[None, :]
    w_at = weight + tl.minimum(column, n - 1).to(tl.int64)[:, None] * k + lane[None, :]
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in tl.range(0, k, DEPTH):
        if EVEN:
            a, b = tl.load(x_at + first), tl.load(w_at + first)
        else:
            inner = (first + lane < k)[None, :]
            a, b = tl.load(x_at + first, mask=inner, other=0.0), tl.load(w_at + first, mask=inner, other=0.0)
        total = tl.dot(a, tl.trans(b), total, input_precision="ieee")
    if BIAS:
        total += tl.load(bias + column, mask=column < n, other=0.0).to(tl.float32)[None, :]
    at = row.to(tl.int64)[:, None] * n + column[None, :]
    tl.store(y + at, total.to(y.dtype.element_ty), mask=(row < m)[:, None] & (column < n)[None, :])

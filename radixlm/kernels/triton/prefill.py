"""Attention of chunks of several query tokens over paged keys and values, causal. Knows tensors only.

FlashAttention-2's loop (arXiv 2307.08691). The query heads that share a key head stand in one tile with their tokens,
so that a short chunk fills it and a key is read once for all of them.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl
from torch import Tensor

from radixlm.kernels.triton.device import device_of

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)


def prefill_tiles(
    slots: npt.NDArray[np.int32],
    starts: npt.NDArray[np.int32],
    counts: npt.NDArray[np.int32],
    first_token: int,
    group: int,
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device,
) -> npt.NDArray[np.int32]:
    """Cut chunks (host integers [R]) into tiles; their tokens lie one after the other from `first_token` on.

    Returns [N, 4], those with most keys first: slot, position of the first query, its place among the step's tokens,
    number of tokens. A tile of no tokens does nothing.
    """
    height = tile_tokens(group, head_dim, dtype, device)
    tiles = -(-counts.astype(np.int64) // height)
    row = np.repeat(np.arange(len(counts)), tiles)
    offset = (np.arange(len(row)) - np.repeat(np.cumsum(tiles) - tiles, tiles)) * height
    firsts = first_token + np.cumsum(counts) - counts
    table = np.stack(
        (slots[row], starts[row] + offset, firsts[row] + offset, np.minimum(height, counts[row] - offset)), axis=1
    )
    order = np.argsort(-(table[:, 1] + table[:, 3]), kind="stable")
    return table[order].astype(np.int32)


def tile_tokens(group: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> int:
    """The most tokens that a tile holds."""
    return tiling_of(head_dim, dtype, device).block_m // group


def paged_prefill(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    page_table: Tensor,
    page_size: int,
    scale: float,
    tiles: Tensor,
    out: Tensor,
    *,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
    invariant: bool = False,
) -> None:
    """Attend each chunk token at position p to positions 0..p of its row's pages, into `out`.

    q: [T, heads, head_dim], heads side by side; out: [T, heads * head_dim] in q's dtype, contiguous; tokens in no tile
    are left alone. tiles: what `prefill_tiles` gave, on the device. keys, values, page_table, window, soft_cap, sinks:
    as `decode.paged_decode` takes them.
    `invariant`: a token's result is the same bits however its row was cut into chunks and tiles.
    """
    heads, head_dim = q.shape[1:]
    kv_heads = keys.shape[1]
    group = heads // kv_heads
    block_d = triton.next_power_of_2(head_dim)
    tiling = tiling_of(head_dim, q.dtype, q.device)
    _prefill[(kv_heads, tiles.shape[0])](
        q,
        keys,
        values,
        out,
        tiles,
        page_table,
        q if sinks is None else sinks,
        q.stride(0),
        page_table.stride(0),
        scale,
        KV_HEADS=kv_heads,
        GROUP=group,
        HEAD_DIM=head_dim,
        BLOCK_D=block_d,
        BLOCK_M=tiling.block_m,
        BLOCK_N=tiling.block_n,
        PAGE_SIZE=page_size,
        WINDOW=window or 0,
        SOFT_CAP=soft_cap or 0.0,
        SINKS=sinks is not None,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
        # A product that is added to might be rounded in one of the two loops over keys and not in the other.
        enable_fp_fusion=not invariant,
    )


@dataclass(frozen=True)
class Tiling:
    """Tile height and width, pipeline depth, warps."""

    block_m: int
    block_n: int
    stages: int
    warps: int


def tiling_of(head_dim: int, dtype: torch.dtype, device: torch.device) -> Tiling:
    """What measured best on an H200; with depth 5 two tiles of keys and values are under way, with 3 one."""
    if dtype.itemsize == 4:
        return Tiling(32, 32, 1, 4)
    if head_dim > 128:
        return Tiling(64, 32, 3, 4)
    return Tiling(64, 64, 5 if device_of(device).shared_bytes > 160_000 else 3, 4)


@triton.jit(do_not_specialize_on_alignment=["q", "out", "sinks"])
def _prefill(
    q,
    keys,
    values,
    out,
    tiles,
    table,
    sinks,
    q_stride,
    table_stride,
    scale,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    SINKS: tl.constexpr,
):
    head = tl.program_id(0)
    tile = tiles + tl.program_id(1) * 4
    slot, start = tl.load(tile).to(tl.int64), tl.load(tile + 1)
    token, count = tl.load(tile + 2).to(tl.int64), tl.load(tile + 3)
    end = start + count

    m, d = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    t = m // GROUP
    q_head = head * GROUP + m % GROUP
    real = (t < count)[:, None] & (d < HEAD_DIM)[None, :]
    q_at = (token + t)[:, None] * q_stride + q_head[:, None] * HEAD_DIM + d[None, :]
    q_tile = tl.load(q + q_at, mask=real, other=0.0)
    position = start + t
    pages = table + slot * table_stride
    k_base, v_base = keys + head * HEAD_DIM, values + head * HEAD_DIM

    best = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    if SINKS:
        best = tl.load(sinks + q_head).to(tl.float32) * LOG2_E
        total += 1.0
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    first = 0
    if WINDOW > 0:
        # Blocks at the window's far edge, of which the later queries do not see all.
        first = tl.maximum(start + 1 - WINDOW, 0) // BLOCK_N * BLOCK_N
        inner = tl.minimum(tl.cdiv(tl.maximum(end - WINDOW, 0), BLOCK_N) * BLOCK_N, end)
        acc, best, total = attend(
            acc, best, total, q_tile, position, pages, k_base, v_base, d, first, inner, end, scale,
            KV_HEADS, HEAD_DIM, BLOCK_D, BLOCK_N, PAGE_SIZE, WINDOW, SOFT_CAP, True,
        )  # fmt: skip
        first = inner
    # Blocks that every query of the tile sees whole, then those on the diagonal.
    whole = tl.maximum((start + 1) // BLOCK_N * BLOCK_N, first)
    acc, best, total = attend(
        acc, best, total, q_tile, position, pages, k_base, v_base, d, first, whole, end, scale,
        KV_HEADS, HEAD_DIM, BLOCK_D, BLOCK_N, PAGE_SIZE, WINDOW, SOFT_CAP, False,
    )  # fmt: skip
    acc, best, total = attend(
        acc, best, total, q_tile, position, pages, k_base, v_base, d, whole, end, end, scale,
        KV_HEADS, HEAD_DIM, BLOCK_D, BLOCK_N, PAGE_SIZE, WINDOW, SOFT_CAP, True,
    )  # fmt: skip
    out_at = ((token + t) * KV_HEADS * GROUP + q_head)[:, None] * HEAD_DIM + d[None, :]
    tl.store(out + out_at, (acc / total[:, None]).to(out.dtype.element_ty), mask=real)


@triton.jit
def attend(
    acc,
    best,
    total,
    q_tile,
    position,
    pages,
    keys,
    values,
    d,
    begin,
    stop,
    end,
    scale,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    MASKED: tl.constexpr,
):
    """One stretch of blocks of keys; `begin` is a multiple of BLOCK_N, and keys at `end` and beyond do not exist."""
    n = tl.arange(0, BLOCK_N)
    for at in tl.range(begin, stop, BLOCK_N):
        key = at + n
        # A padded key repeats a real one: weight 0 times memory never written could still be NaN.
        there = tl.minimum(key, end - 1) if MASKED else key
        page = tl.load(pages + there // PAGE_SIZE).to(tl.int64)
        row = (page * PAGE_SIZE + there % PAGE_SIZE) * (KV_HEADS * HEAD_DIM)
        kv_at = row[:, None] + d[None, :]
        if BLOCK_D == HEAD_DIM:
            k = tl.load(keys + kv_at)
            v = tl.load(values + kv_at)
        else:
            k = tl.load(keys + kv_at, mask=(d < HEAD_DIM)[None, :], other=0.0)
            v = tl.load(values + kv_at, mask=(d < HEAD_DIM)[None, :], other=0.0)
        score = tl.dot(q_tile, tl.trans(k.to(q_tile.dtype)), input_precision="ieee")
        if SOFT_CAP > 0:
            score = score * scale
            score = (SOFT_CAP * LOG2_E) * (2 * tl.sigmoid(2 * score / SOFT_CAP) - 1)
        else:
            score = score * (scale * LOG2_E)
        if MASKED:
            seen = key[None, :] <= position[:, None]
            if WINDOW > 0:
                seen = seen & (key[None, :] > position[:, None] - WINDOW)
            score = tl.where(seen, score, float("-inf"))
        higher = tl.maximum(best, tl.max(score, 1))
        # A row may have seen no key of the window yet: then both are -inf, and their difference would be NaN.
        shift = tl.where(higher == float("-inf"), 0.0, higher) if WINDOW > 0 else higher
        weight = tl.exp2(score - shift[:, None])
        fade = tl.exp2(best - shift)
        total = total * fade + tl.sum(weight, 1)
        acc = tl.dot(weight.to(q_tile.dtype), v.to(q_tile.dtype), acc * fade[:, None], input_precision="ieee")
        best = higher
    return acc, best, total

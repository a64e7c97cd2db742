"""Attention of one query token per row over paged keys and values, split along the keys. Knows tensors only.

Flash-decoding (Dao et al., 2023): programs take pieces of a row's keys, and the one that finishes last merges them by
their log-sum-exp (arXiv 2205.14135 has the arithmetic), so that a step needs one launch per layer.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from radixlm.kernels.triton.device import Device, device_of

MAX_SPLITS = 128
MIN_SPLIT_TOKENS = 128  # a shorter piece costs more to merge than it saves
LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)


@dataclass(frozen=True)
class DecodeScratch:
    """What pieces of rows leave for the merge; one instance serves all layers of a step, one after the other.

    partial: float32 [rows, kv heads, splits, group, head_dim]; lse: float32 [rows, kv heads, splits, group], base 2;
    arrived: int32 [rows, kv heads], zero between launches. All three are empty when splits is 1.
    """

    splits: int
    partial: Tensor
    lse: Tensor
    arrived: Tensor


def split_count(rows: int, kv_heads: int, device: Device) -> int:
    """Pieces per row, without knowing lengths: one even wave when rows are few, else waves enough to even them out."""
    programs = rows * kv_heads
    resident = device.multiprocessors * 2
    if programs * 4 <= resident:
        return min(resident // programs, MAX_SPLITS)
    return min(-(-resident * 4 // programs), MAX_SPLITS)


def decode_scratch(rows: int, heads: int, kv_heads: int, head_dim: int, device: torch.device) -> DecodeScratch:
    """Scratch for any step of `rows` decode rows; its tensors may be baked into a graph."""
    splits = split_count(max(rows, 1), kv_heads, device_of(device)) if rows else 1
    pieces = rows * kv_heads if splits > 1 else 0
    group = heads // kv_heads
    return DecodeScratch(
        splits,
        torch.empty((pieces, splits, group, head_dim), dtype=torch.float32, device=device),
        torch.empty((pieces, splits, group), dtype=torch.float32, device=device),
        torch.zeros(pieces, dtype=torch.int32, device=device),
    )


def paged_decode(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    starts: Tensor,
    page_table: Tensor,
    page_size: int,
    scale: float,
    scratch: DecodeScratch,
    *,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Attend the token at position starts[r] of each row to positions 0..starts[r] of its pages, itself included.

    q: [R, heads, head_dim], heads side by side; keys, values: [tokens, kv_heads, head_dim], contiguous; slots, starts:
    int32 [R]; page_table: int32 [slots, pages], its rows contiguous. `window`: only the last so many positions.
    `soft_cap`: scores become cap * tanh(score / cap) (Gemma 2, arXiv 2408.00118). `sinks`: float32 [heads], a logit
    per head that takes weight and gives no value. Returns [R, heads * head_dim] in q's dtype, in `out` if given.
    """
    rows, heads, head_dim = q.shape
    kv_heads = keys.shape[1]
    group = heads // kv_heads
    if out is None:
        out = torch.empty((rows, heads * head_dim), dtype=q.dtype, device=q.device)
    if rows == 0:
        return out
    block_d = triton.next_power_of_2(head_dim)
    group_merge = triton.next_power_of_2(group)
    block_n, stages, warps = _tiling(block_d, keys.element_size(), device_of(q.device))
    _decode[(kv_heads, scratch.splits, rows)](
        q,
        keys,
        values,
        out,
        scratch.partial,
        scratch.lse,
        scratch.arrived,
        slots,
        starts,
        page_table,
        q if sinks is None else sinks,
        q.stride(0),
        page_table.stride(0),
        scale,
        scratch.splits,
        KV_HEADS=kv_heads,
        GROUP=group,
        GROUP_DOT=max(16, group_merge),
        GROUP_MERGE=group_merge,
        HEAD_DIM=head_dim,
        BLOCK_D=block_d,
        BLOCK_N=block_n,
        MERGE_SPLITS=max(1, min(16, 8192 // (group_merge * block_d))),
        MIN_SPLIT=MIN_SPLIT_TOKENS,
        PAGE_SIZE=page_size,
        WINDOW=window or 0,
        SOFT_CAP=soft_cap or 0.0,
        SINKS=sinks is not None,
        SPLIT=scratch.splits > 1,
        num_warps=warps,
        num_stages=stages,
    )
    return out


def _tiling(block_d: int, element_bytes: int, device: Device) -> tuple[int, int, int]:
    """Keys per step, pipeline depth and warps, within the shared memory."""
    block_n = 64 if block_d * element_bytes <= 256 else 32
    tile_bytes = 2 * block_n * block_d * element_bytes
    stages = max(1, min(3, device.shared_bytes // (2 * tile_bytes)))
    return block_n, stages, 4


@triton.jit(do_not_specialize=["splits"], do_not_specialize_on_alignment=["q", "out", "slots", "starts", "sinks"])
def _decode(
    q,
    keys,
    values,
    out,
    partial,
    lse,
    arrived,
    slots,
    starts,
    table,
    sinks,
    q_stride,
    table_stride,
    scale,
    splits,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_DOT: tl.constexpr,
    GROUP_MERGE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MERGE_SPLITS: tl.constexpr,
    MIN_SPLIT: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    SINKS: tl.constexpr,
    SPLIT: tl.constexpr,
):
    head, split, row = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    end = tl.load(starts + row) + 1
    first = 0
    if WINDOW > 0:
        first = tl.maximum(end - WINDOW, 0)
    share = tl.cdiv(tl.cdiv(end - first, splits), BLOCK_N) * BLOCK_N
    share = tl.maximum(share, MIN_SPLIT)
    begin = first + split * share
    if begin >= end:
        return
    stop = tl.minimum(begin + share, end)

    g, d = tl.arange(0, GROUP_DOT), tl.arange(0, BLOCK_D)
    real = (g < GROUP)[:, None] & (d < HEAD_DIM)[None, :]
    q_at = row * q_stride + (head * GROUP + g)[:, None] * HEAD_DIM + d[None, :]
    q_tile = tl.load(q + q_at, mask=real, other=0.0)
    pages = table + tl.load(slots + row).to(tl.int64) * table_stride
    n = tl.arange(0, BLOCK_N)
    best = tl.full([GROUP_DOT], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_DOT], tl.float32)
    acc = tl.zeros([GROUP_DOT, BLOCK_D], tl.float32)
    for at in tl.range(begin, stop, BLOCK_N):
        # A padded key repeats a real one: weight 0 times memory never written could still be NaN.
        position = tl.minimum(at + n, stop - 1)
        page = tl.load(pages + position // PAGE_SIZE).to(tl.int64)
        token = page * PAGE_SIZE + position % PAGE_SIZE
        kv_at = token[:, None] * (KV_HEADS * HEAD_DIM) + head * HEAD_DIM + d[None, :]
        if BLOCK_D == HEAD_DIM:
            k = tl.load(keys + kv_at)
            v = tl.load(values + kv_at)
        else:
            k = tl.load(keys + kv_at, mask=(d < HEAD_DIM)[None, :], other=0.0)
            v = tl.load(values + kv_at, mask=(d < HEAD_DIM)[None, :], other=0.0)
        score = tl.dot(q_tile, tl.trans(k.to(q_tile.dtype)), input_precision="ieee") * scale
        if SOFT_CAP > 0:
            score = SOFT_CAP * (2 * tl.sigmoid(2 * score / SOFT_CAP) - 1)
        score = tl.where((at + n < stop)[None, :], score * LOG2_E, float("-inf"))
        higher = tl.maximum(best, tl.max(score, 1))
        weight = tl.exp2(score - higher[:, None])
        fade = tl.exp2(best - higher)
        total = total * fade + tl.sum(weight, 1)
        acc = tl.dot(weight.to(q_tile.dtype), v.to(q_tile.dtype), acc * fade[:, None], input_precision="ieee")
        best = higher

    head_row = row * KV_HEADS + head
    if SPLIT:
        piece = (head_row * splits + split) * GROUP + g
        tl.store(partial + piece[:, None] * HEAD_DIM + d[None, :], acc / total[:, None], mask=real)
        tl.store(lse + piece, best + tl.log2(total), mask=g < GROUP)
        # The barrier puts every thread's stores before the one thread's release.
        tl.debug_barrier()
        pieces = tl.cdiv(end - first, share)
        if tl.atomic_add(arrived + head_row, 1, sem="acq_rel") == pieces - 1:
            tl.store(arrived + head_row, 0)
            _merge(
                partial, lse, out, sinks, head_row, head, pieces, splits,
                KV_HEADS, GROUP, GROUP_MERGE, HEAD_DIM, BLOCK_D, MERGE_SPLITS, SINKS,
            )  # fmt: skip
    else:
        if SINKS:
            sink = tl.load(sinks + head * GROUP + g, mask=g < GROUP, other=float("-inf")).to(tl.float32) * LOG2_E
            higher = tl.maximum(best, sink)
            fade = tl.exp2(best - higher)
            total = total * fade + tl.exp2(sink - higher)
            acc = acc * fade[:, None]
        out_at = (head_row * GROUP + g)[:, None] * HEAD_DIM + d[None, :]
        tl.store(out + out_at, (acc / total[:, None]).to(out.dtype.element_ty), mask=real)


@triton.jit
def _merge(
    partial,
    lse,
    out,
    sinks,
    head_row,
    head,
    pieces,
    splits,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_MERGE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    MERGE_SPLITS: tl.constexpr,
    SINKS: tl.constexpr,
):
    """Weigh the pieces of one row and key head by their log-sum-exp; the loads pass the first-level cache."""
    g, d, s = tl.arange(0, GROUP_MERGE), tl.arange(0, BLOCK_D), tl.arange(0, MERGE_SPLITS)
    best = tl.full([GROUP_MERGE], -1e38, tl.float32)
    total = tl.zeros([GROUP_MERGE], tl.float32)
    if SINKS:
        best = tl.load(sinks + head * GROUP + g, mask=g < GROUP, other=0.0).to(tl.float32) * LOG2_E
        total += 1.0
    acc = tl.zeros([GROUP_MERGE, BLOCK_D], tl.float32)
    for at in tl.range(0, pieces, MERGE_SPLITS):
        real = (at + s < pieces)[:, None] & (g < GROUP)[None, :]
        piece = (head_row * splits + at + s)[:, None] * GROUP + g[None, :]
        weight = tl.load(lse + piece, mask=real, other=float("-inf"), cache_modifier=".cg")
        part_at = piece[:, :, None] * HEAD_DIM + d[None, None, :]
        mask = real[:, :, None] & (d < HEAD_DIM)[None, None, :]
        part = tl.load(partial + part_at, mask=mask, other=0.0, cache_modifier=".cg")
        higher = tl.maximum(best, tl.max(weight, 0))
        weight = tl.exp2(weight - higher[None, :])
        fade = tl.exp2(best - higher)
        total = total * fade + tl.sum(weight, 0)
        acc = acc * fade[:, None] + tl.sum(part * weight[:, :, None], 0)
        best = higher
    out_at = (head_row * GROUP + g)[:, None] * HEAD_DIM + d[None, :]
    mask = (g < GROUP)[:, None] & (d < HEAD_DIM)[None, :]
    tl.store(out + out_at, (acc / total[:, None]).to(out.dtype.element_ty), mask=mask)

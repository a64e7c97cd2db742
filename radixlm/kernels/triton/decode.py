"""Attention of one query token per row over paged keys and values, split along the keys. Knows tensors only.

Flash-decoding (Dao et al., 2023): programs take pieces of a row's keys, and the one that finishes last merges them by
their log-sum-exp, so that a layer needs one launch. The pieces are cut on the device, once a step, so that each
multiprocessor gets about as many keys as every other: the host need not know lengths, and a graph fits any.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from radixlm.kernels.triton.device import Device, device_of, early_launch
from radixlm.kernels.triton.shared import SharedKeys, fold

MIN_PIECE_TOKENS = 128  # a shorter piece costs more to merge than it saves
TILE_BYTES = 32768  # keys and values that a program loads at a time
LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
PIECE: tl.constexpr = tl.constexpr(8)  # integers that describe a piece


@dataclass(frozen=True)
class DecodeScratch:
    """How a step's rows are cut, and what pieces leave for the merge; one serves all layers, one after the other.

    pieces: int32 [P, 8]: row, or -1 for none; slot; first key, and one past the last; the row's first piece; how many
    it has. partial: float32 [P, kv heads, group, head_dim]; lse: float32 [P, kv heads, group], base 2; arrived: int32
    [rows, kv heads], zero between launches.
    """

    pieces: Tensor
    partial: Tensor
    lse: Tensor
    arrived: Tensor


def decode_scratch(rows: int, heads: int, kv_heads: int, head_dim: int, device: torch.device) -> DecodeScratch:
    """Scratch for any step of `rows` decode rows, at least 1; its tensors may be baked into a graph."""
    pieces = rows + max(1, device_of(device).multiprocessors // kv_heads)
    group = heads // kv_heads
    return DecodeScratch(
        torch.empty((pieces, PIECE.value), dtype=torch.int32, device=device),
        torch.empty((pieces, kv_heads, group, head_dim), dtype=torch.float32, device=device),
        torch.empty((pieces, kv_heads, group), dtype=torch.float32, device=device),
        torch.zeros((rows, kv_heads), dtype=torch.int32, device=device),
    )


def cut_rows(
    scratch: DecodeScratch, slots: Tensor, starts: Tensor, window: int | None, shared: SharedKeys | None = None
) -> None:
    """Cut a step's rows into pieces; to be launched before the first layer. The arguments: see `paged_decode`."""
    rows, kv_heads = scratch.arrived.shape
    _cut_rows[(1,)](
        slots,
        starts,
        starts if shared is None else shared.own,
        scratch.pieces,
        rows,
        scratch.pieces.shape[0],
        device_of(slots.device).multiprocessors,
        KV_HEADS=kv_heads,
        WINDOW=window or 0,
        SHARED=shared is not None,
        MIN_PIECE=MIN_PIECE_TOKENS,
        BLOCK=1024,
        num_warps=8,
    )


def paged_decode(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    page_table: Tensor,
    page_size: int,
    scale: float,
    scratch: DecodeScratch,
    out: Tensor,
    *,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
    shared: SharedKeys | None = None,
) -> None:
    """Attend each row's newest token to the keys of its pages that `cut_rows` was told of, into `out`.

    q: [R, heads, head_dim], heads side by side; keys, values: [tokens, kv_heads, head_dim], contiguous; page_table:
    int32 [slots, pages], its rows contiguous; out: [R, heads * head_dim] in q's dtype, contiguous. `soft_cap`: scores
    become cap * tanh(score / cap) (Gemma 2, arXiv 2408.00118). `sinks`: float32 [heads], a logit per head that takes
    weight and gives no value.

    For `cut_rows`, row r's newest token is at position starts[r] of slot slots[r] (int32 [R]) and sees all positions up
    to it, or with `window` the last so many. With `shared`, of which `shared.attend_shared` has done its part, it was
    told of, too; there is no window then.
    """
    _, heads, head_dim = q.shape
    kv_heads = keys.shape[1]
    group = heads // kv_heads
    block_d = triton.next_power_of_2(head_dim)
    group_merge = triton.next_power_of_2(group)
    programs = scratch.arrived.numel()
    block_n, stages = _tiling(block_d, keys.element_size(), programs if shared is None else 0, device_of(q.device))
    _decode[(kv_heads, scratch.pieces.shape[0])](
        q,
        keys,
        values,
        out,
        scratch.pieces,
        scratch.partial,
        scratch.lse,
        scratch.arrived,
        page_table,
        q if sinks is None else sinks,
        *(
            (scratch.partial, scratch.lse, scratch.arrived)
            if shared is None
            else (shared.partial, shared.lse, shared.parts)
        ),
        q.stride(0),
        page_table.stride(0),
        scale,
        KV_HEADS=kv_heads,
        GROUP=group,
        GROUP_DOT=max(16, group_merge),
        GROUP_MERGE=group_merge,
        HEAD_DIM=head_dim,
        BLOCK_D=block_d,
        BLOCK_N=block_n,
        BLOCK_MERGE=max(1, min(16, 4096 // (group_merge * block_d))),
        PAGE_SIZE=page_size,
        SOFT_CAP=soft_cap or 0.0,
        SINKS=sinks is not None,
        SHARED=shared is not None,
        num_warps=4,
        num_stages=stages,
        **early_launch(q.device),
    )


def _tiling(block_d: int, element_bytes: int, programs: int, device: Device) -> tuple[int, int]:
    """Keys per step and pipeline depth; with depth 5 two tiles of keys and values are under way, with 3 one.

    Three programs of depth 5 fit a multiprocessor, or five of depth 3: which is better where all then run at once. (So
    it is not for rows that share keys, whose own are few; a kernel less to compile.)
    """
    flat = 3 * device.multiprocessors < programs <= 5 * device.multiprocessors
    deep = element_bytes == 2 and device.shared_bytes > 5 * TILE_BYTES and not flat
    return max(16, TILE_BYTES // (2 * block_d * element_bytes)), 5 if deep else 3


@triton.jit(do_not_specialize=["rows", "limit"], do_not_specialize_on_alignment=["slots", "starts", "own"])
def _cut_rows(
    slots, starts, own, pieces, rows, limit, multiprocessors,
    KV_HEADS: tl.constexpr, WINDOW: tl.constexpr, SHARED: tl.constexpr, MIN_PIECE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    lane = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.int64)
    for at in tl.range(0, rows, BLOCK):
        total += _length(starts, own, at + lane, rows, WINDOW, SHARED)
    # One more program than multiprocessors would have two of them share one, and all wait for it.
    share = tl.maximum(tl.cdiv(tl.sum(total, 0), tl.maximum(multiprocessors // KV_HEADS, 1)), MIN_PIECE).to(tl.int32)
    used = 0
    for at in tl.range(0, rows, BLOCK):
        row = at + lane
        end = tl.load(starts + row, mask=row < rows, other=-1) + 1
        slot = tl.load(slots + row, mask=row < rows, other=0)
        length = _length(starts, own, row, rows, WINDOW, SHARED)
        # A piece may be a quarter longer than its share, rather than leave a short one behind.
        count = tl.where(row < rows, tl.maximum(tl.cdiv(4 * length.to(tl.int64) - share, 4 * share), 1), 0).to(tl.int32)
        first = used + tl.cumsum(count, 0) - count
        each = length // tl.maximum(count, 1)
        longer = length - each * count
        for j in tl.range(0, tl.max(count, 0)):
            piece = pieces + (first + j) * PIECE
            begin = end - length + j * each + tl.minimum(j, longer)
            stop = begin + each + (j < longer).to(tl.int32)
            mask = j < count
            tl.store(piece, row, mask=mask)
            tl.store(piece + 1, slot, mask=mask)
            tl.store(piece + 2, begin, mask=mask)
            tl.store(piece + 3, stop, mask=mask)
            tl.store(piece + 4, first, mask=mask)
            tl.store(piece + 5, count, mask=mask)
        used += tl.sum(count, 0)
    for at in tl.range(used, limit, BLOCK):
        tl.store(pieces + (at + lane) * PIECE, -1, mask=at + lane < limit)


@triton.jit
def _length(starts, own, row, rows, WINDOW: tl.constexpr, SHARED: tl.constexpr):
    """How many keys a row sees that it does not share; 0 for one that is not there."""
    end = tl.load(starts + row, mask=row < rows, other=-1) + 1
    if SHARED:
        return end - tl.load(own + row, mask=row < rows, other=0)
    return tl.minimum(end, WINDOW) if WINDOW > 0 else end


@triton.jit(do_not_specialize_on_alignment=["q", "out", "sinks", "parts"])
def _decode(
    q,
    keys,
    values,
    out,
    pieces,
    partial,
    lse,
    arrived,
    table,
    sinks,
    shared,
    shared_lse,
    parts,
    q_stride,
    table_stride,
    scale,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_DOT: tl.constexpr,
    GROUP_MERGE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_MERGE: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    SINKS: tl.constexpr,
    SHARED: tl.constexpr,
    EARLY: tl.constexpr,
):
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    head, number = tl.program_id(0), tl.program_id(1)
    piece = pieces + number * PIECE
    row = tl.load(piece).to(tl.int64)
    if row < 0:
        return
    slot = tl.load(piece + 1).to(tl.int64)
    begin, stop = tl.load(piece + 2), tl.load(piece + 3)
    first, count = tl.load(piece + 4), tl.load(piece + 5)

    g, d = tl.arange(0, GROUP_DOT), tl.arange(0, BLOCK_D)
    real = (g < GROUP)[:, None] & (d < HEAD_DIM)[None, :]
    q_at = row * q_stride + (head * GROUP + g)[:, None] * HEAD_DIM + d[None, :]
    q_tile = tl.load(q + q_at, mask=real, other=0.0)
    pages = table + slot * table_stride
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

    if count > 1:
        part = (number.to(tl.int64) * KV_HEADS + head) * GROUP + g
        tl.store(partial + part[:, None] * HEAD_DIM + d[None, :], acc / total[:, None], mask=real)
        tl.store(lse + part, best + tl.log2(total), mask=g < GROUP)
        # The barrier puts every thread's stores before the one thread's release.
        tl.debug_barrier()
        if tl.atomic_add(arrived + row * KV_HEADS + head, 1, sem="acq_rel") == count - 1:
            tl.store(arrived + row * KV_HEADS + head, 0)
            _merge(
                partial, lse, out, sinks, shared, shared_lse, parts, row, head, first, count,
                KV_HEADS, GROUP, GROUP_MERGE, HEAD_DIM, BLOCK_D, BLOCK_MERGE, SINKS, SHARED,
            )  # fmt: skip
    else:
        if SHARED:
            best, total, acc = fold(
                best, total, acc, shared, shared_lse, parts, row, head, g, d, KV_HEADS, GROUP, HEAD_DIM
            )
        if SINKS:
            sink = tl.load(sinks + head * GROUP + g, mask=g < GROUP, other=float("-inf")).to(tl.float32) * LOG2_E
            higher = tl.maximum(best, sink)
            fade = tl.exp2(best - higher)
            total = total * fade + tl.exp2(sink - higher)
            acc = acc * fade[:, None]
        out_at = ((row * KV_HEADS + head) * GROUP + g)[:, None] * HEAD_DIM + d[None, :]
        tl.store(out + out_at, (acc / total[:, None]).to(out.dtype.element_ty), mask=real)


@triton.jit
def _merge(
    partial,
    lse,
    out,
    sinks,
    shared,
    shared_lse,
    parts,
    row,
    head,
    first,
    count,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_MERGE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK: tl.constexpr,
    SINKS: tl.constexpr,
    SHARED: tl.constexpr,
):
    """Weigh the pieces of one row and key head by their log-sum-exp; the loads pass the first-level cache."""
    g, d, s = tl.arange(0, GROUP_MERGE), tl.arange(0, BLOCK_D), tl.arange(0, BLOCK)
    best = tl.full([GROUP_MERGE], -1e38, tl.float32)
    total = tl.zeros([GROUP_MERGE], tl.float32)
    if SINKS:
        best = tl.load(sinks + head * GROUP + g, mask=g < GROUP, other=0.0).to(tl.float32) * LOG2_E
        total += 1.0
    acc = tl.zeros([GROUP_MERGE, BLOCK_D], tl.float32)
    for at in tl.range(0, count, BLOCK):
        real = (at + s < count)[:, None] & (g < GROUP)[None, :]
        piece = ((first + at + s).to(tl.int64) * KV_HEADS + head)[:, None] * GROUP + g[None, :]
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
    if SHARED:
        best, total, acc = fold(best, total, acc, shared, shared_lse, parts, row, head, g, d, KV_HEADS, GROUP, HEAD_DIM)
    out_at = ((row * KV_HEADS + head) * GROUP + g)[:, None] * HEAD_DIM + d[None, :]
    mask = (g < GROUP)[:, None] & (d < HEAD_DIM)[None, :]
    tl.store(out + out_at, (acc / total[:, None]).to(out.dtype.element_ty), mask=mask)

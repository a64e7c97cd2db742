"""Attention of decode rows over the keys that several of them share, each read once for all. Knows tensors only.

Cascade attention (arXiv 2402.05099, arXiv 2501.01005): the rows of a group stand in tiles, as a chunk's tokens do, and
attend in pieces to the keys that they share. `decode.paged_decode` merges what the pieces leave with each row's own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl
from torch import Tensor

from radixlm.kernels.triton.device import device_of, early_launch, to_device
from radixlm.kernels.triton.prefill import attend, tiling_of

MIN_PIECE_TOKENS = 256
PIECES_PER_MULTIPROCESSOR = 4
PART: tl.constexpr = tl.constexpr(3)  # integers that say where a row's parts are
PIECE: tl.constexpr = tl.constexpr(5)  # integers that describe a piece


@dataclass(frozen=True)
class SharedKeys:
    """The shared keys of a step's R decode rows, cut into P pieces, and what these leave; one serves all layers.

    tiles: int32 [tiles, height], rows, -1 for none; pieces: int32 [P, 5]: tile, slot whose pages to take, first key,
    one past the last, where the parts that its rows leave begin. own: int32 [R], a row's first key that is in no piece;
    parts: int32 [R, 3]: its first part, how many it has, how far apart they are. partial: float32 [parts, kv heads,
    group, head_dim]; lse: float32 [parts, kv heads, group], base 2.
    """

    tiles: Tensor
    pieces: Tensor
    own: Tensor
    parts: Tensor
    partial: Tensor
    lse: Tensor


def shared_keys(
    groups: Sequence[tuple[Sequence[int], int]],
    block: int,
    slots: npt.NDArray[np.int32],
    heads: int,
    kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device,
) -> SharedKeys:
    """Cut the keys of `groups`, at least one: rows, no row in two, and how many of their first keys are the same.

    Their number is a multiple of `block`, which is one of every tile's width.
    """
    group = heads // kv_heads
    tiling = tiling_of(head_dim, dtype, device)
    height = tiling.block_m // group
    tiles: list[tuple[Sequence[int], int]] = [
        (rows[at : at + height], keys) for rows, keys in groups for at in range(0, len(rows), height)
    ]
    enough = PIECES_PER_MULTIPROCESSOR * device_of(device).multiprocessors
    least_tokens = max(sum(keys for _, keys in tiles) * kv_heads // enough, MIN_PIECE_TOKENS)
    members = np.full((len(tiles), height), -1, np.int32)
    own, parts = np.zeros(len(slots), np.int32), np.zeros((len(slots), PART.value), np.int32)
    pieces: list[tuple[int, int, int, int, int]] = []
    left = 0  # parts
    for number, (rows, keys) in enumerate(tiles):
        members[number, : len(rows)] = rows
        count = max(keys // least_tokens, 1)
        ends = [keys // block * end // count * block for end in range(count + 1)]
        members_at = list(rows)
        own[members_at] = keys
        parts[members_at, 0] = np.arange(left, left + len(rows))
        parts[members_at, 1:] = count, len(rows)
        slot = int(slots[rows[0]])
        for begin, stop in pairwise(ends):
            pieces.append((number, slot, begin, stop, left))
            left += len(rows)
    flat = [members.ravel(), np.array(pieces, np.int32).ravel(), own, parts.ravel()]
    sent = to_device(np.concatenate(flat), device)
    a, b, c, d = sent.split([len(part) for part in flat])
    shape = (left, kv_heads, group)
    return SharedKeys(
        a.view(members.shape),
        b.view(-1, PIECE.value),
        c,
        d.view(parts.shape),
        torch.empty((*shape, head_dim), dtype=torch.float32, device=device),
        torch.empty(shape, dtype=torch.float32, device=device),
    )


def attend_shared(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    page_table: Tensor,
    page_size: int,
    scale: float,
    shared: SharedKeys,
    *,
    soft_cap: float | None = None,
) -> None:
    """Attend each row's token to the keys that it shares, into `shared`. The arguments: as `paged_decode` has them."""
    _, heads, head_dim = q.shape
    kv_heads = keys.shape[1]
    tiling = tiling_of(head_dim, q.dtype, q.device)
    _attend_shared[(kv_heads, shared.pieces.shape[0])](
        q,
        keys,
        values,
        shared.tiles,
        shared.pieces,
        shared.partial,
        shared.lse,
        page_table,
        q.stride(0),
        page_table.stride(0),
        scale,
        KV_HEADS=kv_heads,
        GROUP=heads // kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_D=triton.next_power_of_2(head_dim),
        BLOCK_M=tiling.block_m,
        BLOCK_N=tiling.block_n,
        PAGE_SIZE=page_size,
        SOFT_CAP=soft_cap or 0.0,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
        **early_launch(q.device),
    )


@triton.jit(do_not_specialize_on_alignment=["q", "pieces"])
def _attend_shared(
    q,
    keys,
    values,
    tiles,
    pieces,
    partial,
    lse,
    table,
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
    SOFT_CAP: tl.constexpr,
    EARLY: tl.constexpr,
):
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    HEIGHT: tl.constexpr = BLOCK_M // GROUP
    head, number = tl.program_id(0), tl.program_id(1)
    piece = pieces + number * PIECE
    tile, slot = tl.load(piece), tl.load(piece + 1).to(tl.int64)
    begin, stop = tl.load(piece + 2), tl.load(piece + 3)
    first = tl.load(piece + 4).to(tl.int64)

    m, d = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    t, g = m // GROUP, m % GROUP
    row = tl.load(tiles + tile * HEIGHT + t, mask=t < HEIGHT, other=-1).to(tl.int64)
    real = (row >= 0)[:, None] & (d < HEAD_DIM)[None, :]
    q_at = row[:, None] * q_stride + (head * GROUP + g)[:, None] * HEAD_DIM + d[None, :]
    q_tile = tl.load(q + q_at, mask=real, other=0.0)
    best = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    pages, k_base, v_base = table + slot * table_stride, keys + head * HEAD_DIM, values + head * HEAD_DIM
    acc, best, total = attend(
        acc, best, total, q_tile, t, pages, k_base, v_base, d, begin, stop, stop, scale,
        KV_HEADS, HEAD_DIM, BLOCK_D, BLOCK_N, PAGE_SIZE, 0, SOFT_CAP, False,
    )  # fmt: skip
    part = ((first + t) * KV_HEADS + head) * GROUP + g
    tl.store(partial + part[:, None] * HEAD_DIM + d[None, :], acc / total[:, None], mask=real)
    tl.store(lse + part, best + tl.log2(total), mask=row >= 0)


@triton.jit
def fold(
    best,
    total,
    acc,
    partial,
    lse,
    parts,
    row,
    head,
    g,
    d,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """Take a row's shared parts into the running softmax of one key head: best, total [G], acc [G, D]."""
    first, count = tl.load(parts + row * PART), tl.load(parts + row * PART + 1)
    apart = tl.load(parts + row * PART + 2)
    for j in tl.range(0, count):
        part = ((first + j * apart).to(tl.int64) * KV_HEADS + head) * GROUP + g
        weight = tl.load(lse + part, mask=g < GROUP, other=float("-inf"))
        mask = (g < GROUP)[:, None] & (d < HEAD_DIM)[None, :]
        value = tl.load(partial + part[:, None] * HEAD_DIM + d[None, :], mask=mask, other=0.0)
        higher = tl.maximum(best, weight)
        fade, weight = tl.exp2(best - higher), tl.exp2(weight - higher)
        total = total * fade + weight
        acc = acc * fade[:, None] + value * weight[:, None]
        best = higher
    return best, total, acc

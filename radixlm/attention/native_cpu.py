"""Attention by our own CPU kernel, straight from the pages. Knows pools and rows; knows no model and no scheduler."""

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from radixlm.attention.base import AttentionBackend, AttentionFacts, AttentionLayer, RowBatch
from radixlm.attention.sharing import SharedPrefix, shared_prefixes
from radixlm.cache.pools.mha import MHAPool
from radixlm.kernels.native.library import AttentionStep, Library, library, why_not
from radixlm.protocol.arrays import I32

MAX_HEAD_DIM = 256
MAX_GROUP = 96  # query heads per key head
PIECES_PER_THREAD = 4  # so that threads end together
LEAST_ROWS = 96  # query heads times tokens of a piece of a long row: so many share the packing of its keys
LEAST_TOGETHER = 4  # rows of a piece with a shared prefix, unless there are fewer: so many share its packing


@dataclass
class Meta:
    """What the kernel is told of a step, at an address that stays; `kept` holds the arrays that `step` points into."""

    step: AttentionStep
    address: int
    kept: tuple[Any, ...]


class NativeCPU(AttentionBackend):
    """One kernel for decode rows and chunks; a token's output does not depend on what it is computed with."""

    name: ClassVar[str] = "native_cpu"

    @classmethod
    def why_not(cls, facts: AttentionFacts) -> list[str]:
        if facts.device != "cpu":
            return [f"runs on the CPU, not {facts.device}"]
        reasons = []
        if (missing := why_not()) is not None:
            reasons.append(missing)
        if facts.dtype not in (torch.float32, torch.bfloat16):
            reasons.append(f"dtype {facts.dtype} is not float32 or bfloat16")
        if facts.head_dim % 16 or facts.head_dim > MAX_HEAD_DIM:
            reasons.append(f"head_dim {facts.head_dim} is not a multiple of 16 up to {MAX_HEAD_DIM}")
        if facts.num_heads % facts.num_kv_heads or facts.num_heads // facts.num_kv_heads > MAX_GROUP:
            reasons.append(f"{facts.num_heads} query heads cannot share {facts.num_kv_heads} key-value heads evenly")
        return reasons

    def __init__(self, facts: AttentionFacts, pool: MHAPool, kernels: Library | None = None) -> None:
        """`kernels`: in place of the library for this machine."""
        super().__init__(facts, pool)
        kernels = kernels or library()
        if kernels is None:
            raise RuntimeError(f"native CPU kernels are missing: {why_not()}")
        self._run = kernels.attention[facts.dtype, pool.keys[0].dtype]
        self._piece_rows = kernels.attention_rows(facts.head_dim) // (facts.num_heads // facts.num_kv_heads)
        self._block_keys = kernels.attention_keys
        self._keys_at = [keys.data_ptr() for keys in pool.keys]
        self._values_at = [values.data_ptr() for values in pool.values]

    def prepare(self, batch: RowBatch) -> dict[int | None, Meta]:
        """One for each window that layers have."""
        return {window: self._meta(batch, window) for window in self.facts.windows}

    def _meta(self, batch: RowBatch, window: int | None) -> Meta:
        slots, starts, counts = (
            np.ascontiguousarray(a, dtype=np.int32) for a in (batch.slots_host, batch.starts_host, batch.counts_host)
        )
        offsets = np.cumsum(counts, dtype=np.int32) - counts
        table, index = batch.page_table, batch.kv_index.contiguous()
        if table.dtype is not torch.int32 or table.stride(1) != 1:
            raise ValueError("the page table must be int32 with contiguous rows")
        order, pieces = self._pieces(slots, starts, counts, table.numpy(), batch.page_size, window)
        step = AttentionStep(
            slots=slots.ctypes.data,
            starts=starts.ctypes.data,
            offsets=offsets.ctypes.data,
            order=order.ctypes.data,
            page_table=table.data_ptr(),
            pieces=pieces.ctypes.data,
            index=index.data_ptr(),
            page_table_row=table.stride(0),
            page_size=batch.page_size,
            tokens=index.shape[0],
            num_pieces=len(pieces),
            heads=self.facts.num_heads,
            kv_heads=self.facts.num_kv_heads,
            head_dim=self.facts.head_dim,
            window=window or 0,
            soft_cap=self.facts.soft_cap or 0.0,
            keys_to_read=int((starts + counts).sum()),
        )
        return Meta(step, ctypes.addressof(step), (slots, starts, offsets, order, pieces, table, index))

    def refresh(self, meta: Any, batch: RowBatch) -> None:
        """`meta` becomes what `prepare` gives, where it is; calls that were recorded with it then do this step."""
        for window, new in self.prepare(batch).items():
            ctypes.pointer(meta[window].step)[0] = new.step
            meta[window].kept = new.kept

    def forward(self, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor, batch: RowBatch, meta: Any) -> Tensor:
        q, k, v = _side_by_side(q), _side_by_side(k), _side_by_side(v)
        tokens, heads, head_dim = q.shape
        out = torch.empty((tokens, heads * head_dim), dtype=q.dtype)
        self._run(
            meta[layer.window].address,
            q.data_ptr(),
            k.data_ptr(),
            v.data_ptr(),
            q.stride(0),
            k.stride(0),
            v.stride(0),
            self._keys_at[layer.index],
            self._values_at[layer.index],
            layer.scale,
            0 if layer.sinks is None else layer.sinks.data_ptr(),
            out.data_ptr(),
        )
        return out

    def _pieces(
        self, slots: I32, starts: I32, counts: I32, table: I32, page_size: int, window: int | None
    ) -> tuple[I32, npt.NDArray[np.int32]]:
        """The order in which pieces count the rows, and what threads take one at a time, longest first: int32 [N, 7] as
        `Piece` of attention.cpp has it.

        Rows that decode after the same keys go together, one key head in a piece. Of the others short ones go with all
        their key heads in one piece, since these lie side by side in memory; long ones are cut into pieces of one key
        head, as large as leaves enough for all threads. Too few pieces for the threads are cut by head.
        """
        groups = []
        if window is None:
            groups = shared_prefixes(slots, starts, counts, table, page_size, self._block_keys)
        if groups:
            together = [row for group in groups for row in group.rows]
            alone = np.setdiff1d(np.arange(len(counts)), together)
            order = np.concatenate((together, alone)).astype(np.int32)
            kinds = (*self._together(groups, starts), self._alone(starts[alone], counts[alone], len(together)))
            whole = np.concatenate(kinds)
        else:
            order, whole = np.arange(len(counts), dtype=np.int32), self._alone(starts, counts, 0)
        by_work = whole[np.argsort(-whole[:, -1], kind="stable"), :-1]
        return order, np.ascontiguousarray(by_work, dtype=np.int32)

    def _together(self, groups: Sequence[SharedPrefix], starts: I32) -> Iterator[npt.NDArray[np.int64]]:
        """Pieces of rows with a shared prefix, and the work of each; enough of them for all threads."""
        kv_heads, row = self.facts.num_kv_heads, 0
        for group in groups:
            parts = -(-PIECES_PER_THREAD * torch.get_num_threads() // (kv_heads * len(groups)))
            parts = max(min(parts, len(group.rows) // LEAST_TOGETHER), -(-len(group.rows) // self._piece_rows))
            for rows in np.array_split(np.array(group.rows), parts):
                last_row, work = row + len(rows), group.keys + int(starts[rows].sum())
                yield np.array(
                    [(row, last_row, 0, 1, head, head + 1, group.keys, work) for head in range(kv_heads)], np.int64
                )
                row = last_row

    def _alone(self, starts: I32, counts: I32, before: int) -> npt.NDArray[np.int64]:
        """Pieces of one row each and the work of each; `before`: rows that come earlier in the order."""
        kv_heads = self.facts.num_kv_heads
        enough = -(-int(counts.sum()) * kv_heads // (PIECES_PER_THREAD * torch.get_num_threads()))
        most = min(max(enough, LEAST_ROWS * kv_heads // self.facts.num_heads), self._piece_rows)
        row, first = _cut(counts, most)
        last = np.minimum(first + most, counts[row])
        heads = np.clip(most // (last - first), 1, kv_heads)
        if len(row) < torch.get_num_threads():
            heads = np.minimum(heads, -(-kv_heads * len(row) // torch.get_num_threads()))
        piece, head = _cut(np.full(len(row), kv_heads), heads)
        row, first, last = row[piece], first[piece], last[piece]
        last_head = np.minimum(head + heads[piece], kv_heads)
        work = (last - first).astype(np.int64) * (starts[row] + last) * (last_head - head)
        at, none = row + before, np.zeros(len(row), np.int64)
        return np.stack((at, at + 1, first, last, head, last_head, none, work), axis=1)


def _cut(sizes: npt.NDArray[Any], step: npt.NDArray[Any] | int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Cut each of `sizes` into pieces of at most `step`: whose each piece is, and where in it the piece begins."""
    pieces = -(-sizes // step)
    owner = np.repeat(np.arange(len(sizes)), pieces)
    number = np.arange(len(owner)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    return owner, number * (step if isinstance(step, int) else step[owner])


def _side_by_side(x: Tensor) -> Tensor:
    """x [T, heads, head_dim] with a token's heads next to each other; a copy only where they are not."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()

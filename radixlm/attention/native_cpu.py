"""Attention by our own CPU kernel, straight from the pages. Knows pools and rows; knows no model and no scheduler."""

import ctypes
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from radixlm.attention.base import AttentionBackend, AttentionFacts, RowBatch
from radixlm.cache.pools.mha import MHAPool
from radixlm.kernels.native.library import AttentionStep, Library, library, why_not
from radixlm.protocol.arrays import I32

MAX_HEAD_DIM = 256
MAX_GROUP = 96  # query heads per key head


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
        self._piece_rows = kernels.attention_rows // (facts.num_heads // facts.num_kv_heads)
        self._keys_at = [keys.data_ptr() for keys in pool.keys]
        self._values_at = [values.data_ptr() for values in pool.values]

    def prepare(self, batch: RowBatch) -> Meta:
        slots, starts, counts = (
            np.ascontiguousarray(a, dtype=np.int32) for a in (batch.slots_host, batch.starts_host, batch.counts_host)
        )
        offsets = np.cumsum(counts, dtype=np.int32) - counts
        pieces = self._pieces(starts, counts)
        table, index = batch.page_table, batch.kv_index.contiguous()
        if table.dtype is not torch.int32 or table.stride(1) != 1:
            raise ValueError("the page table must be int32 with contiguous rows")
        step = AttentionStep(
            slots=slots.ctypes.data,
            starts=starts.ctypes.data,
            offsets=offsets.ctypes.data,
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
            window=self.facts.sliding_window or 0,
            keys_to_read=int((starts + counts).sum()),
        )
        return Meta(step, ctypes.addressof(step), (slots, starts, offsets, pieces, table, index))

    def refresh(self, meta: Any, batch: RowBatch) -> None:
        """`meta` becomes what `prepare` gives, where it is; calls that were recorded with it then do this step."""
        new = self.prepare(batch)
        ctypes.pointer(meta.step)[0] = new.step
        meta.kept = new.kept

    def forward(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, batch: RowBatch, meta: Any) -> Tensor:
        q, k, v = _side_by_side(q), _side_by_side(k), _side_by_side(v)
        tokens, heads, head_dim = q.shape
        out = torch.empty((tokens, heads * head_dim), dtype=q.dtype)
        self._run(
            meta.address,
            q.data_ptr(),
            k.data_ptr(),
            v.data_ptr(),
            q.stride(0),
            k.stride(0),
            v.stride(0),
            self._keys_at[layer],
            self._values_at[layer],
            scale,
            out.data_ptr(),
        )
        return out

    def _pieces(self, starts: I32, counts: I32) -> npt.NDArray[np.int32]:
        """What threads take one at a time, longest first: int32 [N, 5] of row, tokens from..to, key heads from..to.

        Short rows go with all their key heads in one piece, since these lie side by side in memory; long ones are cut
        into as many tokens of one key head as a piece may hold. Too few pieces for the threads are cut by head.
        """
        kv_heads = self.facts.num_kv_heads
        row, first = _cut(counts, self._piece_rows)
        last = np.minimum(first + self._piece_rows, counts[row])
        heads = np.clip(self._piece_rows // (last - first), 1, kv_heads)
        if len(row) < torch.get_num_threads():
            heads = np.minimum(heads, -(-kv_heads * len(row) // torch.get_num_threads()))
        piece, head = _cut(np.full(len(row), kv_heads), heads)
        row, first, last = row[piece], first[piece], last[piece]
        last_head = np.minimum(head + heads[piece], kv_heads)
        work = (last - first).astype(np.int64) * (starts[row] + last) * (last_head - head)
        order = np.argsort(-work, kind="stable")
        return np.ascontiguousarray(np.stack((row, first, last, head, last_head), axis=1)[order], dtype=np.int32)


def _cut(sizes: npt.NDArray[Any], step: npt.NDArray[Any] | int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Cut each of `sizes` into pieces of at most `step`: whose each piece is, and where in it the piece begins."""
    pieces = -(-sizes // step)
    owner = np.repeat(np.arange(len(sizes)), pieces)
    number = np.arange(len(owner)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    return owner, number * (step if isinstance(step, int) else step[owner])


def _side_by_side(x: Tensor) -> Tensor:
    """x [T, heads, head_dim] with a token's heads next to each other; a copy only where they are not."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()

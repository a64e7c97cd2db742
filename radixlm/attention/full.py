"""Attention of encoders: every token of a row sees the whole row. Keeps nothing between steps; knows no model."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from radixlm.attention.base import AttentionBackend, AttentionFacts, AttentionLayer, RowBatch
from radixlm.protocol.arrays import I64


@dataclass(frozen=True)
class Block:
    """Rows of similar length, attended in one call.

    index: int64 [rows * length], which of the step's tokens stand there; a shorter row repeats its last one.
    mask: bool [rows, 1, 1, length], True where a token is not repeated, or None when all rows are of one length.
    """

    index: Tensor
    mask: Tensor | None
    rows: int
    length: int


class Full(AttentionBackend):
    """torch's scaled_dot_product_attention over blocks of rows; a row must be whole, its first position 0."""

    name: ClassVar[str] = "full"
    capturable: ClassVar[bool] = False  # its shapes follow the rows' lengths

    @classmethod
    def why_not(cls, facts: AttentionFacts) -> list[str]:
        reasons = [] if facts.num_heads == facts.num_kv_heads else ["query heads share key-value heads"]
        if facts.windows != (None,) or facts.soft_cap is not None or facts.sinks:
            reasons.append("it has no windows, soft cap or sinks")
        return reasons

    def prepare(self, batch: RowBatch) -> list[Block]:
        counts = batch.counts_host.astype(np.int64)
        firsts = np.cumsum(counts) - counts
        device = batch.positions.device
        return [_block(firsts[rows], counts[rows], device) for rows in _alike(counts)]

    def forward(self, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor, batch: RowBatch, meta: Any) -> Tensor:
        out = torch.empty_like(q)
        for block in meta:
            queries, keys, values = (
                x.index_select(0, block.index).view(block.rows, block.length, *x.shape[1:]).transpose(1, 2)
                for x in (q, k, v)
            )
            attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=block.mask, scale=layer.scale)
            # A repeated token is a repeated query too: what it writes is what its original writes.
            out.index_copy_(0, block.index, attended.transpose(1, 2).reshape(-1, *q.shape[1:]))
        return out.flatten(1)


def _alike(counts: I64) -> Iterator[I64]:
    """Rows cut, longest first, so that padding never more than doubles a block."""
    order = np.argsort(-counts, kind="stable")
    begin = 0
    while begin < len(order):
        end = begin + int(np.count_nonzero(counts[order[begin:]] * 2 >= counts[order[begin]]))
        yield order[begin:end]
        begin = end


def _block(firsts: I64, counts: I64, device: torch.device) -> Block:
    longest = int(counts.max())
    offsets = np.arange(longest)[None, :]
    index = firsts[:, None] + np.minimum(offsets, counts[:, None] - 1)
    real = offsets < counts[:, None]
    mask = None if real.all() else torch.from_numpy(real[:, None, None, :]).to(device)
    return Block(torch.from_numpy(index.reshape(-1)).to(device), mask, len(counts), longest)

"""Attention by torch's own SDPA over gathered pages: the CPU's path, the oracle elsewhere. Knows no model."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from radixlm.attention.base import AttentionBackend, AttentionFacts, AttentionLayer, RowBatch
from radixlm.protocol.arrays import I64


@dataclass(frozen=True)
class Group:
    """Decode rows of similar context, attended in one call.

    rows: int64 [N], which decode rows, or None for all of them in order. index: int64 [N * L], each row's keys in the
    pool, padded at the end by repeating one of its own. mask: bool [N, 1, 1, L], True where a key is real, or None.
    """

    rows: Tensor | None
    index: Tensor
    mask: Tensor | None
    length_tokens: int


@dataclass(frozen=True)
class Chunk:
    """A row of several tokens: its place among the step's tokens, its keys in the pool (int64 [S]), its mask.

    mask: bool [count, S], or None where plain causal masking from position 0 is right.
    """

    first: int
    count: int
    index: Tensor
    mask: Tensor | None


@dataclass(frozen=True)
class Meta:
    """A step's decode groups and chunks."""

    groups: list[Group]
    chunks: list[Chunk]


class TorchNative(AttentionBackend):
    """Gathers each row's pages, then torch's scaled_dot_product_attention."""

    name: ClassVar[str] = "torch_native"
    capturable: ClassVar[bool] = False  # its shapes follow the rows' lengths

    @classmethod
    def why_not(cls, facts: AttentionFacts) -> list[str]:
        reasons = []
        if facts.invariant:
            reasons.append("its sums depend on the other rows of a step")
        if facts.num_heads % facts.num_kv_heads:
            reasons.append(f"{facts.num_heads} query heads cannot share {facts.num_kv_heads} key-value heads evenly")
        if facts.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            reasons.append(f"dtype {facts.dtype} is not float32, bfloat16 or float16")
        return reasons

    def prepare(self, batch: RowBatch) -> dict[int | None, Meta]:
        """One for each window that layers have."""
        return {window: self._meta(batch, window) for window in self.facts.windows}

    def _meta(self, batch: RowBatch, window: int | None) -> Meta:
        contexts = batch.starts_host.astype(np.int64) + batch.counts_host
        chunks = []
        first = batch.decode_rows
        for row in range(batch.decode_rows, len(contexts)):
            start, count = int(batch.starts_host[row]), int(batch.counts_host[row])
            chunks.append(self._chunk(batch, int(batch.slots_host[row]), first, start, count, window))
            first += count
        return Meta(self._groups(batch, contexts[: batch.decode_rows], window), chunks)

    def forward(self, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor, batch: RowBatch, meta: Any) -> Tensor:
        self.pool.write(layer.index, batch.kv_index, k, v)
        keys, values = self.pool.keys[layer.index], self.pool.values[layer.index]
        decode_rows, meta = batch.decode_rows, meta[layer.window]
        if not meta.chunks and len(meta.groups) == 1:
            return self._decode(q, keys, values, layer, meta.groups[0])
        out = q.new_empty(q.shape[0], q.shape[1] * q.shape[2])
        for group in meta.groups:
            if group.rows is None:
                out[:decode_rows] = self._decode(q[:decode_rows], keys, values, layer, group)
            else:
                out[group.rows] = self._decode(q[group.rows], keys, values, layer, group)
        for chunk in meta.chunks:
            span = slice(chunk.first, chunk.first + chunk.count)
            out[span] = self._attend_chunk(q[span], keys, values, layer, chunk)
        return out

    def _groups(self, batch: RowBatch, contexts: I64, window: int | None) -> list[Group]:
        """Cut the decode rows, longest first, so that padding never more than doubles a group's keys."""
        lengths = contexts if window is None else np.minimum(contexts, window)
        order = np.argsort(-lengths, kind="stable")
        groups = []
        begin = 0
        while begin < len(order):
            end = begin + int(np.count_nonzero(lengths[order[begin:]] * 2 >= lengths[order[begin]]))
            chosen = np.sort(order[begin:end])
            groups.append(self._group(batch, chosen, contexts[chosen], lengths[chosen]))
            begin = end
        return groups

    def _group(self, batch: RowBatch, rows: I64, contexts: I64, lengths: I64) -> Group:
        device = batch.page_table.device
        longest = int(lengths.max())
        whole = len(rows) == batch.decode_rows
        chosen = None if whole else torch.from_numpy(rows).to(device)
        slots = batch.slots[: batch.decode_rows] if chosen is None else batch.slots[chosen]
        length = torch.from_numpy(lengths).to(device)[:, None]
        first = torch.from_numpy(contexts - lengths).to(device)[:, None]
        offset = torch.arange(longest, device=device)[None, :]
        # A padded key repeats a real one: weight 0 times memory never written could still be NaN.
        position = first + torch.minimum(offset, length - 1)
        page = batch.page_table[slots.long()].gather(1, position // batch.page_size).long()
        index = (page * batch.page_size + position % batch.page_size).flatten()
        mask = (offset < length)[:, None, None, :] if int(lengths.min()) < longest else None
        return Group(chosen, index, mask, longest)

    def _chunk(self, batch: RowBatch, slot: int, first: int, start: int, count: int, window: int | None) -> Chunk:
        device = batch.page_table.device
        begin = 0 if window is None else max(0, start + 1 - window)
        keys = torch.arange(begin, start + count, device=device)
        page = batch.page_table[slot][keys // batch.page_size].long()
        index = page * batch.page_size + keys % batch.page_size
        if start == 0 and (window is None or count <= window):
            return Chunk(first, count, index, None)
        queries = torch.arange(start, start + count, device=device)[:, None]
        mask = keys <= queries
        if window is not None:
            mask &= keys > queries - window
        return Chunk(first, count, index, mask)

    def _decode(self, q: Tensor, keys: Tensor, values: Tensor, layer: AttentionLayer, group: Group) -> Tensor:
        """q: [N, heads, head_dim]. The query heads that share a key head stand as one query sequence before it."""
        rows, heads, head_dim = q.shape
        kv_heads = self.facts.num_kv_heads
        shape = (rows, group.length_tokens, kv_heads, head_dim)
        k = keys.index_select(0, group.index).view(shape).transpose(1, 2).to(q.dtype)
        v = values.index_select(0, group.index).view(shape).transpose(1, 2).to(q.dtype)
        q = q.reshape(rows, kv_heads, heads // kv_heads, head_dim)
        sinks = None if layer.sinks is None else layer.sinks.view(kv_heads, heads // kv_heads, 1)
        attended = self._attended(q, k, v, group.mask, False, layer.scale, sinks)
        return attended.reshape(rows, heads * head_dim)

    def _attend_chunk(self, q: Tensor, keys: Tensor, values: Tensor, layer: AttentionLayer, chunk: Chunk) -> Tensor:
        """q: [count, heads, head_dim]. Returns [count, heads * head_dim]."""
        count, heads, head_dim = q.shape
        k = keys.index_select(0, chunk.index).transpose(0, 1)[None].to(q.dtype)
        v = values.index_select(0, chunk.index).transpose(0, 1)[None].to(q.dtype)
        sinks = None if layer.sinks is None else layer.sinks.view(heads, 1, 1)
        q = q.transpose(0, 1)[None]
        attended = self._attended(q, k, v, chunk.mask, chunk.mask is None, layer.scale, sinks)
        return attended[0].transpose(0, 1).reshape(count, heads * head_dim)

    def _attended(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float, sinks: Tensor | None
    ) -> Tensor:
        """q: [B, H, L, head_dim]; k, v: [B, H / any, S, head_dim]; mask: as torch takes it; sinks: [H, L or 1, 1].

        torch's own knows neither soft cap nor sinks: with these, scores are written out, in float32 or wider.
        """
        shared = q.shape[1] != k.shape[1]
        if self.facts.soft_cap is None and sinks is None:
            return F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=shared
            )
        wide = torch.promote_types(q.dtype, torch.float32)
        k, v = (x.to(wide).repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        scores = q.to(wide) @ k.transpose(-1, -2) * scale
        if self.facts.soft_cap is not None:
            scores = self.facts.soft_cap * torch.tanh(scores / self.facts.soft_cap)
        if causal:
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        if sinks is not None:
            scores = torch.cat((scores, sinks.to(wide).expand(*scores.shape[:-1], 1)), -1)
        weights = scores.softmax(-1)[..., : k.shape[-2]]
        return (weights @ v).to(q.dtype)

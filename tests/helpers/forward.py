"""Runs a model over rows without scheduler or runner: page tables filled in order, one request per slot."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from radixlm.attention.base import AttentionBackend, AttentionFacts, ForwardContext, RowBatch
from radixlm.attention.torch_native import TorchNative
from radixlm.cache.pools.mha import MHAPool
from radixlm.config.card import ModelCard
from radixlm.models.base import Model


@dataclass(frozen=True)
class Row:
    """Tokens to compute next on `slot`, appended to what the slot has computed."""

    slot: int
    tokens: Sequence[int]


def make_batch(
    rows: Sequence[tuple[int, int, int]], page_table: Tensor, page_size: int, decode_rows: int | None = None
) -> RowBatch:
    """The batch of (slot, start, count) rows, decode rows first; by default every leading row of one token decodes."""
    slots, starts, counts = (np.array(column, np.int32) for column in zip(*rows, strict=True))
    if decode_rows is None:
        longer = np.flatnonzero(counts > 1)
        decode_rows = int(longer[0]) if len(longer) else len(rows)
    positions = np.concatenate([np.arange(start, start + count) for _, start, count in rows]).astype(np.int64)
    owners = np.repeat(slots, counts).astype(np.int64)
    table = page_table.cpu().numpy().astype(np.int64)
    kv_index = table[owners, positions // page_size] * page_size + positions % page_size
    device = page_table.device
    return RowBatch(
        slots=torch.from_numpy(slots).to(device),
        starts=torch.from_numpy(starts).to(device),
        counts=torch.from_numpy(counts).to(device),
        positions=torch.from_numpy(positions).to(device),
        kv_index=torch.from_numpy(kv_index).to(device),
        page_table=page_table,
        page_size=page_size,
        decode_rows=decode_rows,
        slots_host=slots,
        starts_host=starts,
        counts_host=counts,
    )


def shuffled_page_table(slots: int, pages_per_slot: int, seed: int = 0) -> Tensor:
    """A table in which every slot owns its pages, numbered from 1 on in no order."""
    order = np.random.default_rng(seed).permutation(slots * pages_per_slot).astype(np.int32) + 1
    return torch.from_numpy(order.reshape(slots, pages_per_slot))


def attention_facts(card: ModelCard, dtype: torch.dtype, page_size: int) -> AttentionFacts:
    shape = (card.num_heads, card.num_kv_heads, card.head_dim, card.sliding_window)
    return AttentionFacts(
        "cpu", dtype, page_size, *shape, some_full=bool(card.full_layers), soft_cap=card.attention_soft_cap
    )


class Harness:
    """A model with a pool and page tables of its own; `step` computes rows and returns their logits."""

    def __init__(
        self,
        model: Model,
        dtype: torch.dtype = torch.float32,
        *,
        page_size: int = 16,
        slots: int = 4,
        capacity_tokens: int = 256,
        backend: type[AttentionBackend] = TorchNative,
    ) -> None:
        card = model.card
        pages = -(-capacity_tokens // page_size)
        self.model = model
        self.page_size = page_size
        self.page_table = shuffled_page_table(slots, pages)
        pool = MHAPool(
            slots * pages, page_size, card.num_layers, card.num_kv_heads, card.head_dim, dtype, torch.device("cpu")
        )
        for tensor in (*pool.keys, *pool.values):
            tensor.fill_(torch.nan)  # whoever reads what nobody wrote is found out
        self.attention = backend(attention_facts(card, dtype, page_size), pool)
        self.lengths = [0] * slots

    def step(self, rows: Sequence[Row]) -> list[Tensor]:
        """Compute `rows` in one forward pass, single tokens first. Returns float32 [tokens, vocab] for each row."""
        plan = [(row.slot, self.lengths[row.slot], len(row.tokens)) for row in rows]
        batch = make_batch(plan, self.page_table, self.page_size)
        ids = torch.tensor([token for row in rows for token in row.tokens])
        with torch.inference_mode():
            ctx = ForwardContext(batch, self.attention, self.attention.prepare(batch))
            logits = self.model.logits(self.model.forward(ids, ctx))
        for row in rows:
            self.lengths[row.slot] += len(row.tokens)
        return list(logits.split([len(row.tokens) for row in rows]))

    def prefill(self, slot: int, tokens: Sequence[int], chunk_tokens: int | None = None) -> Tensor:
        """Logits of all of `tokens`, computed in chunks. float32 [tokens, vocab]."""
        size = chunk_tokens or len(tokens)
        parts = [self.step([Row(slot, tokens[at : at + size])])[0] for at in range(0, len(tokens), size)]
        return torch.cat(parts)

    def greedy(self, slot: int, tokens: Sequence[int], count: int, chunk_tokens: int | None = None) -> list[int]:
        """The `count` most likely next tokens, one after another."""
        out = [int(self.prefill(slot, tokens, chunk_tokens)[-1].argmax())]
        while len(out) < count:
            out.append(int(self.step([Row(slot, out[-1:])])[0][-1].argmax()))
        return out

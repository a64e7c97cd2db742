"""Attention of chunks by the package flash-attn-4 (FlashAttention in CuTe DSL). Knows pools and rows.

It compiles its kernels at first use, in seconds, into our cache. Decode rows are left to other backends.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar

import torch
from torch import Tensor

from radixlm.attention.base import AttentionFacts, AttentionLayer, RowBatch
from radixlm.attention.device import ChunkAttention, row_ends
from radixlm.attention.gather import key_index, worth_gathering
from radixlm.base.paths import cache_directory
from radixlm.cache.pools.mha import MHAPool
from radixlm.protocol.arrays import I32

CAPABILITIES = (9, 10, 11)  # compute capability, major
MOST_HEAD_DIM = 128  # of all of them, and in steps of 8
LARGEST_PAGE = 64  # larger ones it may load as a whole, with what an unfilled one holds


@dataclass(frozen=True)
class ChunkPlan:
    """Where queries (int32 [R + 1]) and keys begin and end, and the most of a row.

    index: int64 [K], keys to be copied, whose ends (int32 [R + 1]) `keys` has; with None `keys` has a row's number of
    them (int32 [R]) and `pages` its list (int32 [R, pages]).
    """

    queries: Tensor
    keys: Tensor
    most_queries: int
    most_keys: int
    index: Tensor | None
    pages: Tensor | None


class FlashAttention4(ChunkAttention):
    """One plan per step for all layers. Keys are found by the page, or copied side by side where that pays."""

    name: ClassVar[str] = "fa4"

    @classmethod
    def why_not_here(cls, facts: AttentionFacts) -> list[str]:
        reasons = []
        if facts.invariant:
            reasons.append("whether its sums depend on the other rows of a step was never checked")
        if facts.soft_cap is not None or facts.sinks:
            reasons.append("a soft cap and sinks were never checked with it")
        try:
            version("flash-attn-4")
        except PackageNotFoundError:
            reasons.append("the package flash-attn-4 is not installed")
        if facts.head_dim % 8 or facts.head_dim > MOST_HEAD_DIM:
            reasons.append(f"head_dim {facts.head_dim} is not a multiple of 8 up to {MOST_HEAD_DIM}")
        major, minor = torch.cuda.get_device_capability(facts.device)
        if major not in CAPABILITIES:
            reasons.append(f"compute capability {major}.{minor} is not one of {', '.join(map(str, CAPABILITIES))}")
        return reasons

    @classmethod
    def why_not_unasked(cls, facts: AttentionFacts) -> list[str]:
        major, _ = torch.cuda.get_device_capability(facts.device)
        return [] if major == 9 else [f"it was measured on compute capability 9 only, and this is {major}"]

    def __init__(self, facts: AttentionFacts, pool: MHAPool) -> None:
        super().__init__(facts, pool)
        self._attend = _library()

    def plan_chunks(self, batch: RowBatch) -> ChunkPlan:
        rows = batch.decode_rows
        counts, lengths = batch.counts_host[rows:], batch.starts_host[rows:] + batch.counts_host[rows:]
        most = (int(counts.max()), int(lengths.max()))
        if batch.page_size > LARGEST_PAGE or worth_gathering(self.facts, batch, rows):
            return ChunkPlan(_ends(counts, batch), _ends(lengths, batch), *most, key_index(batch, rows), None)
        pages = batch.page_table[:, : -(-most[1] // batch.page_size)].index_select(0, batch.slots[rows:])
        keys = batch.starts[rows:] + batch.counts[rows:]
        return ChunkPlan(_ends(counts, batch), keys, *most, None, pages)

    def run_chunks(self, layer: AttentionLayer, q: Tensor, out: Tensor, batch: RowBatch, plan: ChunkPlan) -> None:
        rows, keys, values = batch.decode_rows, self.pool.keys[layer.index], self.pool.values[layer.index]
        where: dict[str, Tensor | None]
        if plan.index is not None:
            keys, values = keys.index_select(0, plan.index), values.index_select(0, plan.index)
            where = {"cu_seqlens_k": plan.keys}
        else:
            shape = (-1, batch.page_size, *keys.shape[1:])
            keys, values = keys.view(shape), values.view(shape)
            where = {"seqused_k": plan.keys, "page_table": plan.pages}
        attended = self._attend(
            q[rows:],
            keys,
            values,
            cu_seqlens_q=plan.queries,
            max_seqlen_q=plan.most_queries,
            max_seqlen_k=plan.most_keys,
            softmax_scale=layer.scale,
            causal=True,
            window_size=(None, None) if layer.window is None else (layer.window - 1, 0),
            **where,
        )
        result = attended[0] if isinstance(attended, tuple) else attended
        out[rows:].copy_(result.view(-1, out.shape[1]))


def _ends(counts: I32, batch: RowBatch) -> Tensor:
    return row_ends(counts).to(batch.page_table.device, non_blocking=True)


def _library() -> Callable[..., Any]:
    """The package's attention over rows of several lengths, told to keep what it compiles in our cache."""
    os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "1")  # both are read when it is imported
    os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_DIR", str(cache_directory() / "fa4"))
    from flash_attn.cute import flash_attn_varlen_func

    attend: Callable[..., Any] = flash_attn_varlen_func
    return attend

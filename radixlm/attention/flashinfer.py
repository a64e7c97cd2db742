"""Attention by the FlashInfer package: decode on tensor cores, FlashAttention-3 or -2 for chunks. Knows pools and rows.

Chunks' keys are found by the page, or copied side by side where that pays.

FlashInfer plans a step on the host before its kernels run; its kernels are compiled at first use, into our cache.
"""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from radixlm.attention.base import AttentionFacts, AttentionLayer, RowBatch
from radixlm.attention.device import DeviceAttention, row_ends
from radixlm.attention.gather import key_index, worth_gathering
from radixlm.base.paths import cache_directory
from radixlm.cache.pools.mha import MHAPool
from radixlm.kernels import triton
from radixlm.protocol.arrays import I32

HEAD_DIMS = (64, 128, 256)
WORKSPACE_BYTES = 128 << 20  # and more for many decode rows
TILE_ROWS = 16  # query rows per tile of its decode
OVERREAD_PAGES = 256  # its kernels may prefetch so far behind the last row's pages


class FlashInfer(DeviceAttention):
    """One plan per step for all layers; captured sizes have a wrapper each, planned anew before every replay."""

    name: ClassVar[str] = "flashinfer"
    refresh_reads_pages = True

    @classmethod
    def why_not_here(cls, facts: AttentionFacts) -> list[str]:
        reasons = []
        if facts.invariant:
            reasons.append("its sums depend on the other rows of a step")
        if find_spec("flashinfer") is None:
            reasons.append("the package flashinfer is not installed")
        if not triton.available():
            reasons.append("Triton, which writes its page lists, is not installed")
        if facts.head_dim not in HEAD_DIMS:
            reasons.append(f"head_dim {facts.head_dim} is not one of {', '.join(map(str, HEAD_DIMS))}")
        if facts.sliding_window is not None:
            reasons.append("sliding windows are left to our own kernels")
        if facts.soft_cap is not None or facts.sinks:
            reasons.append("a soft cap and sinks are left to our own kernels")
        return reasons

    @classmethod
    def why_not_unasked(cls, facts: AttentionFacts) -> list[str]:
        if chunks_compiled(facts):
            return []
        return ["its kernels are not compiled yet: starting with --prefill-attention-backend flashinfer does that"]

    def __init__(self, facts: AttentionFacts, pool: MHAPool) -> None:
        super().__init__(facts, pool)
        self._library = _library()
        self._device = pool.keys[0].device
        self._memory: Tensor | None = None
        self._decode: Planned | None = None
        self._paged: Planned | None = None
        self._gathered: Planned | None = None
        self._graph_pages: Tensor | None = None

    def plan_decode(self, batch: RowBatch) -> "Planned":
        if self._decode is None:
            memory = self._workspace(batch)
            wrapper = self._library.BatchDecodeWithPagedKVCacheWrapper(memory, "NHD", use_tensor_cores=True)
            self._decode = Planned(wrapper)
        rows = batch.decode_rows
        pages = Pages(batch.starts_host[:rows] + 1, batch.page_size)
        indices = self._flat(batch, batch.slots[:rows], pages)
        self._plan_rows(self._decode, pages, indices, batch)
        return self._decode

    def plan_chunks(self, batch: RowBatch) -> "ChunkPlan":
        rows = batch.decode_rows
        queries, shape = row_ends(batch.counts_host[rows:]), self._shape()
        if worth_gathering(self.facts, batch, rows):
            if self._gathered is None:
                self._gathered = self._chunk_wrapper(self._library.BatchPrefillWithRaggedKVCacheWrapper, batch)
            ends = row_ends(batch.starts_host[rows:] + batch.counts_host[rows:])
            self._gathered.plan(lambda w: w.plan(queries, ends, *shape, causal=True, **self._dtypes()))
            return ChunkPlan(self._gathered, key_index(batch, rows))
        if self._paged is None:
            self._paged = self._chunk_wrapper(self._library.BatchPrefillWithPagedKVCacheWrapper, batch)
        pages = Pages(batch.starts_host[rows:] + batch.counts_host[rows:], batch.page_size)
        indices, listed = self._flat(batch, batch.slots[rows:], pages), (pages.last, *shape, batch.page_size)
        self._paged.plan(lambda w: w.plan(queries, pages.ends, indices, *listed, causal=True, **self._dtypes()))
        return ChunkPlan(self._paged, None)

    def _chunk_wrapper(self, kind: Any, batch: RowBatch) -> "Planned":
        version = "fa3" if torch.cuda.get_device_capability(self._device)[0] == 9 else "fa2"
        return Planned(kind(self._workspace(batch), "NHD", backend=version))

    def capture_decode(self, batch: RowBatch) -> "Planned":
        rows = batch.slots.shape[0]
        if self._graph_pages is None:
            # Rows may share pages: their lists together can be longer than the pool.
            size = batch.page_table.numel() + OVERREAD_PAGES
            self._graph_pages = torch.zeros(size, dtype=torch.int32, device=self._device)
        ends = torch.zeros(rows + 1, dtype=torch.int32, device=self._device)
        wrapper = self._library.BatchDecodeWithPagedKVCacheWrapper(
            self._workspace(batch),
            "NHD",
            use_cuda_graph=True,
            use_tensor_cores=True,
            paged_kv_indptr_buffer=ends,
            paged_kv_indices_buffer=self._graph_pages,
            paged_kv_last_page_len_buffer=torch.ones(rows, dtype=torch.int32, device=self._device),
        )
        planned = Planned(wrapper, ends)
        self._plan_graph(planned, batch, np.zeros(rows, np.int32))
        return planned

    def refresh_decode(self, plan: "Planned", batch: RowBatch) -> None:
        starts = np.zeros(batch.slots.shape[0], np.int32)
        starts[: len(batch.starts_host)] = batch.starts_host
        self._plan_graph(plan, batch, starts)

    def run_decode(self, layer: AttentionLayer, q: Tensor, out: Tensor, batch: RowBatch, plan: "Planned") -> None:
        plan.wrapper.run(q, self._cache(layer, batch), q_scale=self._relative(layer), out=out.view(q.shape))

    def run_chunks(self, layer: AttentionLayer, q: Tensor, out: Tensor, batch: RowBatch, plan: "ChunkPlan") -> None:
        rows, run, relative = batch.decode_rows, plan.planned.wrapper.run, self._relative(layer)
        q, out = q[rows:], out.view(q.shape)[rows:]
        if plan.index is None:
            run(q, self._cache(layer, batch), q_scale=relative, out=out)
        else:
            keys, values = (
                side[layer.index].index_select(0, plan.index) for side in (self.pool.keys, self.pool.values)
            )
            run(q if relative == 1.0 else q * relative, keys, values, out=out)

    def _cache(self, layer: AttentionLayer, batch: RowBatch) -> tuple[Tensor, Tensor]:
        shape = (-1, batch.page_size, self.facts.num_kv_heads, self.facts.head_dim)
        return self.pool.keys[layer.index].view(shape), self.pool.values[layer.index].view(shape)

    def _relative(self, layer: AttentionLayer) -> float:
        """The layer's scale as a multiple of the usual one, with which everything is planned."""
        return layer.scale * math.sqrt(self.facts.head_dim)

    def _plan_graph(self, planned: "Planned", batch: RowBatch, starts: I32) -> None:
        into = self._graph_pages
        assert into is not None and planned.ends is not None
        pages = Pages(starts + 1, batch.page_size)
        self._plan_rows(planned, pages, into[: pages.total], batch)
        _flatten(batch, batch.slots, planned.ends, pages, into)

    def _plan_rows(self, planned: "Planned", pages: "Pages", indices: Tensor, batch: RowBatch) -> None:
        shape, dtypes = (*self._shape(), batch.page_size), self._dtypes()
        planned.plan(lambda w: w.plan(pages.ends, indices, pages.last, *shape, **dtypes))

    def _workspace(self, batch: RowBatch) -> Tensor:
        """Where all its wrappers, one after the other, keep pieces of rows; enough for a row on every slot."""
        if self._memory is None:
            facts, rows = self.facts, batch.page_table.shape[0]
            tiles = rows + -(-rows * (facts.num_heads // facts.num_kv_heads) // TILE_ROWS)
            size = WORKSPACE_BYTES + tiles * TILE_ROWS * facts.num_heads * (facts.head_dim + 1) * 4
            self._memory = torch.zeros(size, dtype=torch.uint8, device=self._device)
        return self._memory

    def _flat(self, batch: RowBatch, slots: Tensor, pages: "Pages") -> Tensor:
        into = torch.empty(pages.total + OVERREAD_PAGES, dtype=torch.int32, device=self._device)
        _flatten(batch, slots, pages.ends.to(self._device, non_blocking=True), pages, into)
        return into[: pages.total]

    def _shape(self) -> tuple[int, int, int]:
        return self.facts.num_heads, self.facts.num_kv_heads, self.facts.head_dim

    def _dtypes(self) -> dict[str, torch.dtype]:
        return {"q_data_type": self.facts.dtype, "kv_data_type": self.pool.keys[0].dtype}


class Planned:
    """A FlashInfer wrapper, and when its last plan had left the host memory through which it goes to the device."""

    def __init__(self, wrapper: Any, ends: Tensor | None = None) -> None:
        """`ends`: the buffer in which a graph's wrapper keeps where each row's pages end."""
        self.wrapper = wrapper
        self.ends = ends
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def plan(self, plan: Callable[[Any], None]) -> None:
        self._copied.synchronize()
        plan(self.wrapper)
        self._copied.record()


@dataclass(frozen=True)
class ChunkPlan:
    """A wrapper planned for a step's chunks. index: int64 [K], the keys to be copied for it; None: it takes pages."""

    planned: Planned
    index: Tensor | None


class Pages:
    """Rows of so many tokens in pages: where each one's pages end in the list of all, and its last page's tokens."""

    def __init__(self, tokens: I32, page_size: int) -> None:
        count = -(-tokens // page_size)
        self.ends = row_ends(count)
        self.last = torch.from_numpy((tokens - (count - 1) * page_size).astype(np.int32))
        self.total = int(count.sum())
        self.longest = int(count.max())


def chunks_compiled(facts: AttentionFacts) -> bool:
    """Whether the kernels for chunks lie ready, in our cache or in FlashInfer's own package of them."""
    if find_spec("flashinfer_jit_cache") is not None:
        return True
    dtype = {torch.bfloat16: "bf16", torch.float16: "f16"}.get(facts.dtype)
    end = "_sm90" if torch.cuda.get_device_capability(facts.device)[0] == 9 else "False"
    name = f"batch_prefill_with_kv_cache_dtype_q_{dtype}_*_head_dim_qk_{facts.head_dim}_*_use_swa_False_*{end}"
    return any(cache_directory().glob(f".cache/flashinfer/{version('flashinfer-python')}/*/cached_ops/{name}/*.so"))


def _library() -> Any:
    """FlashInfer, told to compile into our cache and to take from there what is compiled, with no compiler at hand."""
    os.environ.setdefault("FLASHINFER_WORKSPACE_BASE", str(cache_directory()))  # read when it is imported
    import flashinfer
    from flashinfer.jit import env

    if not env.has_flashinfer_jit_cache():
        env.FLASHINFER_AOT_DIR = env.FLASHINFER_JIT_DIR
    return flashinfer


def _flatten(batch: RowBatch, slots: Tensor, ends: Tensor, pages: Pages, into: Tensor) -> None:
    from radixlm.kernels.triton.pages import flatten_pages

    flatten_pages(batch.page_table, slots, ends, pages.longest, into)

"""Attention by the FlashInfer package: decode on tensor cores, FlashAttention-3 or -2 for chunks. Knows pools and rows.

FlashInfer plans a step on the host before its kernels run; its kernels are compiled at first use, into our cache.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from radixlm.attention.base import AttentionFacts, RowBatch
from radixlm.attention.device import DeviceAttention
from radixlm.cache.pools.mha import MHAPool
from radixlm.kernels import triton
from radixlm.protocol.arrays import I32

HEAD_DIMS = (64, 128, 256)
WORKSPACE_BYTES = 256 << 20
OVERREAD_PAGES = 256  # its kernels may prefetch so far behind a row's last page


@dataclass(frozen=True)
class Meta:
    """What runs the decode rows and what runs the chunks of a step; None for what it has none of."""

    decode_rows: int
    decode: "Planned | None"
    chunks: "Planned | None"


class FlashInfer(DeviceAttention):
    """One plan per step for all layers; captured sizes have a wrapper each, planned anew before every replay."""

    name: ClassVar[str] = "flashinfer"

    @classmethod
    def why_not(cls, facts: AttentionFacts) -> list[str]:
        if not facts.device.startswith("cuda"):
            return [f"runs on CUDA, not {facts.device}"]
        reasons = []
        if find_spec("flashinfer") is None:
            reasons.append("the package flashinfer is not installed")
        if not triton.available():
            reasons.append("Triton, which writes its page lists, is not installed")
        if facts.dtype not in (torch.bfloat16, torch.float16):
            reasons.append(f"dtype {facts.dtype} is not bfloat16 or float16")
        if facts.head_dim not in HEAD_DIMS:
            reasons.append(f"head_dim {facts.head_dim} is not one of {', '.join(map(str, HEAD_DIMS))}")
        if facts.num_heads % facts.num_kv_heads:
            reasons.append(f"{facts.num_heads} query heads cannot share {facts.num_kv_heads} key-value heads evenly")
        capability = torch.cuda.get_device_capability(facts.device)
        if capability < (8, 0):
            reasons.append(f"compute capability {capability[0]}.{capability[1]} is below 8.0")
        return reasons

    def __init__(self, facts: AttentionFacts, pool: MHAPool) -> None:
        super().__init__(facts, pool)
        os.environ.setdefault("FLASHINFER_WORKSPACE_BASE", str(_cache_directory()))  # read when it is imported
        import flashinfer

        self._library = flashinfer
        device = pool.keys[0].device
        self._workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        hopper = torch.cuda.get_device_capability(device)[0] == 9
        chunks = flashinfer.BatchPrefillWithPagedKVCacheWrapper(
            self._workspace, "NHD", backend="fa3" if hopper else "fa2"
        )
        decode = flashinfer.BatchDecodeWithPagedKVCacheWrapper(self._workspace, "NHD", use_tensor_cores=True)
        self._chunks, self._decode = Planned(chunks), Planned(decode)
        self._graph_pages: Tensor | None = None

    def prepare(self, batch: RowBatch) -> Meta:
        rows = batch.decode_rows
        decode = chunks = None
        if rows:
            decode = self._decode
            pages = Pages(batch.starts_host[:rows] + 1, batch.page_size)
            indices = self._flat(batch, batch.slots[:rows], pages)
            decode.plan(lambda w: w.plan(pages.ends, indices, pages.last, *self._shape(batch), **self._options()))
        if rows < len(batch.slots_host):
            chunks = self._chunks
            pages = Pages(batch.starts_host[rows:] + batch.counts_host[rows:], batch.page_size)
            indices = self._flat(batch, batch.slots[rows:], pages)
            queries = _ends(batch.counts_host[rows:])
            chunks.plan(
                lambda w: w.plan(
                    queries, pages.ends, indices, pages.last, *self._shape(batch), causal=True, **self._options()
                )
            )
        return Meta(rows, decode, chunks)

    def capture(self, batch: RowBatch) -> Meta:
        rows, device = batch.slots.shape[0], batch.slots.device
        if self._graph_pages is None:
            # Rows may share pages: their lists together can be longer than the pool.
            self._graph_pages = torch.zeros(batch.page_table.numel() + OVERREAD_PAGES, dtype=torch.int32, device=device)
        ends = torch.zeros(rows + 1, dtype=torch.int32, device=device)
        wrapper = self._library.BatchDecodeWithPagedKVCacheWrapper(
            self._workspace,
            "NHD",
            use_cuda_graph=True,
            use_tensor_cores=True,
            paged_kv_indptr_buffer=ends,
            paged_kv_indices_buffer=self._graph_pages,
            paged_kv_last_page_len_buffer=torch.ones(rows, dtype=torch.int32, device=device),
        )
        meta = Meta(rows, Planned(wrapper, ends), None)
        self._plan_graph(meta, batch, np.zeros(rows, np.int32))
        return meta

    def refresh(self, meta: Meta, batch: RowBatch) -> None:
        starts = np.zeros(meta.decode_rows, np.int32)
        starts[: len(batch.starts_host)] = batch.starts_host
        self._plan_graph(meta, batch, starts)

    def attend(self, layer: int, q: Tensor, scale: float, batch: RowBatch, meta: Meta) -> Tensor:
        # The scale is part of the plan; a model's is the same for all layers, and the usual one.
        shape = (-1, batch.page_size, self.facts.num_kv_heads, self.facts.head_dim)
        cache = (self.pool.keys[layer].view(shape), self.pool.values[layer].view(shape))
        out = torch.empty_like(q)
        rows = meta.decode_rows
        for planned, span in ((meta.decode, slice(0, rows)), (meta.chunks, slice(rows, None))):
            if planned is not None:
                planned.wrapper.run(q[span], cache, q_scale=scale * self.facts.head_dim**0.5, out=out[span])
        return out.view(q.shape[0], -1)

    def _plan_graph(self, meta: Meta, batch: RowBatch, starts: I32) -> None:
        planned, into = meta.decode, self._graph_pages
        assert planned is not None and planned.ends is not None and into is not None
        pages = Pages(starts + 1, batch.page_size)
        indices = into[: pages.total]
        planned.plan(lambda w: w.plan(pages.ends, indices, pages.last, *self._shape(batch), **self._options()))
        _flatten(batch, batch.slots, planned.ends, pages, into)

    def _flat(self, batch: RowBatch, slots: Tensor, pages: "Pages") -> Tensor:
        into = torch.empty(pages.total + OVERREAD_PAGES, dtype=torch.int32, device=slots.device)
        _flatten(batch, slots, pages.ends.to(slots.device, non_blocking=True), pages, into)
        return into[: pages.total]

    def _shape(self, batch: RowBatch) -> tuple[int, int, int, int]:
        facts = self.facts
        return facts.num_heads, facts.num_kv_heads, facts.head_dim, batch.page_size

    def _options(self) -> dict[str, Any]:
        window = self.facts.sliding_window
        return {
            "window_left": -1 if window is None else window - 1,
            "q_data_type": self.facts.dtype,
            "kv_data_type": self.pool.keys[0].dtype,
        }


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


class Pages:
    """Rows of so many tokens in pages: where each one's pages end in the list of all, and its last page's tokens."""

    def __init__(self, tokens: I32, page_size: int) -> None:
        count = -(-tokens // page_size)
        self.ends = _ends(count)
        self.last = torch.from_numpy((tokens - (count - 1) * page_size).astype(np.int32))
        self.total = int(count.sum())
        self.longest = int(count.max())


def _ends(counts: I32) -> Tensor:
    """int32 [R + 1] on the host: 0, then the running sums."""
    return torch.from_numpy(np.concatenate((np.zeros(1, np.int32), np.cumsum(counts, dtype=np.int32))))


def _flatten(batch: RowBatch, slots: Tensor, ends: Tensor, pages: Pages, into: Tensor) -> None:
    from radixlm.kernels.triton.pages import flatten_pages

    flatten_pages(batch.page_table, slots, ends, pages.longest, into)


def _cache_directory() -> Path:
    """Under $RADIXLM_CACHE, else under $XDG_CACHE_HOME or ~/.cache."""
    own = os.environ.get("RADIXLM_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "radixlm"

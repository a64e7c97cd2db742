"""What an attention backend is given and must answer. Knows pools and rows; knows no model and no scheduler."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from radixlm.cache.pools.mha import MHAPool
from radixlm.kernels.rotary import HeadNorms, rotate_heads
from radixlm.protocol.arrays import I32, I64


@dataclass(frozen=True)
class AttentionFacts:
    """What decides whether a backend can serve: asked once at start. `kv_dtype` None: that of the computation.

    `sliding_window`: of the layers that have one; `some_full`: others have none. `soft_cap`: scores s become
    cap * tanh(s / cap) (Gemma 2, arXiv 2408.00118). `sinks`: layers bring a logit per head that takes weight and gives
    no value (gpt-oss, arXiv 2508.10925). `invariant`: a token's result must be the same bits whatever it is computed
    with, and however its row was cut.
    """

    device: str
    dtype: torch.dtype
    page_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    sliding_window: int | None
    kv_dtype: torch.dtype | None = None
    invariant: bool = False
    some_full: bool = False
    soft_cap: float | None = None
    sinks: bool = False

    @property
    def converts(self) -> bool:
        """Whether keys and values are kept in another precision than they are computed in."""
        return self.kv_dtype not in (None, self.dtype)

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The windows that layers have, each once."""
        return (self.sliding_window, None) if self.some_full else (self.sliding_window,)


@dataclass(frozen=True, eq=False)
class AttentionLayer:
    """What a layer asks of attention: its number in the pool, what scores are multiplied by, and how far it sees.

    `window`: one of the facts' windows. `sinks`: float32 [num_heads], where the facts have sinks.
    """

    index: int
    scale: float
    window: int | None = None
    sinks: Tensor | None = None


@dataclass(frozen=True)
class HostPages:
    """What the host knows of device rows' pages: table, int32 [slots, pages per request], as the device has it.

    owners: int64 [slots], a number for each slot that changes when another request takes it.
    """

    table: I32
    owners: I64


@dataclass(frozen=True)
class RowBatch:
    """One step's rows on the device: R rows of T tokens in all, decode rows first.

    slots, starts, counts: int32 [R]; positions: int64 [T]; kv_index: int64 [T], where each token's key and value go in
    the pool; page_table: int32 [slots, pages per request], whole. The `_host` arrays are numpy copies of the same.
    `pages_host` is None where nobody keeps it. token_types: int64 [T], which of two texts a token belongs to; None: all
    to the first.
    """

    slots: Tensor
    starts: Tensor
    counts: Tensor
    positions: Tensor
    kv_index: Tensor
    page_table: Tensor
    page_size: int
    decode_rows: int
    slots_host: I32
    starts_host: I32
    counts_host: I32
    pages_host: HostPages | None = None
    token_types: Tensor | None = None


class AttentionPlugin(ABC):
    """What attends a step's rows, or some of them, over paged keys and values; one instance serves all layers."""

    name: ClassVar[str]

    def __init__(self, facts: AttentionFacts, pool: MHAPool) -> None:
        self.facts = facts
        self.pool = pool

    @classmethod
    @abstractmethod
    def why_not(cls, facts: AttentionFacts) -> list[str]:
        """The reasons this backend cannot serve `facts`; empty when it can."""

    @classmethod
    def why_not_unasked(cls, facts: AttentionFacts) -> list[str]:
        """The reasons not to take it for `facts` unless it is asked for by name."""
        return []


class AttentionBackend(AttentionPlugin):
    """Causal attention of all of a step's rows."""

    capturable: ClassVar[bool] = True  # whether decode can be captured in a CUDA graph
    eager_keys: int = 0  # reads of a key that a step saves at least for which `rather_eager` is true; 0: it never is
    refresh_reads_pages: bool = False  # whether `refresh` needs the step's pages in the table, before its graph has run

    @abstractmethod
    def prepare(self, batch: RowBatch) -> Any:
        """Per-step metadata, made once before the layers run; passed to every `forward` as `meta`."""

    def capture(self, batch: RowBatch) -> Any:
        """Metadata for a graph of decode rows only, whose tensors are static buffers of a fixed number of rows.

        Called once per captured size; `forward` is then captured with it. By default what `prepare` gives, which is
        right for a backend that reads nothing but the batch's device tensors.
        """
        return self.prepare(batch)

    def refresh(self, meta: Any, batch: RowBatch) -> None:
        """What `capture`'s metadata needs before each replay of its graph, on the current stream; by default nothing.

        `batch`: the static device tensors, now holding this step's rows (the page table with `refresh_reads_pages`
        only), and host arrays of the real rows only. The rows of the graph beyond these are padding: start 0, count 1,
        and a slot whose page table is all null pages, so that they read and write nothing but the null page.
        """

    def rather_eager(self, slots: I32, starts: I32, pages: HostPages) -> bool:
        """Whether a step of these decode rows [R] is faster run eagerly than replayed; by default none is."""
        return False

    @abstractmethod
    def forward(self, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor, batch: RowBatch, meta: Any) -> Tensor:
        """Store k, v of the new tokens in the pool, then attend.

        A step's layers run in order from 0. Row r's token at position p sees the pool's tokens at positions 0..p of its
        own pages (within the layer's window, if it has one). q: [T, num_heads, head_dim]; k, v: [T, num_kv_heads,
        head_dim], after rotary. Returns [T, num_heads * head_dim] in q's dtype.
        """

    def forward_projected(
        self,
        layer: AttentionLayer,
        qkv: Tensor,
        cos: Tensor,
        sin: Tensor,
        norms: HeadNorms | None,
        batch: RowBatch,
        meta: Any,
    ) -> Tensor:
        """`forward` from what the projection gave: normalise queries and keys, if there are norms, and rotate them.

        qkv: [T, num_heads + 2 * num_kv_heads, head_dim], queries first, then keys; cos, sin: as `kernels.rotary.rotary`
        takes them.
        """
        q, k, v = rotate_heads(qkv, self.facts.num_heads, self.facts.num_kv_heads, cos, sin, norms)
        return self.forward(layer, q, k, v, batch, meta)


@dataclass(frozen=True)
class ForwardContext:
    """What a model's forward pass is given beside the token ids.

    `embeds`: which tokens of the step (int64 [n]) have embeddings of their own, and these ([n, hidden_size]).
    `wanted`: the tokens whose hidden state is wanted (int64 [L]); None: all. Only decoders take it.
    """

    batch: RowBatch
    attention: AttentionBackend
    meta: Any
    embeds: tuple[Tensor, Tensor] | None = None
    wanted: Tensor | None = None

"""What an attention backend is given and must answer. Knows pools and rows; knows no model and no scheduler."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from radixlm.cache.pools.mha import MHAPool
from radixlm.protocol.arrays import I32


@dataclass(frozen=True)
class AttentionFacts:
    """What decides whether a backend can serve: asked once at start."""

    device: str
    dtype: torch.dtype
    page_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    sliding_window: int | None


@dataclass(frozen=True)
class RowBatch:
    """One step's rows on the device: R rows of T tokens in all, decode rows first.

    slots, starts, counts: int32 [R]; positions: int64 [T]; kv_index: int64 [T], where each token's key and value go in
    the pool; page_table: int32 [slots, pages per request], whole. The `_host` arrays are numpy copies of the same.
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


class AttentionBackend(ABC):
    """Causal attention of a step's rows over paged keys and values; one instance serves all layers.

    A plug-in: also answers `why_not(facts) -> list[str]`.
    """

    name: ClassVar[str]

    def __init__(self, facts: AttentionFacts, pool: MHAPool) -> None:
        self.facts = facts
        self.pool = pool

    @classmethod
    @abstractmethod
    def why_not(cls, facts: AttentionFacts) -> list[str]:
        """The reasons this backend cannot serve `facts`; empty when it can."""

    @abstractmethod
    def prepare(self, batch: RowBatch) -> Any:
        """Per-step metadata, made once before the layers run; passed to every `forward` as `meta`."""

    @abstractmethod
    def forward(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, batch: RowBatch, meta: Any) -> Tensor:
        """Store k, v of the new tokens in the pool, then attend.

        Row r's token at position p sees the pool's tokens at positions 0..p of its own pages (within the sliding
        window, if there is one). q: [T, num_heads, head_dim]; k, v: [T, num_kv_heads, head_dim], after rotary.
        Returns [T, num_heads * head_dim] in q's dtype.
        """


@dataclass(frozen=True)
class ForwardContext:
    """What a model's forward pass is given beside the token ids."""

    batch: RowBatch
    attention: AttentionBackend
    meta: Any

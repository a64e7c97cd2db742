"""Two attention backends as one: decode rows by the one, chunks by the other. Knows neither's kernels."""

from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from radixlm.attention.base import AttentionFacts, RowBatch
from radixlm.attention.device import DeviceAttention
from radixlm.attention.flashinfer import FlashInfer, Planned, chunks_compiled
from radixlm.attention.triton_paged import TritonPaged
from radixlm.cache.pools.mha import MHAPool

CAPTURED_PAIRS = 1 << 22  # of queries and keys: up to here a replayed step gains more than the faster kernel


class Mixed(DeviceAttention):
    """Our own decode and captured chunks, which the host need not plan; FlashInfer for chunks with many keys."""

    name: ClassVar[str] = "mixed"

    @classmethod
    def why_not(cls, facts: AttentionFacts) -> list[str]:
        reasons = list(dict.fromkeys(TritonPaged.why_not(facts) + FlashInfer.why_not(facts)))
        if not reasons and not chunks_compiled(facts):
            reasons.append("FlashInfer's kernels are not compiled yet: starting with the flashinfer backend does that")
        return reasons

    def __init__(self, facts: AttentionFacts, pool: MHAPool) -> None:
        super().__init__(facts, pool)
        self._triton = TritonPaged(facts, pool)
        self._chunks = FlashInfer(facts, pool)

    def plan_decode(self, batch: RowBatch) -> Any:
        return self._triton.plan_decode(batch)

    def plan_chunks(self, batch: RowBatch) -> Any:
        return self._chunks.plan_chunks(batch)

    def run_decode(self, layer: int, q: Tensor, out: Tensor, scale: float, batch: RowBatch, plan: Any) -> None:
        self._triton.run_decode(layer, q, out, scale, batch, plan)

    def run_chunks(self, layer: int, q: Tensor, out: Tensor, scale: float, batch: RowBatch, plan: Any) -> None:
        backend = self._chunks if isinstance(plan, Planned) else self._triton
        backend.run_chunks(layer, q, out, scale, batch, plan)

    def capture_decode(self, batch: RowBatch) -> Any:
        return self._triton.capture_decode(batch)

    def refresh_decode(self, plan: Any, batch: RowBatch) -> None:
        self._triton.refresh_decode(plan, batch)

    def capture_chunks(self, batch: RowBatch) -> Any:
        return self._triton.capture_chunks(batch)

    def refresh_chunks(self, plan: Any, batch: RowBatch) -> bool:
        counts = batch.counts_host.astype(np.int64)
        pairs = int((counts * (batch.starts_host + counts / 2)).sum())
        return pairs <= CAPTURED_PAIRS and self._triton.refresh_chunks(plan, batch)

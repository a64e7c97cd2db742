"""Two attention backends as one: decode rows by the one, chunks by the other. Knows neither's kernels."""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from radixlm.attention.base import AttentionFacts, AttentionLayer, HostPages, RowBatch
from radixlm.attention.device import ChunkAttention, DeviceAttention
from radixlm.attention.gather import pairs
from radixlm.cache.pools.mha import MHAPool
from radixlm.protocol.arrays import I32

CAPTURED_PAIRS = 1 << 22  # of queries and keys: up to here a replayed step gains more than a faster kernel


@dataclass(frozen=True)
class Owned:
    """A plan, and the backend that made it."""

    backend: ChunkAttention
    plan: Any


class Mixed(DeviceAttention):
    """Chunks that their own backend cannot have in a graph are captured with the decode rows', if that can."""

    name: ClassVar[str] = "mixed"

    @classmethod
    def why_not_here(cls, facts: AttentionFacts) -> list[str]:
        return ["it is made of two others"]

    def __init__(
        self, facts: AttentionFacts, pool: MHAPool, decode: type[DeviceAttention], chunks: type[ChunkAttention]
    ) -> None:
        super().__init__(facts, pool)
        self._decode = decode(facts, pool)
        self._chunks = chunks(facts, pool)
        self.eager_keys = self._decode.eager_keys
        self.refresh_reads_pages = self._decode.refresh_reads_pages

    def plan_decode(self, batch: RowBatch) -> Any:
        return self._decode.plan_decode(batch)

    def plan_chunks(self, batch: RowBatch) -> Owned:
        return Owned(self._chunks, self._chunks.plan_chunks(batch))

    def run_decode(self, layer: AttentionLayer, q: Tensor, out: Tensor, batch: RowBatch, plan: Any) -> None:
        self._decode.run_decode(layer, q, out, batch, plan)

    def run_chunks(self, layer: AttentionLayer, q: Tensor, out: Tensor, batch: RowBatch, plan: Owned) -> None:
        plan.backend.run_chunks(layer, q, out, batch, plan.plan)

    def capture_decode(self, batch: RowBatch) -> Any:
        return self._decode.capture_decode(batch)

    def refresh_decode(self, plan: Any, batch: RowBatch) -> None:
        self._decode.refresh_decode(plan, batch)

    def rather_eager(self, slots: I32, starts: I32, pages: HostPages) -> bool:
        return self._decode.rather_eager(slots, starts, pages)

    def capture_chunks(self, batch: RowBatch) -> Owned | None:
        for backend in (self._chunks, self._decode):
            plan = backend.capture_chunks(batch)
            if plan is not None:
                return Owned(backend, plan)
        return None

    def refresh_chunks(self, plan: Owned, batch: RowBatch) -> bool:
        if plan.backend is not self._chunks and pairs(batch, 0) > CAPTURED_PAIRS:
            return False
        return plan.backend.refresh_chunks(plan.plan, batch)

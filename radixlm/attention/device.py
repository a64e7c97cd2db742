"""What attention backends of a device share: storing before attending, and decode rows apart from chunks."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from radixlm.attention.base import AttentionBackend, AttentionFacts, AttentionLayer, AttentionPlugin, RowBatch
from radixlm.kernels.rotary import HeadNorms, rotate_and_store
from radixlm.protocol.arrays import I32

LEAST_CAPABILITY = (8, 0)


@dataclass(frozen=True)
class StepMeta:
    """The plans for a step's decode rows and for its chunks; None where it has none of them."""

    decode: Any
    chunks: Any


class ChunkAttention(AttentionPlugin):
    """Attends chunks, whose keys and values are in the pool already.

    Attributes:
        dtypes: what it computes in.
        most_sharing: query heads that one key head may have; None: any number.
    """

    dtypes: ClassVar[tuple[torch.dtype, ...]] = (torch.bfloat16, torch.float16)
    most_sharing: ClassVar[int | None] = None

    @classmethod
    def why_not(cls, facts: AttentionFacts) -> list[str]:
        """Off CUDA that it is not there; else what `why_not_here` says, and what no kernel of a device can do."""
        if not facts.device.startswith("cuda"):
            return [f"runs on CUDA, not {facts.device}"]
        reasons = cls.why_not_here(facts)
        if facts.dtype not in cls.dtypes:
            *others, last = (str(dtype).removeprefix("torch.") for dtype in cls.dtypes)
            reasons.append(f"dtype {facts.dtype} is not {', '.join(others)} or {last}")
        if facts.converts:
            reasons.append(f"a KV cache in {facts.kv_dtype} with computation in {facts.dtype}")
        sharing, left = divmod(facts.num_heads, facts.num_kv_heads)
        if left or (cls.most_sharing is not None and sharing > cls.most_sharing):
            reasons.append(f"{facts.num_heads} query heads cannot share {facts.num_kv_heads} key-value heads evenly")
        capability = torch.cuda.get_device_capability(facts.device)
        if capability < LEAST_CAPABILITY:
            reasons.append(f"compute capability {capability[0]}.{capability[1]} is below 8.0")
        return reasons

    @classmethod
    @abstractmethod
    def why_not_here(cls, facts: AttentionFacts) -> list[str]:
        """What `why_not` adds of its own, on a CUDA device."""

    @abstractmethod
    def plan_chunks(self, batch: RowBatch) -> Any:
        """Metadata for the rows after the decode rows, of which there is at least one."""

    @abstractmethod
    def run_chunks(self, layer: AttentionLayer, q: Tensor, out: Tensor, batch: RowBatch, plan: Any) -> None:
        """Attend the chunks; q: [T, num_heads, head_dim], out: [T, num_heads * head_dim], of all tokens of the step.

        What belongs to decode rows is left alone.
        """

    def capture_chunks(self, batch: RowBatch) -> Any:
        """Metadata for a graph in which all rows are chunks, decode rows of one token, and all tokens the batch's.

        None, by default: chunks are not captured.
        """
        return None

    def refresh_chunks(self, plan: Any, batch: RowBatch) -> bool:
        """Make what `capture_chunks` gave that of a step. False: this step's attention had better not be replayed."""
        return False


class DeviceAttention(AttentionBackend, ChunkAttention):
    """New keys and values go to the pool first, in the launch that rotates them; attention then reads only the pool."""

    @abstractmethod
    def plan_decode(self, batch: RowBatch) -> Any:
        """Metadata for the decode rows, of which there is at least one."""

    @abstractmethod
    def run_decode(self, layer: AttentionLayer, q: Tensor, out: Tensor, batch: RowBatch, plan: Any) -> None:
        """Attend the decode rows. q: [decode rows, num_heads, head_dim]; out: [decode rows, num_heads * head_dim]."""

    def capture_decode(self, batch: RowBatch) -> Any:
        """`capture` for the decode rows."""
        return self.plan_decode(batch)

    def refresh_decode(self, plan: Any, batch: RowBatch) -> None:
        """`refresh` for what `capture_decode` gave."""

    def prepare(self, batch: RowBatch) -> StepMeta:
        rows = batch.decode_rows
        decode = self.plan_decode(batch) if rows else None
        return StepMeta(decode, self.plan_chunks(batch) if rows < len(batch.slots_host) else None)

    def capture(self, batch: RowBatch) -> StepMeta:
        return StepMeta(self.capture_decode(batch), None)

    def refresh(self, meta: StepMeta, batch: RowBatch) -> None:
        self.refresh_decode(meta.decode, batch)

    def forward(
        self, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor, batch: RowBatch, meta: StepMeta
    ) -> Tensor:
        self.pool.write(layer.index, batch.kv_index, k, v)
        return self._attended(layer, q, batch, meta)

    def forward_projected(
        self,
        layer: AttentionLayer,
        qkv: Tensor,
        cos: Tensor,
        sin: Tensor,
        norms: HeadNorms | None,
        batch: RowBatch,
        meta: StepMeta,
    ) -> Tensor:
        keys, values = self.pool.keys[layer.index], self.pool.values[layer.index]
        q = rotate_and_store(qkv, cos, sin, norms, keys, values, batch.kv_index)
        return self._attended(layer, q, batch, meta)

    def attend(self, layer: AttentionLayer, q: Tensor, out: Tensor, batch: RowBatch, meta: StepMeta) -> None:
        """What of `forward` comes after storing. q: [T, num_heads, head_dim]; out: [T, num_heads * head_dim]."""
        if meta.chunks is None:
            self.run_decode(layer, q, out, batch, meta.decode)
            return
        if meta.decode is not None:
            rows = batch.decode_rows
            self.run_decode(layer, q[:rows], out[:rows], batch, meta.decode)
        self.run_chunks(layer, q, out, batch, meta.chunks)

    def _attended(self, layer: AttentionLayer, q: Tensor, batch: RowBatch, meta: StepMeta) -> Tensor:
        out = torch.empty((q.shape[0], q.shape[1] * q.shape[2]), dtype=q.dtype, device=q.device)
        self.attend(layer, q, out, batch, meta)
        return out


def row_ends(counts: I32) -> Tensor:
    """int32 [R + 1] on the host: 0, then the running sums."""
    return torch.from_numpy(np.concatenate((np.zeros(1, np.int32), np.cumsum(counts, dtype=np.int32))))

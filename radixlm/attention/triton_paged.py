"""Attention by our own Triton kernels, straight from the pages. Knows pools and rows; knows no model."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from radixlm.attention.base import AttentionFacts, RowBatch
from radixlm.attention.device import DeviceAttention
from radixlm.kernels import triton

if TYPE_CHECKING:
    from radixlm.kernels.triton.decode import DecodeScratch
    from radixlm.kernels.triton.prefill import PrefillTiles

MAX_HEAD_DIM = 256


@dataclass(frozen=True)
class Meta:
    """slots, starts: int32 [decode rows], views of the batch's own; scratch and tiles: what the two kernels work by."""

    decode_rows: int
    slots: Tensor
    starts: Tensor
    scratch: "DecodeScratch"
    tiles: "PrefillTiles | None"


class TritonPaged(DeviceAttention):
    """Decode rows go to the split kernel, chunks to the tiled one."""

    name: ClassVar[str] = "triton"

    @classmethod
    def why_not(cls, facts: AttentionFacts) -> list[str]:
        if not facts.device.startswith("cuda"):
            return [f"runs on CUDA, not {facts.device}"]
        reasons = []
        if not triton.available():
            reasons.append("Triton is not installed")
        if facts.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            reasons.append(f"dtype {facts.dtype} is not float32, bfloat16 or float16")
        if facts.head_dim % 2 or facts.head_dim > MAX_HEAD_DIM:
            reasons.append(f"head_dim {facts.head_dim} is not even and up to {MAX_HEAD_DIM}")
        if facts.num_heads % facts.num_kv_heads or facts.num_heads // facts.num_kv_heads > 64:
            reasons.append(f"{facts.num_heads} query heads cannot share {facts.num_kv_heads} key-value heads evenly")
        capability = torch.cuda.get_device_capability(facts.device)
        if capability < (8, 0):
            reasons.append(f"compute capability {capability[0]}.{capability[1]} is below 8.0")
        return reasons

    def prepare(self, batch: RowBatch) -> Meta:
        from radixlm.kernels.triton.decode import decode_scratch
        from radixlm.kernels.triton.prefill import prefill_tiles

        facts, rows = self.facts, batch.decode_rows
        device = batch.page_table.device
        tiles = None
        if rows < len(batch.slots_host):
            tiles = prefill_tiles(
                batch.slots_host[rows:],
                batch.starts_host[rows:],
                batch.counts_host[rows:],
                rows,
                facts.num_heads // facts.num_kv_heads,
                facts.head_dim,
                facts.dtype,
                device,
            )
        scratch = decode_scratch(rows, facts.num_heads, facts.num_kv_heads, facts.head_dim, device)
        return Meta(rows, batch.slots[:rows], batch.starts[:rows], scratch, tiles)

    def attend(self, layer: int, q: Tensor, scale: float, batch: RowBatch, meta: Meta) -> Tensor:
        from radixlm.kernels.triton.decode import paged_decode
        from radixlm.kernels.triton.prefill import paged_prefill

        keys, values = self.pool.keys[layer], self.pool.values[layer]
        window, page_size = self.facts.sliding_window, batch.page_size
        out = torch.empty((q.shape[0], q.shape[1] * q.shape[2]), dtype=q.dtype, device=q.device)
        rows = meta.decode_rows
        if rows:
            paged_decode(
                q[:rows],
                keys,
                values,
                meta.slots,
                meta.starts,
                batch.page_table,
                page_size,
                scale,
                meta.scratch,
                window=window,
                out=out,
            )
        if meta.tiles is not None:
            paged_prefill(q, keys, values, batch.page_table, page_size, scale, meta.tiles, out, window=window)
        return out

"""Attention by our own Triton kernels, straight from the pages. Knows pools and rows; knows no model."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor

from radixlm.attention.base import AttentionFacts, AttentionLayer, HostPages, RowBatch
from radixlm.attention.device import DeviceAttention
from radixlm.attention.sharing import Sharing, SharingFinder
from radixlm.cache.pools.mha import MHAPool
from radixlm.kernels import triton
from radixlm.protocol.arrays import I32

if TYPE_CHECKING:
    from radixlm.kernels.triton.decode import DecodeScratch
    from radixlm.kernels.triton.shared import SharedKeys

MIN_HEAD_DIM = 16  # what tensor cores take at least
MAX_HEAD_DIM = 256
CAPTURED_ROWS = 64  # of a captured step; each may need a tile more than its tokens fill
CAPTURED_CONTEXT = 8192  # of its decode rows: longer ones had better be split
SHARED_BLOCK = 64  # keys are shared by whole blocks of so many, which tiles of all sizes divide
# Bytes of a layer's keys and values that are read once in place of once for each row that shares them: from so many on
# a step of several launches more is worth it, and from so many on one that the host launches itself.
SHARED_BYTES = 64 << 20
EAGER_BYTES = 1 << 30
GROUP_BYTES = 4 << 20  # of one group: less is not worth the host's 15 µs, most of which it takes whenever a row ends


@dataclass(frozen=True)
class DecodePlan:
    """slots, starts: int32 [decode rows], views of the batch's own; pieces: of the rows by window, cut at layer 0.

    shared: what rows share, for layers without a window.
    """

    slots: Tensor
    starts: Tensor
    pieces: "dict[int | None, DecodeScratch]"
    shared: "SharedKeys | None" = None


@dataclass(frozen=True)
class UncutPlan:
    """slots, starts: as in `DecodePlan`; tiles: as `prefill_tiles` makes them, one for each row, filled at layer 0."""

    slots: Tensor
    starts: Tensor
    tiles: Tensor


class TritonPaged(DeviceAttention):
    """Decode rows go to the split kernel, chunks to the tiled one; of a graph's step the host needs to know nothing.

    Keys that decode rows share go to a tiled kernel of their own, before the split one, in steps that are not replayed.

    Where results must not depend on the batch, decode rows are chunks of one token: the tiled kernel goes through a
    row's keys from the first on, in blocks that are the same for every query.
    """

    name: ClassVar[str] = "triton"
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    most_sharing = 32

    def __init__(self, facts: AttentionFacts, pool: MHAPool) -> None:
        super().__init__(facts, pool)
        # Of one token's keys and values in a layer.
        self._key_bytes = 2 * facts.num_kv_heads * facts.head_dim * facts.dtype.itemsize
        if None in facts.windows and not facts.invariant:
            self.eager_keys = -(-EAGER_BYTES // self._key_bytes)
        self._finder = SharingFinder(facts.page_size, SHARED_BLOCK, -(-GROUP_BYTES // self._key_bytes))
        self._cut: tuple[Sharing, SharedKeys] | None = None

    @classmethod
    def why_not_here(cls, facts: AttentionFacts) -> list[str]:
        reasons = []
        if not triton.available():
            reasons.append("Triton is not installed")
        if facts.head_dim % 2 or not MIN_HEAD_DIM <= facts.head_dim <= MAX_HEAD_DIM:
            reasons.append(f"head_dim {facts.head_dim} is not even and from {MIN_HEAD_DIM} to {MAX_HEAD_DIM}")
        return reasons

    def plan_decode(self, batch: RowBatch) -> DecodePlan | UncutPlan:
        from radixlm.kernels.triton.decode import decode_scratch

        facts, rows = self.facts, batch.decode_rows
        device = batch.page_table.device
        if facts.invariant:
            tiles = torch.ones(rows, 4, dtype=torch.int32, device=device)
            tiles[:, 2] = torch.arange(rows, dtype=torch.int32, device=device)
            return UncutPlan(batch.slots[:rows], batch.starts[:rows], tiles)
        shape = (rows, facts.num_heads, facts.num_kv_heads, facts.head_dim, device)
        pieces = {window: decode_scratch(*shape) for window in facts.windows}
        shared = None if batch.pages_host is None else self._shared_keys(batch, batch.pages_host)
        return DecodePlan(batch.slots[:rows], batch.starts[:rows], pieces, shared)

    def plan_chunks(self, batch: RowBatch) -> Tensor:
        return torch.from_numpy(self._tiles(batch, batch.decode_rows)).to(batch.page_table.device, non_blocking=True)

    def capture_chunks(self, batch: RowBatch) -> Tensor:
        device = batch.page_table.device
        tiles = -(-len(batch.positions) // self._tile_tokens(device)) + CAPTURED_ROWS
        return torch.zeros(tiles, 4, dtype=torch.int32, device=device)

    def refresh_chunks(self, plan: Tensor, batch: RowBatch) -> bool:
        rows = batch.decode_rows
        decoded = batch.starts_host[:rows]
        if len(decoded) and decoded.max() > CAPTURED_CONTEXT and not self.facts.invariant:
            return False
        if batch.pages_host is not None and self.rather_eager(batch.slots_host[:rows], decoded, batch.pages_host):
            return False
        tiles = self._tiles(batch, 0)
        if len(tiles) > len(plan):
            return False
        padded = np.zeros(plan.shape, np.int32)
        padded[: len(tiles)] = tiles
        plan.copy_(torch.from_numpy(padded), non_blocking=True)
        return True

    def _tile_tokens(self, device: torch.device) -> int:
        from radixlm.kernels.triton.prefill import tile_tokens

        facts = self.facts
        return tile_tokens(facts.num_heads // facts.num_kv_heads, facts.head_dim, facts.dtype, device)

    def _tiles(self, batch: RowBatch, first_row: int) -> I32:
        """`prefill_tiles` of the rows from `first_row` on, before which all are decode rows."""
        from radixlm.kernels.triton.prefill import prefill_tiles

        facts = self.facts
        return prefill_tiles(
            batch.slots_host[first_row:],
            batch.starts_host[first_row:],
            batch.counts_host[first_row:],
            first_row,
            facts.num_heads // facts.num_kv_heads,
            facts.head_dim,
            facts.dtype,
            batch.page_table.device,
        )

    def run_decode(
        self, layer: AttentionLayer, q: Tensor, out: Tensor, batch: RowBatch, plan: DecodePlan | UncutPlan
    ) -> None:
        from radixlm.kernels.triton.decode import cut_rows, paged_decode

        if isinstance(plan, UncutPlan):
            if layer.index == 0:
                plan.tiles[:, 0].copy_(plan.slots)
                plan.tiles[:, 1].copy_(plan.starts)
            self.run_chunks(layer, q, out, batch, plan.tiles)
            return
        if layer.index == 0:  # once a step, and inside the graph if there is one
            for window, scratch in plan.pieces.items():
                cut_rows(scratch, plan.slots, plan.starts, window, plan.shared if window is None else None)
        shared = plan.shared if layer.window is None else None
        if shared is not None:
            self._attend_shared(layer, q, batch, shared)
        paged_decode(
            q,
            self.pool.keys[layer.index],
            self.pool.values[layer.index],
            batch.page_table,
            batch.page_size,
            layer.scale,
            plan.pieces[layer.window],
            out,
            soft_cap=self.facts.soft_cap,
            sinks=layer.sinks,
            shared=shared,
        )

    def rather_eager(self, slots: I32, starts: I32, pages: HostPages) -> bool:
        return self._sharing(slots, starts, pages, EAGER_BYTES) is not None

    def _sharing(self, slots: I32, starts: I32, pages: HostPages, least_bytes: int) -> Sharing | None:
        """What decode rows share, if a layer need not read so many bytes of keys and values."""
        if not self.eager_keys or int(starts.sum()) * self._key_bytes < least_bytes:
            return None
        sharing = self._finder.find(slots, starts, pages)
        height = self._tile_tokens(self.pool.keys[0].device)
        return sharing if sharing.saved_keys(height) * self._key_bytes >= least_bytes else None

    def _shared_keys(self, batch: RowBatch, pages: HostPages) -> "SharedKeys | None":
        from radixlm.kernels.triton.shared import shared_keys

        facts, rows = self.facts, batch.decode_rows
        slots = batch.slots_host[:rows]
        sharing = self._sharing(slots, batch.starts_host[:rows], pages, SHARED_BYTES)
        if sharing is None:
            return None
        if self._cut is None or self._cut[0] is not sharing:
            self._cut = None  # its memory goes first
            groups = [(group.rows, group.keys) for group in sharing.groups]
            shape = (facts.num_heads, facts.num_kv_heads, facts.head_dim, facts.dtype)
            self._cut = sharing, shared_keys(groups, SHARED_BLOCK, slots, *shape, batch.page_table.device)
        return self._cut[1]

    def _attend_shared(self, layer: AttentionLayer, q: Tensor, batch: RowBatch, shared: "SharedKeys") -> None:
        from radixlm.kernels.triton.shared import attend_shared

        attend_shared(
            q,
            self.pool.keys[layer.index],
            self.pool.values[layer.index],
            batch.page_table,
            batch.page_size,
            layer.scale,
            shared,
            soft_cap=self.facts.soft_cap,
        )

    def run_chunks(self, layer: AttentionLayer, q: Tensor, out: Tensor, batch: RowBatch, plan: Tensor) -> None:
        from radixlm.kernels.triton.prefill import paged_prefill

        paged_prefill(
            q,
            self.pool.keys[layer.index],
            self.pool.values[layer.index],
            batch.page_table,
            batch.page_size,
            layer.scale,
            plan,
            out,
            window=layer.window,
            soft_cap=self.facts.soft_cap,
            sinks=layer.sinks,
            invariant=self.facts.invariant,
        )

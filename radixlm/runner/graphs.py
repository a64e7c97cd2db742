"""Whole decode steps captured as CUDA graphs, one pair for each rung of row counts. Owns the graphs' static memory.

A step is replayed on the smallest rung that holds its rows; the rest of the rung runs on the padding slot, whose pages
are all null. The first graph of a pair goes from device rows to hidden vectors, the second on to tokens; where logits
must be changed in between, the second is left out and the caller samples from the hidden vectors.
"""

import bisect
import dataclasses
import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from radixlm.attention.base import AttentionBackend, ForwardContext, RowBatch
from radixlm.models.decoder import Decoder
from radixlm.protocol.arrays import I32
from radixlm.protocol.plan import StepPlan
from radixlm.runner.forward import draw_all, kv_index, spans
from radixlm.runner.rows import Rows
from radixlm.runner.sampler import changes_logits, next_tokens


@dataclass(frozen=True)
class Rung:
    """Graphs of one row count and what they were captured with."""

    batch: RowBatch
    outputs: Tensor
    meta: Any
    forward: torch.cuda.CUDAGraph
    sample: torch.cuda.CUDAGraph


@dataclass(frozen=True)
class CaptureReport:
    """What capturing took: device memory counts the driver's own share too."""

    sizes: tuple[int, ...]
    seconds: float
    bytes: int


class DecodeGraphs:
    """Captures on construction, largest rung first, all rungs sharing one memory pool. `report` says what it took."""

    def __init__(
        self, model: Decoder, attention: AttentionBackend, rows: Rows, block: Tensor, sizes: Sequence[int]
    ) -> None:
        """`block`: uint8 on the device, where every step's numbers are sent; `numbers` says in which form.

        sizes: row counts, ascending; the block must have room for 12 bytes of each of the largest.
        """
        self._model = model
        self._attention = attention
        self._rows = rows
        self._block = block
        self._sizes = tuple(sizes)
        most, device = self._sizes[-1], rows.last_token.device
        self._ones = torch.ones(most, dtype=torch.int32, device=device)
        self._slots = torch.zeros(most, dtype=torch.int64, device=device)
        self._positions = torch.zeros(most, dtype=torch.int64, device=device)
        self._kv_index = torch.zeros(most, dtype=torch.int64, device=device)
        self._tokens = torch.zeros(most, dtype=torch.int64, device=device)
        self._hidden = torch.zeros(most, model.card.hidden_size, dtype=model.dtype, device=device)
        self._rungs: dict[int, Rung] = {}
        self.report = self._capture_all()

    @property
    def most_rows(self) -> int:
        return self._sizes[-1]

    def numbers(self, plan: StepPlan) -> I32:
        """What must lie at the block's start when `plan` (at most `most_rows` decode rows) is replayed: int32 [3, rung]."""
        count = len(plan.slots)
        numbers = np.zeros((3, self._rung_size(count)), np.int32)
        numbers[0, :count], numbers[0, count:] = plan.slots, self._rows.padding_slot
        numbers[1, :count] = plan.starts
        numbers[2, :count] = plan.outputs
        return numbers

    def replay(self, plan: StepPlan) -> Tensor:
        """Run the step whose numbers are in the block. Returns tokens int64 [R], good until the next replay."""
        count = len(plan.slots)
        rung = self._rungs[self._rung_size(count)]
        batch = dataclasses.replace(
            rung.batch, slots_host=plan.slots, starts_host=plan.starts, counts_host=plan.counts, decode_rows=count
        )
        self._attention.refresh(rung.meta, batch)
        rung.forward.replay()
        if not changes_logits(self._rows, plan.slots, plan.outputs):
            rung.sample.replay()
            return self._tokens[:count]
        for span in spans(count):
            logits = self._model.logits(self._hidden[:count][span])
            tokens = next_tokens(
                self._rows, logits, self._slots[:count][span], rung.outputs[:count][span],
                plan.slots[span], plan.outputs[span],
            )  # fmt: skip
            self._tokens[:count][span].copy_(tokens)
        return self._tokens[:count]

    def _rung_size(self, count: int) -> int:
        return self._sizes[bisect.bisect_left(self._sizes, count)]

    def _capture_all(self) -> CaptureReport:
        began, free_bytes = time.monotonic(), torch.cuda.mem_get_info()[0]
        stream, pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()
        stream.wait_stream(torch.cuda.current_stream())
        with _without_gc(), torch.inference_mode(), torch.cuda.stream(stream):
            for size in reversed(self._sizes):
                self._rungs[size] = self._capture(size, pool)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        taken_bytes = max(free_bytes - torch.cuda.mem_get_info()[0], 0)
        return CaptureReport(self._sizes, time.monotonic() - began, taken_bytes)

    def _capture(self, size: int, pool: Any) -> Rung:
        numbers = self._block[: 12 * size].view(torch.int32).view(3, size)
        numbers.zero_()
        numbers[0].fill_(self._rows.padding_slot)
        padding = np.full(size, self._rows.padding_slot, np.int32)
        batch = RowBatch(
            slots=numbers[0],
            starts=numbers[1],
            counts=self._ones[:size],
            positions=self._positions[:size],
            kv_index=self._kv_index[:size],
            page_table=self._rows.page_table,
            page_size=self._attention.pool.page_size,
            decode_rows=size,
            slots_host=padding,
            starts_host=np.zeros(size, np.int32),
            counts_host=np.ones(size, np.int32),
        )
        meta = self._attention.capture(batch)
        self._attention.refresh(meta, batch)
        outputs = numbers[2]
        graphs = []
        for part in (lambda: self._forward(batch, meta), lambda: self._sample(size, outputs)):
            part()  # kernels are compiled and workspaces taken outside the capture
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin(pool, capture_error_mode="thread_local")
            try:
                part()
            finally:
                graph.capture_end()
            graphs.append(graph)
        return Rung(batch, outputs, meta, *graphs)

    def _forward(self, batch: RowBatch, meta: Any) -> None:
        size, rows = batch.decode_rows, self._rows
        slots, positions = self._slots[:size], self._positions[:size]
        slots.copy_(batch.slots)
        positions.copy_(batch.starts)
        batch.kv_index.copy_(kv_index(rows, slots, positions, batch.page_size))
        input_ids = rows.last_token.index_select(0, slots)
        hidden = self._model.forward(input_ids, ForwardContext(batch, self._attention, meta))
        self._hidden[:size].copy_(hidden)

    def _sample(self, size: int, outputs: Tensor) -> None:
        draw_all(self._model, self._rows, self._hidden[:size], self._slots[:size], outputs, self._tokens[:size])


@contextmanager
def _without_gc() -> Iterator[None]:
    """No garbage collection: freeing a tensor at a random moment would break a capture."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()

"""Whole decode steps captured as CUDA graphs, three for each rung of row counts. Owns the graphs' static memory.

A step is replayed on the smallest rung that holds its rows; the rest of the rung runs on the padding slot, whose pages
are all null. The first graph goes from device rows to hidden vectors, the second on to tokens, the third, in its place,
to tokens and their log probabilities; where logits must be changed in between, these are left out and the caller
samples from the hidden vectors.
"""

import bisect
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from radixlm.attention.base import AttentionBackend, ForwardContext, RowBatch
from radixlm.models.base import Model
from radixlm.protocol.plan import StepPlan
from radixlm.runner.capture import GraphPool, Recorder
from radixlm.runner.masks import TokenMasks
from radixlm.runner.rows import PageChanges, Rows
from radixlm.runner.sampler import Drawn, changes_logits, draw_all, next_tokens
from radixlm.runner.staging import packed_bytes, views


@dataclass(frozen=True)
class Rung:
    """Graphs of one row count and what they were captured with."""

    batch: RowBatch
    meta: Any
    forward: torch.cuda.CUDAGraph
    sample: torch.cuda.CUDAGraph
    sample_and_read: torch.cuda.CUDAGraph


class DecodeGraphs:
    """Captures on construction, all rungs into one memory pool. `report` says what it took."""

    def __init__(
        self, model: Model, attention: AttentionBackend, rows: Rows, sizes: Sequence[int], pool: GraphPool
    ) -> None:
        """`sizes`: row counts, ascending."""
        self._model = model
        self._attention = attention
        self._rows = rows
        self._sizes = tuple(sizes)
        self._pool = pool
        most, device = self._sizes[-1], rows.last_token.device
        self._block = torch.zeros(_block_bytes(most), dtype=torch.uint8, device=device)
        self._ones = torch.ones(most, dtype=torch.int32, device=device)
        self._numbers = torch.zeros(3, most, dtype=torch.int64, device=device)  # as in the block
        self._kv_index = torch.zeros(most, dtype=torch.int64, device=device)
        self._tokens = torch.zeros(most, dtype=torch.int64, device=device)
        self._logprobs = torch.zeros(most, device=device)
        self._hidden = torch.zeros(most, model.card.hidden_size, dtype=attention.facts.dtype, device=device)
        self._rungs: dict[int, Rung] = {}
        self.report = pool.capture_all(self._sizes, self._capture)

    @property
    def most_rows(self) -> int:
        return self._sizes[-1]

    def send(self, plan: StepPlan, changes: PageChanges | None) -> None:
        """Bring what `replay` needs to the device; the page table changes too, which the replay applies first."""
        count, size = len(plan.slots), self._rung_size(len(plan.slots))
        numbers = np.zeros((3, size), np.int32)
        numbers[0, :count], numbers[0, count:] = plan.slots, self._rows.padding_slot
        numbers[1, :count] = plan.starts
        numbers[2, :count] = plan.outputs
        room = _page_changes(size)
        index = np.full(room, self._rows.padding_slot * self._rows.page_table.shape[1], np.int64)
        pages = np.zeros(room, np.int32)  # the null page
        if changes is not None and len(changes.index) <= room:
            index[: len(changes.index)] = changes.index
            pages[: len(changes.pages)] = changes.pages
        elif changes is not None:
            self._rows.apply_pages(*self._rows.staging.send([changes.index, changes.pages]))
        self._rows.staging.fill([numbers, index, pages], self._block)

    def replay(
        self, plan: StepPlan, asked: Callable[[], TokenMasks | None], read: bool = False
    ) -> tuple[Tensor, Drawn]:
        """Run the step that was sent: hidden [R, hidden_size] and what was drawn, good until the next replay.

        `asked` says which tokens may be sampled, once the forward pass is under way; `read`: as for `next_tokens`.
        """
        count, size = len(plan.slots), self._rung_size(len(plan.slots))
        rung = self._rungs[size]
        if self._attention.refresh_reads_pages:
            _, index, pages = _views(self._block, size)
            self._rows.apply_pages(index, pages)  # once more in the replay
        batch = dataclasses.replace(
            rung.batch, slots_host=plan.slots, starts_host=plan.starts, counts_host=plan.counts, decode_rows=count
        )
        self._attention.refresh(rung.meta, batch)
        rung.forward.replay()
        hidden = self._hidden[:count]
        masks = asked()
        if masks is None and not changes_logits(self._rows, plan.slots, plan.outputs):
            (rung.sample_and_read if read else rung.sample).replay()
            return hidden, self._drawn(count, read)
        slots, _, outputs = self._numbers[:, :count]
        return hidden, next_tokens(self._model, self._rows, hidden, slots, outputs, plan.slots, plan.outputs, masks)

    def _drawn(self, count: int, read: bool) -> Drawn:
        return Drawn(self._tokens[:count], self._logprobs[:count] if read else None)

    def _rung_size(self, count: int) -> int:
        return self._sizes[bisect.bisect_left(self._sizes, count)]

    def _capture(self, size: int) -> None:
        numbers, index, pages = _views(self._block, size)
        numbers.zero_()
        numbers[0].fill_(self._rows.padding_slot)
        index.fill_(self._rows.padding_slot * self._rows.page_table.shape[1])
        pages.zero_()
        padding = np.full(size, self._rows.padding_slot, np.int32)
        batch = RowBatch(
            slots=numbers[0],
            starts=numbers[1],
            counts=self._ones[:size],
            positions=self._numbers[1, :size],
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
        parts: tuple[Callable[[], None], ...] = (
            partial(self._forward, batch, (numbers, index, pages), meta),
            partial(self._sample, size, False),
            partial(self._sample, size, True),
        )
        recorder, graphs = Recorder(self._pool), []
        for part in parts:
            part()  # kernels are compiled and workspaces taken outside the capture
            with recorder.closing():
                recorder.begin()
                part()
                graphs.append(recorder.end())
        self._rungs[size] = Rung(batch, meta, *graphs)

    def _forward(self, batch: RowBatch, sent: tuple[Tensor, Tensor, Tensor], meta: Any) -> None:
        numbers, index, pages = sent
        size, rows = batch.decode_rows, self._rows
        rows.apply_pages(index, pages)
        self._numbers[:, :size].copy_(numbers)
        slots = self._numbers[0, :size]
        batch.kv_index.copy_(rows.kv_index(slots, batch.positions, batch.page_size))
        input_ids = rows.last_token.index_select(0, slots)
        hidden = self._model.forward(input_ids, ForwardContext(batch, self._attention, meta))
        self._hidden[:size].copy_(hidden)

    def _sample(self, size: int, read: bool) -> None:
        slots, _, outputs = self._numbers[:, :size]
        draw_all(self._model, self._rows, self._hidden[:size], slots, outputs, self._drawn(size, read))


def _page_changes(size: int) -> int:
    """How many page table changes a rung of `size` rows takes along: on average a row needs a page a step, at most."""
    return 2 * size + 64


def _views(block: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Where `send` puts a rung's numbers (int32 [3, size]) and page table changes in the block."""
    room = _page_changes(size)
    shapes = (np.empty((3, size), np.int32), np.empty(room, np.int64), np.empty(room, np.int32))
    numbers, index, pages = views(block, shapes)
    return numbers, index, pages


def _block_bytes(size: int) -> int:
    """Bytes that a rung of `size` rows needs in the block."""
    room = _page_changes(size)
    return packed_bytes((np.empty((3, size), np.int32), np.empty(room, np.int64), np.empty(room, np.int32)))

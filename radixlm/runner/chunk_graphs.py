"""Steps with prompt tokens as CUDA graphs, whole or of the pieces between attentions. Owns the graphs' static memory.

All but attention works on tokens one by one, whatever rows they belong to, so a step is replayed on the smallest rung
that holds its tokens; the rest of the rung are tokens of the padding slot, which are written to the null page.
Attention itself depends on the rows and runs eagerly between the pieces, on the real tokens only; a backend that can
bring a step's rows to a graph has it in the whole graph. What follows the last attention is in no graph: it is done for
the tokens that are wanted alone.
"""

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from radixlm.attention.base import AttentionBackend, AttentionFacts, AttentionLayer, ForwardContext, RowBatch
from radixlm.attention.device import DeviceAttention, StepMeta
from radixlm.kernels.rotary import HeadNorms, rotate_and_store
from radixlm.models.decoder import Decoder
from radixlm.protocol.plan import StepPlan
from radixlm.runner.capture import GraphPool, Recorder
from radixlm.runner.rows import Rows
from radixlm.runner.staging import packed_bytes, views

ON_DEVICE = -1  # in place of a token id: the device row has it


@dataclass(frozen=True)
class Break:
    """Where a step is interrupted: a layer attends from q [N, heads, head_dim] into out [N, heads * head_dim]."""

    layer: AttentionLayer
    q: Tensor
    out: Tensor


@dataclass(frozen=True)
class Whole:
    """A step with its attention, and the metadata that this attends with."""

    graph: torch.cuda.CUDAGraph
    plan: Any


@dataclass(frozen=True)
class Rung:
    """Graphs of one token count: each of `pieces` ends at its break, `last` follows the last of them."""

    pieces: tuple[tuple[torch.cuda.CUDAGraph, Break], ...]
    last: torch.cuda.CUDAGraph
    whole: Whole | None


class ChunkGraphs:
    """Captures on construction. `report` says what it took."""

    def __init__(
        self, model: Decoder, attention: DeviceAttention, rows: Rows, sizes: Sequence[int], pool: GraphPool
    ) -> None:
        """`sizes`: token counts, ascending."""
        self._model = model
        self._attention = attention
        self._rows = rows
        self._sizes = tuple(sizes)
        self._pool = pool
        facts, device = attention.facts, rows.last_token.device
        most = self._sizes[-1]
        self._block = torch.zeros(packed_bytes(_per_token(most)), dtype=torch.uint8, device=device)
        self._kv_index = torch.zeros(most, dtype=torch.int64, device=device)
        self._delta, self._residual = torch.zeros(2, most, model.card.hidden_size, dtype=facts.dtype, device=device)
        self._q = torch.zeros(most, facts.num_heads, facts.head_dim, dtype=facts.dtype, device=device)
        self._attended = torch.zeros(most, facts.num_heads * facts.head_dim, dtype=facts.dtype, device=device)
        self._rungs: dict[int, Rung] = {}
        self.report = pool.capture_all(self._sizes, self._capture)

    def hold(self, plan: StepPlan) -> bool:
        """Whether the step fits into the largest rung."""
        return _tokens(plan) <= self._sizes[-1]

    def send(self, plan: StepPlan) -> None:
        """Bring the step's tokens to the device."""
        size = self._rung_size(_tokens(plan))
        self._rows.staging.fill(per_token(plan, size, self._rows.padding_slot), self._block)

    def replay(self, plan: StepPlan, table: Tensor, wanted: Tensor | None) -> Tensor:
        """Run the step whose tokens were sent. table: int32 [3, R]: slots, starts, counts.

        Returns the hidden vectors of the tokens `wanted` [L, hidden_size], or with None of all of them, as `forward`
        of the model would.
        """
        tokens = _tokens(plan)
        rung = self._rungs[self._rung_size(tokens)]
        _, _, positions = views(self._block, _per_token(self._rung_size(tokens)))
        slots, starts, counts = table
        batch = RowBatch(
            slots=slots,
            starts=starts,
            counts=counts,
            positions=positions[:tokens],
            kv_index=self._kv_index[:tokens],
            page_table=self._rows.page_table,
            page_size=self._attention.pool.page_size,
            decode_rows=plan.decode_rows,
            slots_host=plan.slots,
            starts_host=plan.starts,
            counts_host=plan.counts,
            pages_host=self._rows.pages_host,
        )
        whole = rung.whole
        if whole is not None and self._attention.refresh_chunks(whole.plan, batch):
            whole.graph.replay()
        else:
            meta = self._attention.prepare(batch)
            for graph, at in rung.pieces:
                graph.replay()
                self._attention.attend(at.layer, at.q[:tokens], at.out[:tokens], batch, meta)
            rung.last.replay()
        return self._model.finish(self._delta[:tokens], self._residual[:tokens], wanted)

    def _rung_size(self, tokens: int) -> int:
        return self._sizes[bisect.bisect_left(self._sizes, tokens)]

    def _capture(self, size: int) -> None:
        ids, slots, positions = views(self._block, _per_token(size))
        ids.zero_()
        slots.fill_(self._rows.padding_slot)
        positions.zero_()
        recorder = Recorder(self._pool)
        pieces: list[tuple[torch.cuda.CUDAGraph, Break]] = []

        def interrupt(at: Break) -> None:
            pieces.append((recorder.end(), at))
            recorder.begin()

        if size == self._sizes[-1]:  # kernels are compiled and workspaces taken outside the capture
            self._forward(size, self._breaking(size, lambda _: None), None)
        with recorder.closing():
            recorder.begin()
            self._forward(size, self._breaking(size, interrupt), None)
            last = recorder.end()
        self._rungs[size] = Rung(tuple(pieces), last, self._capture_whole(size, recorder))

    def _capture_whole(self, size: int, recorder: Recorder) -> Whole | None:
        plan = self._attention.capture_chunks(self._batch(size))
        if plan is None:
            return None
        if size == self._sizes[-1]:
            self._forward(size, self._attention, StepMeta(None, plan))
        with recorder.closing():
            recorder.begin()
            self._forward(size, self._attention, StepMeta(None, plan))
            return Whole(recorder.end(), plan)

    def _breaking(self, size: int, interrupt: Callable[[Break], None]) -> "_Breaking":
        return _Breaking(self._attention, self._q[:size], self._attended[:size], interrupt)

    def _forward(self, size: int, attention: AttentionBackend, meta: StepMeta | None) -> None:
        rows, batch = self._rows, self._batch(size)
        ids, slots, positions = views(self._block, _per_token(size))
        self._kv_index[:size].copy_(rows.kv_index(slots, positions, batch.page_size))
        input_ids = torch.where(ids == ON_DEVICE, rows.last_token.index_select(0, slots), ids)
        context = ForwardContext(batch, attention, meta)
        residual, cos, sin = self._model.begin(input_ids, context)
        self._delta[:size].copy_(self._model.attend(residual, cos, sin, context))
        self._residual[:size].copy_(residual)

    def _batch(self, size: int) -> RowBatch:
        """The static tensors of a rung's tokens; of their rows nothing is known."""
        _, slots, positions = views(self._block, _per_token(size))
        nothing = np.zeros(0, np.int32)
        return RowBatch(
            slots=slots,
            starts=positions,
            counts=slots,
            positions=positions,
            kv_index=self._kv_index[:size],
            page_table=self._rows.page_table,
            page_size=self._attention.pool.page_size,
            decode_rows=0,
            slots_host=nothing,
            starts_host=nothing,
            counts_host=nothing,
        )


class _Breaking(AttentionBackend):
    """In a backend's place while pieces are captured: stores keys and values, and leaves the attending to a break."""

    name: ClassVar[str] = "breaking"

    def __init__(self, backend: DeviceAttention, q: Tensor, out: Tensor, interrupt: Callable[[Break], None]) -> None:
        super().__init__(backend.facts, backend.pool)
        self._q = q
        self._out = out
        self._interrupt = interrupt

    @classmethod
    def why_not(cls, facts: AttentionFacts) -> list[str]:
        return ["stands in for another backend only"]

    def prepare(self, batch: RowBatch) -> None:
        return None

    def forward(self, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor, batch: RowBatch, meta: Any) -> Tensor:
        self.pool.write(layer.index, batch.kv_index, k, v)
        self._q.copy_(q)
        self._interrupt(Break(layer, self._q, self._out))
        return self._out

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
        keys, values = self.pool.keys[layer.index], self.pool.values[layer.index]
        rotate_and_store(qkv, cos, sin, norms, keys, values, batch.kv_index, self._q)
        self._interrupt(Break(layer, self._q, self._out))
        return self._out


def per_token(plan: StepPlan, size: int, padding_slot: int) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
    """A step's tokens, and padding up to `size` of them: ids (or ON_DEVICE), slots, positions; int64 [size] each."""
    ids, slots, positions = _per_token(size)
    tokens, decode_rows = _tokens(plan), plan.decode_rows
    ids[:decode_rows] = ON_DEVICE
    ids[decode_rows:tokens] = plan.tokens
    ids[tokens:] = 0
    slots[:tokens] = np.repeat(plan.slots, plan.counts)
    slots[tokens:] = padding_slot
    ends = np.cumsum(plan.counts, dtype=np.int64)
    positions[:tokens] = np.arange(tokens) + np.repeat(plan.starts - ends + plan.counts, plan.counts)
    positions[tokens:] = 0
    return [ids, slots, positions]


def _per_token(size: int) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
    return [np.empty(size, np.int64) for _ in range(3)]


def _tokens(plan: StepPlan) -> int:
    return plan.decode_rows + len(plan.tokens)

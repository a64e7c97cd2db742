"""Steps in pieces: what is sent for a rung, and that padding and interruptions change no result."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from radixlm.attention.base import AttentionFacts, AttentionLayer, RowBatch
from radixlm.attention.device import DeviceAttention
from radixlm.attention.torch_native import TorchNative
from radixlm.cache.pools.mha import MHAPool
from radixlm.protocol.plan import SAMPLE, StepPlan
from radixlm.runner.chunk_graphs import ON_DEVICE, Break, ChunkGraphs, per_token
from radixlm.runner.staging import views
from tests.helpers.forward import attention_facts
from tests.helpers.tiny import CARD, CPU
from tests.unit.runner.bench import GREEDY, PAGE, PAGES_PER_SLOT, Bench, NoPool, tiny_model


class Stored(DeviceAttention):
    """Torch's attention as a backend of a device: everything is stored before it attends."""

    def __init__(self, facts: AttentionFacts, pool: MHAPool) -> None:
        super().__init__(facts, pool)
        self._inner = TorchNative(facts, pool)

    @classmethod
    def why_not_here(cls, facts: AttentionFacts) -> list[str]:
        return []

    def prepare(self, batch: RowBatch) -> Any:
        return self._inner.prepare(batch)

    def attend(self, layer: AttentionLayer, q: Tensor, out: Tensor, batch: RowBatch, meta: Any) -> None:
        k, v = (side[layer.index].index_select(0, batch.kv_index) for side in (self.pool.keys, self.pool.values))
        out.copy_(self._inner.forward(layer, q, k, v, batch, meta))

    def plan_decode(self, batch: RowBatch) -> Any:
        raise NotImplementedError

    def plan_chunks(self, batch: RowBatch) -> Any:
        raise NotImplementedError

    def run_decode(self, *args: Any) -> None:
        raise NotImplementedError

    def run_chunks(self, *args: Any) -> None:
        raise NotImplementedError


def run(graphs: ChunkGraphs, bench: Bench, attention: Stored, plan: StepPlan, size: int) -> list[int]:
    """The step's greedy tokens, its pieces run one after the other on a rung of `size` tokens."""
    rows = bench.rows
    changes = rows.page_changes(plan.page_updates)
    if changes is not None:
        rows.apply_pages(torch.from_numpy(changes.index), torch.from_numpy(changes.pages))
    sent = per_token(plan, size, rows.padding_slot)
    for there, values in zip(views(graphs._block, sent), sent, strict=True):
        there.copy_(torch.from_numpy(values))
    tokens = int(plan.counts.sum())
    ids, slots, positions = (torch.from_numpy(values)[:tokens] for values in sent)
    assert ((ids == ON_DEVICE).sum(), len(ids)) == (plan.decode_rows, tokens)
    table = [torch.from_numpy(column) for column in (plan.slots, plan.starts, plan.counts)]
    batch = RowBatch(
        *table, positions, rows.kv_index(slots, positions, PAGE), rows.page_table, PAGE, plan.decode_rows,
        plan.slots, plan.starts, plan.counts,
    )  # fmt: skip
    meta = attention.prepare(batch)

    def attend(at: Break) -> None:
        attention.attend(at.layer, at.q[:tokens], at.out[:tokens], batch, meta)

    with torch.inference_mode():
        graphs._forward(size, graphs._breaking(size, attend), None)
        last = torch.from_numpy(np.cumsum(plan.counts, dtype=np.int64) - 1)[torch.from_numpy(plan.flags) & SAMPLE != 0]
        hidden = graphs._model.finish(graphs._delta[:tokens], graphs._residual[:tokens], last)
        chosen = graphs._model.logits(hidden).argmax(-1)
        rows.last_token[torch.from_numpy(plan.slots).long()] = chosen
    return chosen.tolist()


def test_padded_pieces_give_the_tokens_of_whole_steps() -> None:
    model = tiny_model()
    whole, pieces = Bench(model), Bench(model)
    pool = MHAPool(4 * PAGES_PER_SLOT, PAGE, CARD.num_layers, CARD.num_kv_heads, CARD.head_dim, torch.float32, CPU)
    for tensor in (*pool.keys, *pool.values):
        tensor.fill_(torch.nan)
    attention = Stored(attention_facts(CARD, torch.float32, PAGE), pool)
    graphs = ChunkGraphs(model, attention, pieces.rows, (8, 16), NoPool())  # type: ignore[arg-type]
    steps: list[tuple[int, list[tuple[int, list[int] | None]]]] = [
        (16, [(0, [5, 6, 7, 8, 9]), (2, [11, 3, 4])]),
        (8, [(0, None), (2, None), (1, [9, 9, 8, 1])]),
        (8, [(0, None), (1, None), (2, None)]),
        (16, [(1, None), (3, list(range(4, 19)))]),
    ]
    for slot in range(4):
        whole.start(slot, GREEDY)
    for size, rows in steps:
        want = whole.step(rows)
        plan = pieces.plan(rows)
        assert graphs.hold(plan)
        got = run(graphs, pieces, attention, plan, size)
        assert got == [want[slot] for slot in plan.slots.tolist()]
    assert not graphs.hold(pieces.plan([(0, list(range(4, 21)))]))


def test_padding_tokens_belong_to_the_padding_slot() -> None:
    plan = Bench(tiny_model()).plan([(2, None), (1, [7, 8])])
    ids, slots, positions = per_token(plan, 6, 4)
    assert ids.tolist() == [ON_DEVICE, 7, 8, 0, 0, 0]
    assert slots.tolist() == [2, 1, 1, 4, 4, 4]
    assert positions.tolist() == [0, 0, 1, 0, 0, 0]

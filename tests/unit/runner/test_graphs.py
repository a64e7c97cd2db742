"""What a decode graph's attention sees before the replay: the pages that came with the step, where it asks for them."""

from typing import Any

import numpy as np
import pytest
import torch

from radixlm.attention.base import RowBatch
from radixlm.attention.torch_native import TorchNative
from radixlm.cache.pools.mha import MHAPool
from radixlm.runner.graphs import DecodeGraphs, Rung, _views
from tests.helpers.forward import attention_facts
from tests.helpers.tiny import CARD, CPU
from tests.unit.runner.bench import GREEDY, PAGE, Bench, NoPool, tiny_model


class Replayed:
    """In a graph's place: does nothing."""

    def replay(self) -> None:
        pass


class Listing(TorchNative):
    """Keeps what the page table says of the step's rows when it is refreshed."""

    seen: torch.Tensor

    def refresh(self, meta: Any, batch: RowBatch) -> None:
        self.seen = batch.page_table.index_select(0, batch.slots).clone()


@pytest.mark.parametrize("reads", [True, False])
def test_pages_of_the_step_are_there_before_a_refresh_that_reads_them(reads: bool) -> None:
    bench = Bench(tiny_model())
    bench.start(1, GREEDY)
    bench.step([(1, [5, 6, 7, 8])])
    rows = bench.rows
    pool = MHAPool(8, PAGE, CARD.num_layers, CARD.num_kv_heads, CARD.head_dim, torch.float32, CPU)
    attention = Listing(attention_facts(CARD, torch.float32, PAGE), pool)
    attention.refresh_reads_pages = reads
    graphs = DecodeGraphs(tiny_model(), attention, rows, (1,), NoPool())  # type: ignore[arg-type]
    numbers, index, pages = _views(graphs._block, 1)
    numbers.copy_(torch.tensor([[1], [4], [1]]))
    index.fill_(rows.padding_slot * rows.page_table.shape[1])
    pages.zero_()
    index[0], pages[0] = rows.page_table.shape[1] + 1, 77
    rows.page_table[1, 1] = 0
    plan = bench.plan([(1, None)])
    batch = RowBatch(
        *(numbers[0], numbers[1], graphs._ones[:1], graphs._numbers[1, :1], graphs._kv_index[:1]),
        *(rows.page_table, PAGE, 1, *(np.zeros(1, np.int32) for _ in range(3))),
    )
    graphs._rungs[1] = Rung(batch, None, Replayed(), Replayed(), Replayed())  # type: ignore[arg-type]
    graphs.replay(plan, lambda: None)
    assert int(attention.seen[0, 1]) == (77 if reads else 0)

"""Recorded steps are the eager ones, to the bit, for any rows that fit."""

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

from radixlm.attention.base import ForwardContext, RowBatch
from radixlm.attention.native_cpu import NativeCPU
from radixlm.attention.torch_native import TorchNative
from radixlm.cache.pools.mha import MHAPool
from radixlm.config.card import ModelCard
from radixlm.kernels.native.library import library, why_not
from radixlm.loader.dummy import fill_dummy
from radixlm.models.decoder import Decoder
from radixlm.models.table import ARCHITECTURES
from radixlm.runner.rows import Rows
from radixlm.runner.short_steps import ShortSteps
from radixlm.runner.staging import Staging
from tests.helpers.forward import attention_facts
from tests.helpers.tiny import CARD, CPU

pytestmark = pytest.mark.skipif(library() is None, reason=str(why_not()))
LLAMA = msgspec.structs.replace(CARD, hidden_size=32, num_heads=4, num_kv_heads=2, head_dim=16, intermediate_size=40)
QWEN3 = msgspec.structs.replace(LLAMA, architecture="Qwen3ForCausalLM", qk_norm=True)
GEMMA2 = msgspec.structs.replace(
    LLAMA,
    architecture="Gemma2ForCausalLM",
    hidden_act="gelu_tanh",
    norms_per_layer=4,
    sliding_window=5,
    full_layers=(1,),
    attention_soft_cap=2.0,
)
PAGE, PAGES_PER_SLOT = 4, 12


def parts(card: ModelCard, dtype: torch.dtype, backend: type) -> tuple[Decoder, MHAPool, NativeCPU, Rows]:
    model = ARCHITECTURES.load(card.architecture)(card, dtype, CPU)
    fill_dummy(model.parameters(), 3)
    model.pack()
    pool = MHAPool(64, PAGE, card.num_layers, card.num_kv_heads, card.head_dim, dtype, CPU)
    for tensor in (*pool.keys, *pool.values):
        tensor.zero_()
    facts = attention_facts(card, dtype, PAGE)
    rows = Rows(4, PAGES_PER_SLOT, card.vocab_size, Staging(CPU))
    rows.page_table[:4] = torch.arange(1, 1 + 4 * PAGES_PER_SLOT, dtype=torch.int32).view(4, -1)
    return model, pool, backend(facts, pool), rows


def batch_of(rows: Rows, steps: list[tuple[int, int, int]]) -> RowBatch:
    """Rows (slot, start, count)."""
    slots, starts, counts = (np.array(column, np.int32) for column in zip(*steps, strict=True))
    positions = torch.tensor([p for _, start, count in steps for p in range(start, start + count)])
    token_slots = torch.tensor([slot for slot, _, count in steps for _ in range(count)])
    return RowBatch(
        slots=torch.from_numpy(slots),
        starts=torch.from_numpy(starts),
        counts=torch.from_numpy(counts),
        positions=positions,
        kv_index=rows.kv_index(token_slots, positions, PAGE),
        page_table=rows.page_table,
        page_size=PAGE,
        decode_rows=sum(count == 1 for _, _, count in steps),
        slots_host=slots,
        starts_host=starts,
        counts_host=counts,
    )


@torch.inference_mode()
@pytest.mark.parametrize("card", [LLAMA, QWEN3, GEMMA2], ids=["llama", "qwen3", "gemma2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equal_to_eager(card: ModelCard, dtype: torch.dtype) -> None:
    model, pool, attention, rows = parts(card, dtype, NativeCPU)
    short = ShortSteps.record(model, attention, rows, 12)
    assert short is not None
    kept: list[tuple[Tensor, Tensor]] = []
    draw = torch.Generator().manual_seed(1)
    # chunks, then chunks beside decodes, then decodes: one token, all that fit, and in between
    for steps in (
        [(0, 0, 5), (1, 0, 7)],
        [(0, 5, 1), (1, 7, 1), (2, 0, 9)],
        [(2, 9, 1)],
        [(0, 6, 1), (1, 8, 1), (2, 10, 1)],
    ):
        ids = torch.randint(card.vocab_size, (sum(count for _, _, count in steps),), generator=draw)
        batch = batch_of(rows, steps)
        eager = model.forward(ids, ForwardContext(batch, attention, attention.prepare(batch)))
        written = [keys.clone() for keys in pool.keys]
        recorded = short.forward(ids, batch, None)
        assert all(torch.equal(a, b) for a, b in zip(written, pool.keys, strict=True))
        kept.append((eager, recorded))
        for wanted in (torch.tensor([len(ids) - 1]), torch.arange(0, len(ids), 2), torch.empty(0, dtype=torch.int64)):
            context = ForwardContext(batch, attention, attention.prepare(batch), wanted=wanted)
            kept.append((eager[wanted], model.forward(ids, context)))
            kept.append((eager[wanted], short.forward(ids, batch, None, wanted)))
    assert all(torch.equal(eager, recorded) for eager, recorded in kept)  # also after later steps


def test_other_kernels_are_not_recorded() -> None:
    model, _, attention, rows = parts(LLAMA, torch.float32, TorchNative)
    assert ShortSteps.record(model, attention, rows, 4) is None

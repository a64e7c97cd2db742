"""The SDPA backend against attention written out in float64, over shuffled pages full of NaN where nobody wrote."""

import math

import pytest
import torch
from torch import Tensor

from radixlm.attention.base import AttentionFacts, AttentionLayer
from radixlm.attention.torch_native import TorchNative
from radixlm.cache.pools.mha import MHAPool
from tests.helpers.forward import make_batch, shuffled_page_table

CPU = torch.device("cpu")
SLOTS, CAPACITY = 6, 96
# (slot, start, count): decodes of very different contexts first, then a first chunk and chunks behind a prefix.
MIXED = [(3, 0, 1), (0, 90, 1), (5, 7, 1), (1, 49, 1), (2, 0, 9), (4, 17, 30)]
DECODES = [(0, 40, 1), (1, 40, 1), (2, 33, 1)]
LONE_DECODE = [(4, 20, 1)]
CHUNKS = [(1, 0, 17), (0, 31, 2)]


def written_out(
    q: Tensor, k: Tensor, v: Tensor, start: int, window: int | None, soft_cap: float | None, sinks: Tensor | None
) -> Tensor:
    """q: [count, heads, d] at positions start..; k, v: [context, kv_heads, d]. Returns float64 [count, heads * d]."""
    out = torch.zeros(q.shape, dtype=torch.float64)
    group = q.shape[1] // k.shape[1]
    for i in range(q.shape[0]):
        position = start + i
        first = 0 if window is None else max(0, position + 1 - window)
        for head in range(q.shape[1]):
            keys, values = (
                k[first : position + 1, head // group].double(),
                v[first : position + 1, head // group].double(),
            )
            scores = keys @ q[i, head].double() / math.sqrt(q.shape[2])
            if soft_cap is not None:
                scores = soft_cap * torch.tanh(scores / soft_cap)
            weights = scores.exp()
            total = weights.sum() + (0.0 if sinks is None else sinks[head].double().exp())
            out[i, head] = weights / total @ values
    return out.flatten(1)


def run(
    rows: list[tuple[int, int, int]],
    *,
    page_size: int = 16,
    window: int | None = None,
    heads: tuple[int, int] = (6, 2),
    head_dim: int = 64,
    dtype: torch.dtype = torch.float32,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
    some_full: bool = False,
) -> tuple[Tensor, Tensor]:
    """What the backend returns for `rows`, and what is right; with `some_full` in a layer without a window."""
    generator = torch.Generator().manual_seed(1)
    pages = CAPACITY // page_size
    pool = MHAPool(SLOTS * pages, page_size, 2, heads[1], head_dim, dtype, CPU)
    for tensor in (*pool.keys, *pool.values):
        tensor.fill_(torch.nan)
    table = shuffled_page_table(SLOTS, pages)
    facts = AttentionFacts("cpu", dtype, page_size, *heads, head_dim, window, some_full=some_full, soft_cap=soft_cap)
    backend = TorchNative(facts, pool)
    layer = AttentionLayer(1, head_dim**-0.5, None if some_full else window, sinks)
    queries, keys, values, want = [], [], [], []
    for slot, start, count in rows:
        q = torch.randn(count, heads[0], head_dim, generator=generator).to(dtype)
        k, v = torch.randn(2, start + count, heads[1], head_dim, generator=generator).to(dtype)
        if start:
            prefix = make_batch([(slot, 0, start)], table, page_size)
            pool.write(1, prefix.kv_index, k[:start], v[:start])
        queries.append(q)
        keys.append(k[start:])
        values.append(v[start:])
        want.append(written_out(q, k, v, start, layer.window, soft_cap, sinks))
    batch = make_batch(rows, table, page_size)
    meta = backend.prepare(batch)
    got = backend.forward(layer, torch.cat(queries), torch.cat(keys), torch.cat(values), batch, meta)
    return got, torch.cat(want)


@pytest.mark.parametrize("page_size", [1, 16, 32])
@pytest.mark.parametrize("window", [None, 12])
@pytest.mark.parametrize("rows", [MIXED, DECODES, LONE_DECODE, CHUNKS])
def test_rows(rows: list[tuple[int, int, int]], window: int | None, page_size: int) -> None:
    got, want = run(rows, page_size=page_size, window=window)
    assert got.dtype == torch.float32
    assert (got - want).abs().max() < 1e-5


@pytest.mark.parametrize("heads", [(4, 4), (8, 1)])
@pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
def test_head_shapes(heads: tuple[int, int], head_dim: int) -> None:
    got, want = run(MIXED, heads=heads, head_dim=head_dim)
    assert (got - want).abs().max() < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision(dtype: torch.dtype) -> None:
    got, want = run(MIXED, dtype=dtype)
    assert got.dtype == dtype
    assert (got - want).abs().max() < 4 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("soft_cap", "sink"), [(1.5, False), (None, True), (1.5, True)])
@pytest.mark.parametrize("rows", [MIXED, LONE_DECODE])
def test_soft_cap_and_sinks(
    rows: list[tuple[int, int, int]], soft_cap: float | None, sink: bool, dtype: torch.dtype
) -> None:
    sinks = torch.linspace(-2, 4, 6) if sink else None
    for window in (None, 12):
        got, want = run(rows, window=window, soft_cap=soft_cap, sinks=sinks, dtype=dtype)
        assert got.dtype == dtype
        assert (got - want).abs().max() < (1e-5 if dtype == torch.float32 else 4 * torch.finfo(dtype).eps)


def test_a_layer_without_the_window_that_others_have() -> None:
    got, want = run(MIXED, window=5, some_full=True)
    assert (got - want).abs().max() < 1e-5


def test_window_of_one_sees_only_itself() -> None:
    got, want = run(MIXED, window=1)
    assert (got - want).abs().max() < 1e-5


def test_decode_rows_are_grouped_by_length() -> None:
    """Padding never more than doubles a group's keys, and rows of one length share a group without a mask."""
    pool = MHAPool(SLOTS * 6, 16, 1, 2, 64, torch.float32, CPU)
    backend = TorchNative(AttentionFacts("cpu", torch.float32, 16, 6, 2, 64, None), pool)
    table = shuffled_page_table(SLOTS, 6)
    meta = backend.prepare(make_batch([(0, 90, 1), (1, 3, 1), (2, 50, 1), (3, 4, 1)], table, 16))
    assert [group.length_tokens for group in meta[None].groups] == [91, 5]
    assert [group.rows.tolist() for group in meta[None].groups] == [[0, 2], [1, 3]]
    alike = backend.prepare(make_batch([(0, 20, 1), (1, 20, 1)], table, 16))
    assert [(group.rows, group.mask) for group in alike[None].groups] == [(None, None)]


def test_reasons() -> None:
    assert TorchNative.why_not(AttentionFacts("cpu", torch.bfloat16, 16, 9, 3, 64, None)) == []
    assert len(TorchNative.why_not(AttentionFacts("cpu", torch.float64, 16, 9, 2, 64, None))) == 2

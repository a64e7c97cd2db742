"""The native attention kernel against dense float64 attention and torch's, and its independence of the batch."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from radixlm.attention.base import AttentionFacts, AttentionLayer, RowBatch
from radixlm.attention.native_cpu import NativeCPU
from radixlm.attention.torch_native import TorchNative
from radixlm.cache.pools.mha import MHAPool
from radixlm.kernels.native.build import built_library
from radixlm.kernels.native.library import Library, library, why_not

pytestmark = pytest.mark.skipif(library() is None, reason=str(why_not()))
SLOTS, SLOT_TOKENS = 8, 320
FORMATS = [
    (torch.float32, torch.float32, 2e-5),
    (torch.bfloat16, torch.bfloat16, 2e-2),
    (torch.bfloat16, torch.float32, 1e-2),
    (torch.float32, torch.bfloat16, 2e-2),
    (torch.float32, torch.float16, 2e-5),
    (torch.bfloat16, torch.float16, 1e-2),
]


@dataclass
class Case:
    """Rows of (start, count), with the keys and values of all their positions."""

    facts: AttentionFacts
    pool: MHAPool
    batch: RowBatch
    q: Tensor
    k: Tensor
    v: Tensor
    keys: list[Tensor]
    values: list[Tensor]
    sinks: Tensor | None = None

    @property
    def window(self) -> int | None:
        """That of the layer: none, where some have none."""
        return self.facts.windows[-1]

    def run(self, backend: NativeCPU | TorchNative) -> Tensor:
        meta = backend.prepare(self.batch)
        layer = AttentionLayer(1, self.facts.head_dim**-0.5, self.window, self.sinks)
        return backend.forward(layer, self.q, self.k, self.v, self.batch, meta)


def normal(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.from_numpy(rng.standard_normal(shape, dtype=np.float32))


def facts_of(dtype: torch.dtype, page_size: int, heads: int, kv_heads: int, head_dim: int, window: int | None):
    return AttentionFacts("cpu", dtype, page_size, heads, kv_heads, head_dim, window)


def make_case(facts: AttentionFacts, pool_dtype: torch.dtype, rows: list[tuple[int, int]], seed: int = 0) -> Case:
    """The pool is NaN wherever no key was written: at the null page, on others' pages, behind a row's end."""
    rng = np.random.default_rng(seed)
    size, kv_heads, head_dim = facts.page_size, facts.num_kv_heads, facts.head_dim
    slot_pages = -(-SLOT_TOKENS // size)
    pool = MHAPool(SLOTS * slot_pages + 3, size, 2, kv_heads, head_dim, pool_dtype, torch.device("cpu"))
    for tensor in pool.keys + pool.values:
        tensor.fill_(float("nan"))
    table = (rng.permutation(SLOTS * slot_pages) + 1).reshape(SLOTS, slot_pages).astype(np.int32)
    slots = rng.permutation(SLOTS)[: len(rows)].astype(np.int32)
    starts, counts = (np.array(column, np.int32) for column in zip(*rows, strict=True))
    keys, values, places = [], [], []
    for slot, start, count in zip(slots, starts, counts, strict=True):
        positions = np.arange(start + count)
        place = torch.from_numpy(table[slot][positions // size].astype(np.int64) * size + positions % size)
        key, value = (normal(rng, len(positions), kv_heads, head_dim).to(facts.dtype) for _ in range(2))
        pool.write(1, place[:start], key[:start].to(pool_dtype), value[:start].to(pool_dtype))
        keys.append(key)
        values.append(value)
        places.append(place[start:])
    return Case(
        facts,
        pool,
        RowBatch(
            slots=torch.from_numpy(slots),
            starts=torch.from_numpy(starts),
            counts=torch.from_numpy(counts),
            positions=torch.cat([torch.arange(s, s + c) for s, c in rows]),
            kv_index=torch.cat(places),
            page_table=torch.from_numpy(table),
            page_size=size,
            decode_rows=next((i for i, count in enumerate(counts) if count > 1), len(counts)),
            slots_host=slots,
            starts_host=starts,
            counts_host=counts,
        ),
        normal(rng, int(counts.sum()), facts.num_heads, head_dim).to(facts.dtype),
        torch.cat([key[start:] for key, start in zip(keys, starts, strict=True)]),
        torch.cat([value[start:] for value, start in zip(values, starts, strict=True)]),
        keys,
        values,
    )


def dense(case: Case) -> Tensor:
    """Attention with every score written out, in float64, over keys as the pool keeps them."""
    kept = case.pool.keys[0].dtype
    facts = case.facts
    group = facts.num_heads // facts.num_kv_heads
    outputs, first = [], 0
    for row, count in enumerate(case.batch.counts_host):
        start = int(case.batch.starts_host[row])
        key, value = (x[row].to(kept).double().repeat_interleave(group, 1) for x in (case.keys, case.values))
        query = case.q[first : first + count].double()
        at, seen = torch.arange(start, start + count)[:, None], torch.arange(len(key))[None, :]
        hidden = seen > at
        if case.window is not None:
            hidden |= seen <= at - case.window
        scores = torch.einsum("qhd,khd->hqk", query, key) * facts.head_dim**-0.5
        if facts.soft_cap is not None:
            scores = facts.soft_cap * torch.tanh(scores / facts.soft_cap)
        scores = scores.masked_fill(hidden, float("-inf"))
        if case.sinks is not None:
            scores = torch.cat((scores, case.sinks.double()[:, None, None].expand(-1, count, 1)), -1)
        weights = scores.softmax(-1)[..., : len(key)]
        outputs.append(torch.einsum("hqk,khd->qhd", weights, value).flatten(1))
        first += count
    return torch.cat(outputs)


def random_rows(rng: np.random.Generator) -> list[tuple[int, int]]:
    decode = [(int(rng.integers(0, SLOT_TOKENS)), 1) for _ in range(rng.integers(0, 4))]
    chunks = []
    for _ in range(rng.integers(1 if not decode else 0, 4)):
        start = int(rng.choice([0, rng.integers(0, SLOT_TOKENS - 2)]))
        chunks.append((start, int(rng.integers(2, SLOT_TOKENS - start + 1))))
    return decode + chunks


@pytest.mark.parametrize(("dtype", "pool_dtype", "tolerance"), FORMATS)
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_equals_dense_attention(dtype: torch.dtype, pool_dtype: torch.dtype, tolerance: float, head_dim: int) -> None:
    for seed, (heads, kv_heads) in enumerate([(9, 3), (4, 4), (8, 1)]):
        rng = np.random.default_rng(seed + head_dim)
        window = [None, 1, 33][rng.integers(3)]
        facts = facts_of(dtype, [1, 7, 16][seed], heads, kv_heads, head_dim, window)
        case = make_case(facts, pool_dtype, random_rows(rng), seed)
        y = case.run(NativeCPU(facts, case.pool))
        assert y.dtype is dtype
        torch.testing.assert_close(y.double(), dense(case), rtol=0, atol=tolerance)


@pytest.mark.parametrize(("dtype", "pool_dtype", "tolerance"), FORMATS[:3])
@pytest.mark.parametrize(("soft_cap", "sink"), [(0.7, False), (None, True), (50.0, True)])
def test_soft_cap_and_sinks(
    dtype: torch.dtype, pool_dtype: torch.dtype, tolerance: float, soft_cap: float | None, sink: bool
) -> None:
    for seed, (heads, kv_heads) in enumerate([(9, 3), (4, 4), (8, 1)]):
        rng = np.random.default_rng(seed)
        facts = facts_of(dtype, [1, 7, 16][seed], heads, kv_heads, 64, [None, 1, 33][seed])
        facts = replace(facts, soft_cap=soft_cap, sinks=sink)
        case = make_case(facts, pool_dtype, [(0, 1), *random_rows(rng)], seed)
        case.q *= 4
        case.sinks = torch.linspace(-30, 6, heads) if sink else None
        y = case.run(NativeCPU(facts, case.pool))
        torch.testing.assert_close(y.double(), dense(case), rtol=0, atol=tolerance)


def test_scores_far_beyond_the_cap() -> None:
    facts = replace(facts_of(torch.float32, 16, 2, 1, 64, None), soft_cap=5.0)
    case = make_case(facts, torch.float32, [(200, 1), (0, 100)])
    case.q *= 1e4
    torch.testing.assert_close(case.run(NativeCPU(facts, case.pool)).double(), dense(case), rtol=0, atol=2e-4)


def test_a_layer_without_the_window_that_others_have() -> None:
    facts = replace(facts_of(torch.float32, 16, 9, 3, 64, 20), some_full=True)
    case = make_case(facts, torch.float32, [(150, 1), (0, 60)])
    torch.testing.assert_close(case.run(NativeCPU(facts, case.pool)).double(), dense(case), rtol=0, atol=2e-5)


@pytest.mark.parametrize("threads", [1, 2])
def test_equals_torch_on_random_mixed_batches(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for seed in range(20):
            rng = np.random.default_rng(seed)
            window = None if rng.random() < 0.5 else int(rng.integers(1, 200))
            facts = facts_of(torch.float32, int(rng.integers(1, 40)), 6, 2, 64, window)
            rows = random_rows(rng)
            case, same = (make_case(facts, torch.float32, rows, seed) for _ in range(2))
            y = case.run(NativeCPU(facts, case.pool))
            torch.testing.assert_close(y, same.run(TorchNative(facts, same.pool)), rtol=0, atol=2e-5)
            for mine, theirs in zip(case.pool.keys + case.pool.values, same.pool.keys + same.pool.values, strict=True):
                assert torch.equal(mine.nan_to_num(7.0), theirs.nan_to_num(7.0))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("dtype", "pool_dtype"), [(f[0], f[1]) for f in FORMATS[:3]])
@pytest.mark.parametrize("window", [None, 70])
def test_a_token_is_the_same_decoded_in_a_chunk_or_after_a_prefix(
    dtype: torch.dtype, pool_dtype: torch.dtype, window: int | None
) -> None:
    facts = facts_of(dtype, 16, 9, 3, 64, window)
    length = 300
    whole = make_case(facts, pool_dtype, [(0, length)])
    expected = whole.run(NativeCPU(facts, whole.pool))
    for rows in ([(299, 1)], [(131, 1)], [(64, 1)], [(5, 60)], [(137, 163)], [(20, 1), (250, 50)]):
        for start, count in rows:
            part = make_case(facts, pool_dtype, rows, seed=1)
            row = rows.index((start, count))
            first = sum(c for _, c in rows[:row])
            place = part.batch.page_table[part.batch.slots[row]][torch.arange(start + count) // 16] * 16
            place = place.long() + torch.arange(start + count) % 16
            part.pool.write(
                1, place, whole.keys[0][: start + count].to(pool_dtype), whole.values[0][: start + count].to(pool_dtype)
            )
            part.q[first : first + count] = whole.q[start : start + count]
            part.k[first : first + count] = whole.keys[0][start : start + count]
            part.v[first : first + count] = whole.values[0][start : start + count]
            y = part.run(NativeCPU(facts, part.pool))[first : first + count]
            assert torch.equal(y, expected[start : start + count]), (start, count)


def test_heads_taken_from_a_fused_projection() -> None:
    facts = facts_of(torch.bfloat16, 16, 9, 3, 64, None)
    case = make_case(facts, torch.bfloat16, [(40, 1), (0, 30)])
    expected = case.run(NativeCPU(facts, case.pool))
    fused = torch.cat((case.q, case.k, case.v), 1)
    case.q, case.k, case.v = fused[:, :9], fused[:, 9:12], fused[:, 12:]
    assert torch.equal(case.run(NativeCPU(facts, case.pool)), expected)
    case.q = case.q.transpose(0, 1).contiguous().transpose(0, 1)
    assert torch.equal(case.run(NativeCPU(facts, case.pool)), expected)


def test_large_scores_and_equal_scores() -> None:
    facts = facts_of(torch.float32, 16, 2, 1, 64, None)
    case = make_case(facts, torch.float32, [(200, 1), (0, 100)])
    case.q *= 300
    torch.testing.assert_close(case.run(NativeCPU(facts, case.pool)).double(), dense(case), rtol=0, atol=2e-3)
    case.q.zero_()
    torch.testing.assert_close(case.run(NativeCPU(facts, case.pool)).double(), dense(case), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"device": "cuda:0"}, "runs on the CPU, not cuda:0"),
        ({"dtype": torch.float16}, "dtype torch.float16"),
        ({"head_dim": 72}, "head_dim 72"),
        ({"head_dim": 512}, "head_dim 512"),
        ({"num_kv_heads": 4}, "9 query heads cannot share 4"),
    ],
)
def test_why_not(changes: dict[str, object], reason: str) -> None:
    good: dict[str, object] = {
        "device": "cpu",
        "dtype": torch.float32,
        "page_size": 16,
        "num_heads": 9,
        "num_kv_heads": 3,
        "head_dim": 64,
        "sliding_window": None,
    }
    assert NativeCPU.why_not(AttentionFacts(**good)) == []  # type: ignore[arg-type]
    reasons = NativeCPU.why_not(AttentionFacts(**{**good, **changes}))  # type: ignore[arg-type]
    assert len(reasons) == 1
    assert reason in reasons[0]


@pytest.mark.slow
@pytest.mark.parametrize(("target", "needs"), [("haswell", "avx2"), ("skylake-avx512", "avx512_bw")])
@pytest.mark.parametrize(("dtype", "pool_dtype", "tolerance"), FORMATS)
def test_other_instruction_sets(
    target: str, needs: str, dtype: torch.dtype, pool_dtype: torch.dtype, tolerance: float
) -> None:
    if not torch.cpu.get_capabilities().get(needs):
        pytest.skip(f"this CPU has no {needs}")
    kernels = Library(str(built_library(target)))
    for head_dim in (64, 80, 128):
        facts = facts_of(dtype, 16, 9, 3, head_dim, 50)
        case = make_case(facts, pool_dtype, [(300, 1), (7, 1), (0, 40), (100, 150)], head_dim)
        y = case.run(NativeCPU(facts, case.pool, kernels))
        torch.testing.assert_close(y.double(), dense(case), rtol=0, atol=tolerance)


def alone(case: Case, row: int) -> Case:
    """The same row in a step of its own."""
    batch, token = case.batch, int(case.batch.counts_host[:row].sum())
    one, its = slice(row, row + 1), slice(token, token + int(case.batch.counts_host[row]))
    arrays = ("slots", "starts", "counts", "slots_host", "starts_host", "counts_host")
    changes = {name: getattr(batch, name)[one] for name in arrays}
    tokens = {"positions": batch.positions[its], "kv_index": batch.kv_index[its]}
    return replace(case, batch=replace(batch, **changes, **tokens), q=case.q[its], k=case.k[its], v=case.v[its])


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(9, 3, 64), (4, 1, 48)])
@pytest.mark.parametrize("page_size", [1, 16, 20])
def test_a_shared_prefix_changes_no_bit(page_size: int, heads: int, kv_heads: int, head_dim: int) -> None:
    facts = facts_of(torch.bfloat16, page_size, heads, kv_heads, head_dim, None)
    case = make_case(
        facts, torch.bfloat16, [(200, 1), (131, 1), (260, 1), (64, 1), (150, 1), (300, 1), (190, 1), (70, 9)]
    )
    table, slots = case.batch.page_table, case.batch.slots_host.tolist()
    for others, keys in (((1, 2, 5), 130), ((4,), 100), ((7,), 60)):
        for other in others:
            table[slots[other], : keys // page_size] = table[slots[0], : keys // page_size]
    backend = NativeCPU(facts, case.pool)
    order, pieces = backend._pieces(
        case.batch.slots_host, case.batch.starts_host, case.batch.counts_host, table.numpy(), page_size, None
    )
    assert sorted(order.tolist()) == list(range(8)) and (pieces[:, 6] >= 64).any()
    together = case.run(backend)
    for row, part in enumerate(together.split(case.batch.counts_host.tolist())):
        assert torch.equal(part, alone(case, row).run(backend)), row

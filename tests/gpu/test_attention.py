"""The device's attention backends against SDPA in float64 over the same rows: eager, projected, and in a graph."""

import dataclasses
import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from radixlm.attention.base import AttentionBackend, AttentionFacts, AttentionLayer, HostPages, RowBatch
from radixlm.attention.mixed import Mixed
from radixlm.attention.table import DECODE_BACKENDS, PREFILL_BACKENDS
from radixlm.attention.torch_native import TorchNative
from radixlm.cache.pools.mha import MHAPool
from radixlm.kernels.rotary import HeadNorms
from tests.helpers.device import CUDA, DEVICE, needs_cuda, needs_kernels
from tests.helpers.forward import make_batch, shuffled_page_table

pytestmark = needs_kernels
SLOTS, CAPACITY = 7, 640
# (slot, start, count): decodes of very different contexts, then a first chunk, chunks behind a prefix, a lone token.
MIXED = [(3, 0, 1), (0, 600, 1), (5, 7, 1), (1, 49, 1), (2, 0, 90), (4, 170, 300), (6, 255, 1)]
DECODES = [(0, 500, 1), (1, 3, 1), (2, 130, 1)]
CHUNKS = [(1, 0, 17), (0, 310, 200)]
BOUND = {torch.float32: 4e-6, torch.bfloat16: 1.2e-2, torch.float16: 2e-3}
FAST = torch.bfloat16 if CUDA else torch.float16


def installed(name: str, module: str) -> Any:
    """The backend as a parameter, skipped where its package is not there."""
    missing = not CUDA or importlib.util.find_spec(module) is None
    return pytest.param(name, marks=pytest.mark.skipif(missing, reason=f"{module} or CUDA is missing"))


flashinfer = installed("flashinfer", "flashinfer")
mixed = installed("triton+flashinfer", "flashinfer")
fa4 = installed("triton+fa4", "quack")


def backend_of(name: str) -> Callable[[AttentionFacts, MHAPool], AttentionBackend]:
    """What makes a backend, or "decode+chunks"."""
    decode, _, chunks = name.partition("+")
    if not chunks:
        return DECODE_BACKENDS.load(decode)
    return partial(Mixed, decode=DECODE_BACKENDS.load(decode), chunks=PREFILL_BACKENDS.load(chunks))  # type: ignore[arg-type]


class Case:
    """One backend and the oracle, each over a pool of its own with the same random prefixes."""

    def __init__(
        self,
        backend: str,
        rows: list[tuple[int, int, int]],
        *,
        page_size: int = 1,
        window: int | None = None,
        heads: tuple[int, int] = (8, 2),
        head_dim: int = 128,
        dtype: torch.dtype = FAST,
        some_full: bool = False,
        soft_cap: float | None = None,
        sinks: bool = False,
    ) -> None:
        generator = torch.Generator().manual_seed(len(rows) + page_size)
        pages = CAPACITY // page_size
        self.table = shuffled_page_table(SLOTS, pages).to(DEVICE)
        self.table = torch.cat((self.table, torch.zeros_like(self.table[:1])))  # the slot of padded rows
        self.page_size, self.dtype, self.heads = page_size, dtype, heads
        self.scale, self.window = head_dim**-0.5, None if some_full else window
        self.sinks = torch.linspace(-3, 5, heads[0], device=DEVICE) if sinks else None
        self.extras = {"some_full": some_full, "soft_cap": soft_cap, "sinks": sinks}
        self.backend = self._make(backend_of(backend), dtype, head_dim, window, DEVICE)
        self.oracle = self._make(TorchNative, torch.float64, head_dim, window, torch.device("cpu"))
        self.rows = rows
        tokens = sum(count for _, _, count in rows)
        self.qkv = torch.randn(tokens, heads[0] + 2 * heads[1], head_dim, generator=generator).to(dtype)
        for slot, start, _ in rows:
            if start:
                k, v = torch.randn(2, start, heads[1], head_dim, generator=generator).to(dtype)
                index = self.batch([(slot, 0, start)]).kv_index
                self.backend.pool.write(0, index, k.to(DEVICE), v.to(DEVICE))
                self.oracle.pool.write(0, index.cpu(), k.double(), v.double())

    def _make(
        self,
        kind: Callable[[AttentionFacts, MHAPool], AttentionBackend],
        dtype: torch.dtype,
        head_dim: int,
        window: int | None,
        device: torch.device,
    ) -> AttentionBackend:
        pages = SLOTS * (CAPACITY // self.page_size)
        pool = MHAPool(pages, self.page_size, 1, self.heads[1], head_dim, dtype, device)
        for tensor in (*pool.keys, *pool.values):
            tensor.fill_(torch.nan)
            tensor[: self.page_size] = 0.0  # the null page, which padded rows read
        shape = (self.page_size, *self.heads, head_dim, window)
        return kind(AttentionFacts(device.type, dtype, *shape, **self.extras), pool)  # type: ignore[arg-type]

    @property
    def layer(self) -> AttentionLayer:
        return AttentionLayer(0, self.scale, self.window, self.sinks)

    @property
    def host_layer(self) -> AttentionLayer:
        return AttentionLayer(0, self.scale, self.window, None if self.sinks is None else self.sinks.cpu())

    def batch(self, rows: list[tuple[int, int, int]]) -> RowBatch:
        return make_batch(rows, self.table, self.page_size)

    def split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k = self.heads[0], self.heads[0] + self.heads[1]
        return qkv[:, :q], qkv[:, q:k], qkv[:, k:]

    def want(self) -> Tensor:
        batch = make_batch(self.rows, self.table.cpu(), self.page_size)
        meta = self.oracle.prepare(batch)
        return self.oracle.forward(self.host_layer, *self.split(self.qkv.double()), batch, meta)

    def close(self, got: Tensor, want: Tensor) -> None:
        assert got.dtype == self.dtype and torch.isfinite(got).all()
        error = (got.double().cpu() - want).abs().max() / want.abs().max()
        assert error < BOUND[self.dtype], float(error)

    def check(self) -> None:
        batch = self.batch(self.rows)
        meta = self.backend.prepare(batch)
        self.close(self.backend.forward(self.layer, *self.split(self.qkv.to(DEVICE)), batch, meta), self.want())


@pytest.mark.parametrize("rows", [MIXED, DECODES, CHUNKS], ids=["mixed", "decodes", "chunks"])
@pytest.mark.parametrize("page_size", [1, 16, 20])
@pytest.mark.parametrize("backend", ["triton", "torch_native", flashinfer, mixed, fa4])
def test_rows(backend: str, rows: list[tuple[int, int, int]], page_size: int) -> None:
    Case(backend, rows, page_size=page_size).check()


@pytest.mark.parametrize("window", [1, 100])
@pytest.mark.parametrize("backend", ["triton", fa4])
def test_sliding_window(backend: str, window: int) -> None:
    Case(backend, MIXED, page_size=16, window=window, head_dim=64).check()


@pytest.mark.parametrize("rows", [MIXED, DECODES, CHUNKS], ids=["mixed", "decodes", "chunks"])
@pytest.mark.parametrize(("window", "some_full"), [(None, False), (100, False), (100, True)])
@pytest.mark.parametrize(("soft_cap", "sinks"), [(2.0, False), (None, True), (None, False), (2.0, True)])
@pytest.mark.parametrize("backend", ["triton", "torch_native"])
def test_soft_cap_sinks_and_windows_of_some_layers(
    backend: str,
    soft_cap: float | None,
    sinks: bool,
    window: int | None,
    some_full: bool,
    rows: list[tuple[int, int, int]],
) -> None:
    extras: dict[str, Any] = {"soft_cap": soft_cap, "sinks": sinks, "some_full": some_full}
    Case(backend, rows, page_size=16, window=window, head_dim=64, **extras).check()


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("window", [None, 100])
def test_rows_that_decode_after_the_same_keys(
    page_size: int, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These are read once, in layers without a window; the chunk beside the rows shares nothing."""
    monkeypatch.setattr("radixlm.attention.triton_paged.SHARED_BYTES", 1)
    rows = [(3, 0, 1), (0, 600, 1), (5, 130, 1), (1, 200, 1), (2, 0, 90)]
    case = Case("triton", rows, page_size=page_size, window=window, some_full=window is not None, head_dim=64)
    for slot in (5, 1):
        case.table[slot, : 128 // page_size] = case.table[0, : 128 // page_size]
    pages = HostPages(case.table.cpu().numpy(), np.zeros(len(case.table), np.int64))
    batch = dataclasses.replace(case.batch(rows), pages_host=pages)
    meta = case.backend.prepare(batch)
    assert meta.decode.shared.own.tolist() == [0, 128, 128, 128]
    case.close(case.backend.forward(case.layer, *case.split(case.qkv.to(DEVICE)), batch, meta), case.want())


@pytest.mark.parametrize("page_size", [1, 20])
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("backend", [mixed, fa4])
def test_copied_keys(backend: str, page_size: int, scale: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks beside decode rows whose keys are copied from the pages first, as it pays for long ones."""
    monkeypatch.setattr("radixlm.attention.gather.QUERY_HEADS_PER_KEY", 0)
    case = Case(backend, MIXED, page_size=page_size)
    case.scale = case.scale if scale is None else scale
    case.check()


@pytest.mark.parametrize("backend", [fa4])
def test_pages_as_large_as_a_tile(backend: str) -> None:
    """What an unfilled page holds beside the keys is never read."""
    Case(backend, MIXED, page_size=128).check()


@pytest.mark.parametrize(("heads", "head_dim"), [((9, 3), 64), ((4, 4), 80), ((6, 1), 256), ((14, 2), 96)])
def test_triton_head_shapes_in_float32(heads: tuple[int, int], head_dim: int) -> None:
    Case("triton", MIXED, heads=heads, head_dim=head_dim, dtype=torch.float32).check()


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("backend", ["triton", flashinfer, fa4])
def test_from_the_projection(backend: str, norm: bool) -> None:
    """The one launch that normalises, rotates and stores leads to what the separate references lead to."""
    case = Case(backend, MIXED)
    dim = case.qkv.shape[2]
    norms = HeadNorms(*torch.rand(2, dim).add(0.5).to(case.dtype).to(DEVICE), 1e-6) if norm else None
    wide = norms and HeadNorms(norms.query.double().cpu(), norms.key.double().cpu(), 1e-6)
    batch = case.batch(case.rows)
    angles = batch.positions.cpu()[:, None, None] / 1e4 ** (torch.arange(dim // 2) / (dim // 2))
    cos, sin = torch.cat([angles.cos()] * 2, -1).float(), torch.cat((-angles.sin(), angles.sin()), -1).float()
    meta = case.backend.prepare(batch)
    got = case.backend.forward_projected(
        case.layer, case.qkv.to(DEVICE), cos.to(DEVICE), sin.to(DEVICE), norms, batch, meta
    )
    host = make_batch(case.rows, case.table.cpu(), case.page_size)
    meta = case.oracle.prepare(host)
    want = case.oracle.forward_projected(
        case.host_layer, case.qkv.double(), cos.double(), sin.double(), wide, host, meta
    )
    # Rotated keys and queries are rounded before they meet, which the oracle's are not.
    error = (got.double().cpu() - want).abs().max() / want.abs().max()
    assert error < 2 * BOUND[case.dtype], float(error)


@needs_cuda
@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize(
    ("backend", "extras"),
    [
        ("triton", {}),
        ("triton", {"soft_cap": 2.0, "sinks": True, "window": 100, "some_full": True}),
        pytest.param(*flashinfer.values, {}, marks=flashinfer.marks),
    ],
)
def test_captured_decode(backend: str, extras: dict[str, Any], page_size: int) -> None:
    """A graph captured for more rows than come, replayed over steps of different rows; padding leaves no trace."""
    size = 8
    case = Case(backend, DECODES, page_size=page_size, **extras)
    heads, kv_heads = case.heads
    integers = torch.zeros(3, size, dtype=torch.int32, device=DEVICE)
    integers[0], integers[2] = SLOTS, 1
    index = torch.zeros(size, dtype=torch.int64, device=DEVICE)
    qkv = torch.zeros(size, heads + 2 * kv_heads, 128, dtype=case.dtype, device=DEVICE)

    def static(rows: list[tuple[int, int, int]]) -> RowBatch:
        real = case.batch(rows)
        integers[:, : len(rows)] = torch.stack((real.slots, real.starts, real.counts))
        integers[0, len(rows) :], integers[1, len(rows) :] = SLOTS, 0
        index.zero_()
        index[: len(rows)] = real.kv_index
        host = np.array(rows, np.int32).T
        return RowBatch(*integers, index, index, case.table, page_size, size, *host)

    padded = RowBatch(*integers, index, index, case.table, page_size, size, *integers.cpu().numpy())
    meta = case.backend.capture(padded)
    case.backend.forward(case.layer, *case.split(qkv), padded, meta)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = case.backend.forward(case.layer, *case.split(qkv), padded, meta)
    written = case.backend.pool.keys[0].isfinite().all(-1).all(-1)
    for step in range(3):
        case.rows = [(slot, start + step, 1) for slot, start, _ in DECODES]
        case.qkv = torch.randn(len(DECODES), heads + 2 * kv_heads, 128).to(case.dtype)
        batch = static(case.rows)
        qkv[: len(DECODES)] = case.qkv.to(DEVICE)
        case.backend.refresh(meta, batch)
        out.fill_(torch.nan)
        graph.replay()
        case.close(out[: len(DECODES)], case.want())
        written[index] = True
    assert torch.equal(case.backend.pool.keys[0].isfinite().all(-1).all(-1), written)


def test_reasons() -> None:
    facts = AttentionFacts("cpu", torch.float32, 1, 8, 2, 128, None)
    for name in ("triton", "flashinfer", "fa4"):
        assert PREFILL_BACKENDS.load(name).why_not(facts) == ["runs on CUDA, not cpu"]
    if CUDA:
        odd = AttentionFacts("cuda", torch.float64, 1, 8, 3, 300, None)
        triton, flashinfer, fa4 = (PREFILL_BACKENDS.load(name) for name in ("triton", "flashinfer", "fa4"))
        assert len(triton.why_not(odd)) == 3
        assert triton.why_not(AttentionFacts("cuda", torch.float32, 3, 9, 3, 96, 7)) == []
        assert triton.why_not(AttentionFacts("cuda", torch.float32, 3, 9, 3, 8, 7)) != []
        assert len(flashinfer.why_not(odd)) >= 3 and len(fa4.why_not(odd)) >= 3

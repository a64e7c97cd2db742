"""Each Triton kernel against its torch reference or a float64 one, on random shapes, into poisoned memory."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from radixlm.kernels.rotary import HeadNorms, rotate_heads
from radixlm.kernels.sampling import NOT_FINITE, apply_penalties_reference, exponential_noise, sample_rows_reference
from radixlm.protocol import plan
from tests.helpers.device import CUDA, DEVICE, needs_kernels

pytestmark = needs_kernels
# The interpreter cuts bfloat16 off where the device rounds.
DTYPES = [torch.float32, torch.bfloat16, torch.float16] if CUDA else [torch.float32, torch.float16]
# Largest error, relative to the largest value, of arithmetic in float32 that is rounded once or twice to the dtype.
BOUND = {torch.float32: 2e-6, torch.bfloat16: 1.2e-2, torch.float16: 1.5e-3}


def close(got: Tensor, want: Tensor, dtype: torch.dtype) -> None:
    assert got.dtype == dtype and got.shape == want.shape
    assert torch.isfinite(got).all()
    error = (got.double() - want.double()).abs().max() / want.double().abs().max().clamp(min=1e-6)
    assert error < BOUND[dtype], float(error)


def poison() -> None:
    """Leave NaN where the next allocations will land, so that what a kernel does not write is seen."""
    if CUDA:
        for size in (1 << 12, 1 << 16, 1 << 20, 1 << 24):
            torch.full((size,), torch.nan, device=DEVICE)


def rand(*shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Tensor:
    return (torch.randn(*shape, device=DEVICE) * scale).to(dtype)


def norm64(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x = x.double()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.double()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "n"), [(1, 4096), (7, 576), (33, 64), (3, 5120), (2, 1)])
def test_rms_norm(tokens: int, n: int, dtype: torch.dtype) -> None:
    from radixlm.kernels.triton import elementwise

    weight = rand(n, dtype=dtype)
    wide = rand(tokens, n + 24, dtype=dtype, scale=3)
    poison()
    close(elementwise.rms_norm(wide[:, :n], weight, 1e-5), norm64(wide[:, :n], weight, 1e-5), dtype)
    heads = rand(tokens, 3, n, dtype=dtype)
    close(elementwise.rms_norm(heads[:, 1:], weight, 1e-6), norm64(heads[:, 1:], weight, 1e-6), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "n"), [(1, 4096), (9, 576), (40, 1024), (2, 7168)])
def test_add_rms_norm(tokens: int, n: int, dtype: torch.dtype) -> None:
    from radixlm.kernels.triton import elementwise

    x, residual, weight = rand(tokens, n, dtype=dtype), rand(tokens, n, dtype=dtype), rand(n, dtype=dtype)
    total = residual + x
    poison()
    got = elementwise.add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(residual, total)
    close(got, norm64(total, weight, 1e-5), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "n"), [(1, 12288), (17, 1536), (5, 100)])
def test_gate_mul(tokens: int, n: int, dtype: torch.dtype) -> None:
    from radixlm.kernels.triton import elementwise

    gate_up = rand(tokens, 2 * n, dtype=dtype, scale=4)
    gate, up = gate_up.double().chunk(2, -1)
    poison()
    close(elementwise.gate_mul(gate_up), gate * torch.sigmoid(gate) * up, dtype)
    close(elementwise.gate_mul(gate_up, "gelu_tanh"), F.gelu(gate, approximate="tanh") * up, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(32, 8, 128), (9, 3, 64), (5, 5, 80), (8, 1, 256), (14, 2, 96)]
)
@pytest.mark.parametrize("norm", [True, False])
def test_rotate_and_store(heads: int, kv_heads: int, head_dim: int, norm: bool, dtype: torch.dtype) -> None:
    from radixlm.kernels.triton import rotary

    tokens = 11
    qkv = rand(tokens, (heads + 2 * kv_heads) * head_dim + 16, dtype=dtype)[:, :-16].unflatten(1, (-1, head_dim))
    angles = rand(tokens, 1, head_dim // 2, scale=50)
    cos, sin = torch.cat([angles.cos()] * 2, -1), torch.cat((-angles.sin(), angles.sin()), -1)
    norms = HeadNorms(rand(head_dim, dtype=dtype), rand(head_dim, dtype=dtype), 1e-6) if norm else None
    wide = HeadNorms(norms.query.double(), norms.key.double(), 1e-6) if norms else None
    q, k, v = rotate_heads(qkv.double().cpu(), heads, kv_heads, cos.double().cpu(), sin.double().cpu(), _cpu(wide))
    keys, values = rand(2, 64, kv_heads, head_dim, dtype=dtype).unbind(0)
    before = keys.clone(), values.clone()
    index = torch.randperm(64, device=DEVICE)[:tokens]
    poison()
    query, key, eps = norms or (None, None, 0.0)
    got = rotary.rotate_and_store(qkv, cos, sin, query, key, eps, keys, values, index)
    close(got.cpu(), q, dtype)
    close(keys[index].cpu(), k, dtype)
    assert torch.equal(values[index].cpu(), v.to(dtype))
    others = torch.ones(64, dtype=torch.bool, device=DEVICE)
    others[index] = False
    assert torch.equal(keys[others], before[0][others]) and torch.equal(values[others], before[1][others])


def _cpu(norms: HeadNorms | None) -> HeadNorms | None:
    return norms and HeadNorms(norms.query.cpu(), norms.key.cpu(), norms.eps)


class Sampling:
    """Arguments of sample_rows for rows of every kind."""

    def __init__(self, rows: int, vocab: int, logits: Tensor, kind: str) -> None:
        ones = torch.ones(rows, device=DEVICE)
        self.temperature = ones * (0.3 + torch.rand(rows, device=DEVICE))
        self.top_k = torch.full((rows,), vocab, device=DEVICE)
        self.top_p, self.min_p = ones.clone(), ones * 0
        self.greedy = torch.zeros(rows, dtype=torch.bool, device=DEVICE)
        if kind == "greedy":
            self.greedy[:] = True
        if kind in ("top_k", "all", "mixed"):
            self.top_k = torch.randint(1, min(vocab, 60), (rows,), device=DEVICE)
        if kind in ("top_p", "all", "mixed"):
            self.top_p = 0.05 + 0.9 * torch.rand(rows, device=DEVICE)
        if kind in ("min_p", "all", "mixed"):
            self.min_p = 0.3 * torch.rand(rows, device=DEVICE)
        if kind == "mixed":
            kinds = torch.randint(0, 5, (rows,), device=DEVICE)
            self.greedy = kinds == 0
            self.top_k = torch.where(kinds <= 2, self.top_k, vocab)
            self.top_p = torch.where(kinds == 3, self.top_p, 1.0)
            self.min_p = torch.where(kinds >= 4, self.min_p, 0.0)
        self.seeds = torch.randint(-(2**62), 2**62, (rows,), device=DEVICE)
        self.positions = torch.randint(0, 5000, (rows,), device=DEVICE)
        self.logits = logits

    def run(self) -> tuple[Tensor, Tensor]:
        """The kernel's tokens and the reference's."""
        from radixlm.kernels.triton import sampling

        arguments = (self.temperature, self.top_k, self.top_p, self.min_p, self.seeds, self.positions, self.greedy)
        poison()
        got = sampling.sample_rows(self.logits, *arguments, NOT_FINITE)
        return got.cpu(), sample_rows_reference(self.logits, *arguments).cpu()

    def rank(self, row: int, token: int) -> float:
        """ln(p / e) of a token of a row, up to a constant, in float64."""
        e = exponential_noise(
            self.seeds[row : row + 1], self.positions[row : row + 1], torch.tensor([token], device=DEVICE)
        )
        return float(self.logits[row, token].double() / self.temperature[row].double() - e[0, 0].double().log())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["greedy", "free", "top_k", "top_p", "min_p", "all", "mixed"])
@pytest.mark.parametrize(("spread", "vocab"), [(1.0, 50257), (4.0, 151936), (0.01, 1000), (6.0, 37)])
def test_sample_rows(spread: float, vocab: int, kind: str, dtype: torch.dtype) -> None:
    rows = 64 if CUDA else 4
    vocab = vocab if CUDA else min(vocab, 9001)
    if dtype is torch.bfloat16 and spread < 0.1:
        pytest.skip("so few distinct values that the reference itself decides by chance between equals")
    case = Sampling(rows, vocab, rand(rows, vocab, dtype=dtype, scale=spread), kind)
    got, want = case.run()
    assert ((got >= 0) & (got < vocab)).all()
    for row in (got != want).nonzero().flatten().tolist():
        # Not equal: only where two are as good as each other, or (in bfloat16) tied at the edge of a filter.
        a, b = case.rank(row, int(got[row])), case.rank(row, int(want[row]))
        tied = dtype is torch.bfloat16 and kind not in ("greedy", "free")
        assert abs(a - b) < 1e-4 or (tied and a > b), (row, a, b)
    assert (got != want).sum() <= (rows if dtype is torch.bfloat16 else 1 + rows // 32)
    if kind == "greedy":
        assert torch.equal(got, want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [33, 5000, 151_936])
def test_log_sums(vocab: int, dtype: torch.dtype) -> None:
    from radixlm.kernels.triton.logprobs import log_sums

    vocab = vocab if CUDA else min(vocab, 9000)
    logits = rand(5, vocab, scale=6).cpu().to(dtype)
    logits[0, vocab // 3 :] = -torch.inf
    logits[1, : vocab - 1] = -torch.inf
    logits[2] += 300
    logits[3, vocab // 2] = torch.inf
    want = logits.double().logsumexp(-1)
    got = log_sums(logits.to(DEVICE)).cpu()
    torch.testing.assert_close(got.double(), want, rtol=2e-7, atol=2e-6)
    empty = torch.full((1, vocab), -torch.inf, dtype=dtype, device=DEVICE)
    assert log_sums(empty).item() == -torch.inf and log_sums(empty[:0]).shape == (0,)


@pytest.mark.parametrize("vocab", [33, 5000, 151_936])
def test_penalties(vocab: int) -> None:
    from radixlm.kernels.triton.penalties import apply_penalties

    vocab = vocab if CUDA else min(vocab, 5000)
    logits = rand(6, vocab, scale=4).cpu()
    counts = torch.randint(-3, 3, (4, vocab)).clamp(min=0).to(torch.int32)
    seen = (counts > 0) | (torch.randn(4, vocab) > 1)
    factors = torch.tensor([[1.3, 0.0, 0.0], [1.0, 0.7, -0.2], [0.8, -0.1, 1.5], [1.0, 0.0, 0.0]])
    arguments = (torch.tensor([4, 0, 3]), torch.tensor([2, 0, 1]), seen, counts, factors)
    want = logits.clone()
    apply_penalties_reference(want, *arguments)
    got = logits.clone().to(DEVICE)
    apply_penalties(got, *(tensor.to(DEVICE) for tensor in arguments))
    torch.testing.assert_close(got.cpu(), want, rtol=1e-6, atol=1e-6)
    assert torch.equal(got.cpu()[[1, 2, 5]], logits[[1, 2, 5]]) and not torch.equal(want[3], logits[3])


def test_sampling_ties_infinities_and_nan() -> None:
    vocab = 5000
    logits = rand(6, vocab)
    logits[0, [7, 4000, 4500]] = 50.0  # the first of equals
    logits[1, 3000] = torch.nan
    logits[2, 10] = torch.inf
    logits[3] = -torch.inf
    logits[4] = -torch.inf
    logits[4, 4321] = -3.0
    logits[5, 1:] = -torch.inf
    case = Sampling(6, vocab, logits, "free")
    case.greedy[0] = True
    got, want = case.run()
    assert got.tolist() == [7, NOT_FINITE, NOT_FINITE, 0, 4321, 0] == want.tolist()
    case.greedy[:] = True
    got, want = case.run()
    assert got.tolist() == [7, NOT_FINITE, NOT_FINITE, 0, 4321, 0] == want.tolist()
    assert NOT_FINITE == plan.NOT_FINITE


def test_a_filter_keeps_all_of_equals() -> None:
    logits = torch.full((200 if CUDA else 8, 3000), -5.0, device=DEVICE)
    logits[:, ::500] = 1.0  # six alike
    case = Sampling(len(logits), 3000, logits, "free")
    case.top_k[:] = 3
    got, _ = case.run()
    assert set(got.tolist()) <= set(range(0, 3000, 500)) and len(set(got.tolist())) > 2


def test_a_sampled_row_does_not_depend_on_its_batch() -> None:
    case = Sampling(40 if CUDA else 5, 9000, rand(40 if CUDA else 5, 9000, scale=2), "mixed")
    many, _ = case.run()
    for row in range(5):
        one = Sampling(1, 9000, case.logits[row : row + 1], "free")
        for name in ("temperature", "top_k", "top_p", "min_p", "seeds", "positions", "greedy"):
            setattr(one, name, getattr(case, name)[row : row + 1])
        assert int(one.run()[0][0]) == int(many[row])


class Paged:
    """Random rows over shuffled pages; unwritten tokens of the pool are NaN."""

    def __init__(
        self,
        lengths: list[int],
        counts: list[int],
        heads: int,
        kv_heads: int,
        head_dim: int,
        page_size: int,
        dtype: torch.dtype,
    ) -> None:
        rows = len(lengths)
        pages = -(-max(lengths) // page_size)
        order = torch.randperm(rows * pages) + 1
        self.table = order.reshape(rows, pages).to(torch.int32)
        self.k = [torch.randn(n, kv_heads, head_dim).to(dtype) for n in lengths]
        self.v = [torch.randn(n, kv_heads, head_dim).to(dtype) for n in lengths]
        shape = ((rows * pages + 1) * page_size, kv_heads, head_dim)
        self.keys, self.values = torch.full(shape, torch.nan, dtype=dtype), torch.full(shape, torch.nan, dtype=dtype)
        for row, length in enumerate(lengths):
            position = torch.arange(length)
            index = self.table[row].long()[position // page_size] * page_size + position % page_size
            self.keys[index], self.values[index] = self.k[row], self.v[row]
        self.keys, self.values, self.table = self.keys.to(DEVICE), self.values.to(DEVICE), self.table.to(DEVICE)
        self.lengths, self.counts, self.page_size, self.dtype = lengths, counts, page_size, dtype
        self.q = torch.randn(sum(counts), heads, head_dim).to(dtype)
        self.slots = torch.arange(rows, dtype=torch.int32)
        self.starts = torch.tensor(lengths, dtype=torch.int32) - torch.tensor(counts, dtype=torch.int32)
        self.scale = head_dim**-0.5

    def want(self, window: int | None, soft_cap: float | None, sinks: Tensor | None) -> Tensor:
        out, first = [], 0
        for k, v, length, count in zip(self.k, self.v, self.lengths, self.counts, strict=True):
            q = self.q[first : first + count].double()
            first += count
            group = q.shape[1] // k.shape[1]
            k, v = k.double().repeat_interleave(group, 1), v.double().repeat_interleave(group, 1)
            score = torch.einsum("qhd,khd->hqk", q, k) * self.scale
            if soft_cap is not None:
                score = soft_cap * torch.tanh(score / soft_cap)
            query, key = torch.arange(length - count, length)[:, None], torch.arange(length)
            seen = key <= query
            if window is not None:
                seen &= key > query - window
            score = score.masked_fill(~seen, -math.inf)
            if sinks is not None:
                score = torch.cat((score, sinks.double().cpu()[:, None, None].expand(-1, count, 1)), -1)
            weight = torch.softmax(score, -1)[..., :length]
            out.append(torch.einsum("hqk,khd->qhd", weight, v).flatten(1))
        return torch.cat(out)

    def decode(
        self,
        window: int | None = None,
        soft_cap: float | None = None,
        sinks: Tensor | None = None,
        min_piece: int = 128,
    ) -> Tensor:
        from radixlm.kernels.triton import decode

        q, slots, starts = self.q.to(DEVICE), self.slots.to(DEVICE), self.starts.to(DEVICE)
        scratch = decode.decode_scratch(len(slots), q.shape[1], self.keys.shape[1], q.shape[2], DEVICE)
        scratch.partial.fill_(torch.nan)
        scratch.lse.fill_(torch.nan)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(decode, "MIN_PIECE_TOKENS", min_piece)
            decode.cut_rows(scratch, slots, starts, window)
        for _ in range(2):  # the second launch finds the scratch as the first one left it
            poison()
            out = torch.full((q.shape[0], q.shape[1] * q.shape[2]), torch.nan, dtype=self.dtype, device=DEVICE)
            decode.paged_decode(
                q, self.keys, self.values, self.table, self.page_size, self.scale, scratch, out,
                soft_cap=soft_cap, sinks=sinks,
            )  # fmt: skip
        assert not scratch.arrived.any()
        return out.cpu()

    def prefill(self, window: int | None = None, soft_cap: float | None = None, sinks: Tensor | None = None) -> Tensor:
        from radixlm.kernels.triton import prefill

        q = torch.cat((torch.zeros_like(self.q[:1]), self.q)).to(DEVICE)
        group = q.shape[1] // self.keys.shape[1]
        counts = torch.tensor(self.counts, dtype=torch.int32).numpy()
        cut = prefill.prefill_tiles(
            self.slots.numpy(), self.starts.numpy(), counts, 1, group, q.shape[2], self.dtype, DEVICE
        )
        tiles = torch.cat((torch.from_numpy(cut), torch.zeros(3, 4, dtype=torch.int32))).to(DEVICE)
        out = torch.full((q.shape[0], q.shape[1] * q.shape[2]), torch.nan, dtype=self.dtype, device=DEVICE)
        prefill.paged_prefill(
            q, self.keys, self.values, self.table, self.page_size, self.scale, tiles, out,
            window=window, soft_cap=soft_cap, sinks=sinks,
        )  # fmt: skip
        assert out[0].isnan().all()
        return out[1:].cpu()


SHAPES = [(8, 2, 128), (9, 3, 64), (4, 4, 80), (6, 1, 256), (14, 2, 96)]
EXTRAS = [
    (None, None, False),
    (40, None, False),
    (None, 3.0, False),
    (None, None, True),
    (70, 5.0, True),
    (1, None, False),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("min_piece", [16, 10_000])
def test_shared_keys(
    shape: tuple[int, int, int], dtype: torch.dtype, page_size: int, min_piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two groups, of more rows than a tile holds and of two, and a row by itself; cut rows and whole ones."""
    from radixlm.kernels.triton import decode, shared

    large = 70 if CUDA else 18
    lengths = [200, 131, 65] + [129 + row % 40 for row in range(large)]
    case = Paged(lengths, [1] * len(lengths), *shape, page_size=page_size, dtype=dtype)
    groups = [(list(range(3, len(lengths))), 128), ([0, 2], 64)]
    for rows, count in groups:
        for row in rows[1:]:
            case.table[row, : count // page_size] = case.table[rows[0], : count // page_size]
            case.k[row][:count], case.v[row][:count] = case.k[rows[0]][:count], case.v[rows[0]][:count]
    monkeypatch.setattr(shared, "MIN_PIECE_TOKENS", 64)
    monkeypatch.setattr(shared, "PIECES_PER_MULTIPROCESSOR", 1000)
    monkeypatch.setattr(decode, "MIN_PIECE_TOKENS", min_piece)
    q, slots, starts = case.q.to(DEVICE), case.slots.to(DEVICE), case.starts.to(DEVICE)
    heads, kv_heads, dim = shape
    keys = shared.shared_keys(groups, 64, case.slots.numpy(), heads, kv_heads, dim, dtype, DEVICE)
    assert len(keys.pieces) > len(keys.tiles) >= (3 if CUDA else 2)
    for soft_cap, sinks in ((None, None), (3.0, rand(heads, scale=2))):
        scratch = decode.decode_scratch(len(slots), heads, kv_heads, dim, DEVICE)
        for tensor in (scratch.partial, scratch.lse, keys.partial, keys.lse):
            tensor.fill_(torch.nan)
        decode.cut_rows(scratch, slots, starts, None, keys)
        poison()
        out = torch.full((len(lengths), heads * dim), torch.nan, dtype=dtype, device=DEVICE)
        paged = (case.keys, case.values, case.table, page_size, case.scale)
        shared.attend_shared(q, *paged, keys, soft_cap=soft_cap)
        decode.paged_decode(q, *paged, scratch, out, soft_cap=soft_cap, sinks=sinks, shared=keys)
        close(out.cpu(), case.want(None, soft_cap, sinks), dtype)
        assert not scratch.arrived.any()


@pytest.mark.skipif(not CUDA, reason="the interpreter compiles nothing")
def test_shared_keys_need_one_kernel_whatever_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one would be compiled in mid-service, where a start tries the first."""
    import triton

    from radixlm.kernels.triton import decode, shared

    compiled: list[str] = []
    monkeypatch.setattr(triton.knobs.runtime, "jit_post_compile_hook", lambda **facts: compiled.append(facts["repr"]))
    heads, kv_heads, dim = 28, 4, 64
    counts = []
    for rows in (40, 41, 42, 43, 60, 150, 165, 300):
        case = Paged([130 + row % 9 for row in range(rows)], [1] * rows, heads, kv_heads, dim, 1, torch.bfloat16)
        starts, slots = case.starts.to(DEVICE), case.slots.to(DEVICE)
        groups = [(list(range(rows - 3)), 128), ([rows - 3, rows - 1], 64)]
        keys = shared.shared_keys(groups, 64, case.slots.numpy(), heads, kv_heads, dim, torch.bfloat16, DEVICE)
        scratch = decode.decode_scratch(rows, heads, kv_heads, dim, DEVICE)
        decode.cut_rows(scratch, slots, starts, None, keys)
        out = torch.empty(rows, heads * dim, dtype=torch.bfloat16, device=DEVICE)
        paged = (case.keys, case.values, case.table, 1, case.scale)
        shared.attend_shared(case.q.to(DEVICE), *paged, keys)
        decode.paged_decode(case.q.to(DEVICE), *paged, scratch, out, shared=keys)
        counts.append(len(compiled))
    assert counts[0] >= 3 and set(counts) == {3}, compiled


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("min_piece", [32, 10_000])
def test_paged_decode_shapes(shape: tuple[int, int, int], min_piece: int, dtype: torch.dtype) -> None:
    lengths = [1, 64, 65, 700, 333] if CUDA else [1, 65, 300]
    case = Paged(lengths, [1] * len(lengths), *shape, page_size=1, dtype=dtype)
    close(case.decode(min_piece=min_piece), case.want(None, None, None), dtype)


@pytest.mark.parametrize(("window", "soft_cap", "sink"), EXTRAS)
@pytest.mark.parametrize("min_piece", [50, 10_000])
@pytest.mark.parametrize("page_size", [1, 5, 16])
def test_paged_decode_extras(
    window: int | None, soft_cap: float | None, sink: bool, min_piece: int, page_size: int
) -> None:
    lengths = [400, 1, 39, 41, 129]
    case = Paged(lengths, [1] * len(lengths), 6, 2, 64, page_size=page_size, dtype=torch.float32)
    sinks = rand(6, scale=2) if sink else None
    close(case.decode(window, soft_cap, sinks, min_piece), case.want(window, soft_cap, sinks), torch.float32)


@pytest.mark.parametrize("window", [None, 300])
@pytest.mark.parametrize("rows", [1, 7, 1024, 3000])
def test_rows_are_cut_evenly(rows: int, window: int | None) -> None:
    """The pieces of each row are neighbours, cover what it sees, and none is much longer than its share of all."""
    from radixlm.kernels.triton import decode
    from radixlm.kernels.triton.device import device_of

    kv_heads = 2
    starts = (torch.rand(rows, device=DEVICE) ** 8 * 40_000).to(torch.int32)
    slots = torch.randperm(rows, device=DEVICE).to(torch.int32)
    scratch = decode.decode_scratch(rows, 4, kv_heads, 64, DEVICE)
    scratch.pieces.fill_(7)
    decode.cut_rows(scratch, slots, starts, window)
    ends = starts.cpu().long() + 1
    begins = (ends - window).clamp(min=0) if window else torch.zeros_like(ends)
    share = max(128, -(-int((ends - begins).sum()) // (device_of(DEVICE).multiprocessors // kv_heads)))
    counts = (-(-(4 * (ends - begins) - share) // (4 * share))).clamp(min=1)
    row, slot, begin, stop, first, count = scratch.pieces.cpu().long()[:, :6].unbind(1)
    used = int(counts.sum())
    assert used <= len(row) and (row[used:] == -1).all()
    want = torch.repeat_interleave(torch.arange(rows), counts)
    assert torch.equal(row[:used], want) and torch.equal(slot[:used], slots.cpu().long()[want])
    assert torch.equal(count[:used], counts[want]) and torch.equal(first[:used], (counts.cumsum(0) - counts)[want])
    length = (stop - begin)[:used]
    assert (length > 0).all() and int(length.max()) <= 1.25 * share
    assert torch.equal(begin[first[:used]], begins[want]) and torch.equal(stop[(first + count - 1)[:used]], ends[want])
    same = row[1:used] == row[: used - 1]
    assert torch.equal(begin[1:used][same], stop[: used - 1][same])


def test_paged_decode_of_a_long_row_among_short_ones() -> None:
    lengths = [9000, 3, 80] if CUDA else [1200, 3, 80]
    case = Paged(lengths, [1] * 3, 32, 8, 128, page_size=1, dtype=DTYPES[1])
    close(case.decode(), case.want(None, None, None), DTYPES[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_paged_prefill_shapes(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    lengths, counts = ([257, 700, 64, 5], [257, 130, 1, 5]) if CUDA else ([70, 150, 5], [70, 33, 1])
    case = Paged(lengths, counts, *shape, page_size=1, dtype=dtype)
    close(case.prefill(), case.want(None, None, None), dtype)


@pytest.mark.parametrize(("window", "soft_cap", "sink"), EXTRAS)
@pytest.mark.parametrize("page_size", [1, 5, 16])
def test_paged_prefill_extras(window: int | None, soft_cap: float | None, sink: bool, page_size: int) -> None:
    case = Paged([201, 90, 64], [101, 90, 1], 6, 2, 64, page_size=page_size, dtype=torch.float32)
    sinks = rand(6, scale=2) if sink else None
    close(case.prefill(window, soft_cap, sinks), case.want(window, soft_cap, sinks), torch.float32)


def test_flatten_pages() -> None:
    from radixlm.kernels.triton.pages import flatten_pages

    table = torch.arange(4 * 3000, dtype=torch.int32, device=DEVICE).reshape(4, 3000)
    slots, counts = torch.tensor([2, 0, 3], dtype=torch.int32, device=DEVICE), [2500, 1, 7]
    ends = torch.tensor([0, 2500, 2501, 2508], dtype=torch.int32, device=DEVICE)
    out = torch.full((2600,), -1, dtype=torch.int32, device=DEVICE)
    flatten_pages(table, slots, ends, 2500, out)
    want = torch.cat([table[s, :n] for s, n in zip(slots.tolist(), counts, strict=True)])
    assert torch.equal(out[:2508], want) and (out[2508:] == -1).all()


# Tensor cores and sums of two halves of the weights: the interpreter does both in float32.
@pytest.mark.parametrize("dtype", DTYPES[1:])
@pytest.mark.parametrize(("n", "k"), [(4096, 1024), (1024, 2050), (300, 12_288)] if CUDA else [(24, 40), (6, 4100)])
def test_linear_maps_of_few_rows(n: int, k: int, dtype: torch.dtype) -> None:
    from radixlm.kernels.triton import gemv

    weight, bias = rand(n, k, dtype=dtype, scale=k**-0.5), rand(n, dtype=dtype)
    for rows in (1, 2, 17, gemv.MOST_ROWS):
        x = rand(rows, k, dtype=dtype)
        want = x.double() @ weight.double().T + bias.double()
        gate, up = want.chunk(2, -1)
        poison()
        close(gemv.gated_linear(x, weight, bias), gate * torch.sigmoid(gate) * up, dtype)
        close(gemv.gated_linear(x, weight, bias, "gelu_tanh"), F.gelu(gate, approximate="tanh") * up, dtype)
        poison()
        close(gemv.linear(x, weight, bias), want, dtype)
        close(gemv.linear(x, weight, None), want - bias.double(), dtype)

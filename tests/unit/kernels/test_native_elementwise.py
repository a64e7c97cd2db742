"""The native normalisation, rotation and gating against the same formulas in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from radixlm.kernels.native import elementwise
from radixlm.kernels.native.library import library, why_not

pytestmark = pytest.mark.skipif(library() is None, reason=str(why_not()))
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# one rounding to the output's dtype, plus float32 arithmetic before it
TOLERANCE = {torch.float32: 4e-6, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def check(y: Tensor | None, exact: Tensor, dtype: torch.dtype) -> None:
    assert y is not None
    assert y.dtype is dtype
    assert y.shape == exact.shape
    torch.testing.assert_close(y.double(), exact, rtol=TOLERANCE[dtype] * 1.01, atol=TOLERANCE[dtype] / 64)


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x.double() / (x.double().square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "n"), [(1, 576), (3, 64), (5, 50), (2, 7), (300, 576), (0, 64)])
def test_norms(dtype: torch.dtype, tokens: int, n: int) -> None:
    x, weight = random(tokens, n, dtype=dtype), random(n, dtype=dtype, seed=1)
    check(elementwise.rms_norm(x, weight, 1e-5), normed(x, weight, 1e-5), dtype)
    residual = random(tokens, n, dtype=dtype, seed=2)
    total = residual + x
    y = elementwise.add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(residual, total)
    check(y, normed(total, weight, 1e-5), dtype)


def test_norm_of_heads_and_of_strided_rows() -> None:
    x, weight = random(4, 3, 64, dtype=torch.bfloat16), random(64, dtype=torch.bfloat16, seed=1)
    check(elementwise.rms_norm(x, weight, 1e-6), normed(x, weight, 1e-6), torch.bfloat16)
    rows = random(5, 200, dtype=torch.bfloat16)[:, 10:74]
    check(elementwise.rms_norm(rows, weight, 1e-6), normed(rows, weight, 1e-6), torch.bfloat16)
    heads = random(5, 7, 64, dtype=torch.bfloat16)[:, 2:5]
    check(elementwise.rms_norm(heads, weight, 1e-6), normed(heads, weight, 1e-6), torch.bfloat16)
    assert elementwise.rms_norm(heads[:, ::2], weight, 1e-6) is None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "heads", "head_dim"), [(1, 12, 64), (7, 3, 80), (4, 2, 8), (200, 12, 64)])
def test_rotary(dtype: torch.dtype, tokens: int, heads: int, head_dim: int) -> None:
    fused = random(tokens, heads + 3, head_dim, dtype=dtype)
    x = fused[:, :heads]
    kept = fused.clone()
    angles = torch.rand(tokens, 1, head_dim // 2) * 100
    cos = torch.cat((angles.cos(), angles.cos()), -1)
    sin = torch.cat((-angles.sin(), angles.sin()), -1)
    exact = x.double() * cos.double() + x.double().roll(head_dim // 2, -1) * sin.double()
    check(elementwise.rotary(x, cos, sin), exact, dtype)
    assert torch.equal(fused, kept)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "n"), [(1, 1536), (3, 40), (2, 5), (64, 1536)])
def test_gate_mul(dtype: torch.dtype, tokens: int, n: int) -> None:
    gate_up = random(tokens, 2 * n, dtype=dtype) * 4
    gate_up[0, 0], gate_up[0, 1] = 100.0, -100.0
    gate, up = gate_up.double().chunk(2, -1)
    check(elementwise.gate_mul(gate_up), gate * torch.sigmoid(gate) * up, dtype)
    check(elementwise.gate_mul(gate_up, "gelu_tanh"), F.gelu(gate, approximate="tanh") * up, dtype)


def test_nan_is_not_hidden() -> None:
    x = torch.full((2, 64), float("nan"))
    weight = torch.ones(64)
    norm, gated = elementwise.rms_norm(x, weight, 1e-5), elementwise.gate_mul(x)
    assert norm is not None and gated is not None
    assert norm.isnan().all() and gated.isnan().all()


def test_what_it_cannot_do_is_left_to_torch() -> None:
    x = torch.randn(4, 64)
    ones = torch.ones(64)
    assert elementwise.rms_norm(x.double(), ones.double(), 1e-5) is None
    assert elementwise.rms_norm(x, ones.bfloat16(), 1e-5) is None
    assert elementwise.rms_norm(x.T, torch.ones(4), 1e-5) is None
    assert elementwise.add_rms_norm(x, torch.randn(8, 64)[::2], ones, 1e-5) is None
    assert elementwise.rotary(x.view(4, 1, 64), ones.expand(4, 1, 64), ones.expand(4, 1, 64)) is None
    assert elementwise.gate_mul(x[:, :32]) is None

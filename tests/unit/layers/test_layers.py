"""Blocks against the formulas they stand for, and what they declare of their parameters."""

import math

import pytest
import torch

from radixlm.config.card import RopeScaling
from radixlm.kernels.activation import gate_mul
from radixlm.kernels.norm import add_rms_norm, rms_norm
from radixlm.kernels.rotary import rotary
from radixlm.layers.embedding import Embedding, Head
from radixlm.layers.linear import Linear
from radixlm.layers.mlp import GatedMLP
from radixlm.layers.norm import OffsetRMSNorm, RMSNorm
from radixlm.layers.parameter import Placement, Shard
from radixlm.layers.rotary import Rotary

CPU = torch.device("cpu")
PLACE = Placement(torch.float32, CPU)


def test_rms_norm_and_the_residual_sum() -> None:
    x, residual, weight = torch.randn(5, 32), torch.randn(5, 32), torch.randn(32)
    total = residual + x
    want = total / (total.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight
    before = x.clone()
    assert torch.allclose(add_rms_norm(x, residual, weight, 1e-5), want, atol=1e-5)
    assert torch.equal(residual, total)
    assert torch.equal(x, before)
    assert torch.allclose(rms_norm(total, weight, 1e-5), want, atol=1e-5)


def test_gate_mul() -> None:
    gate, up = torch.randn(2, 3, 10)
    assert torch.allclose(gate_mul(torch.cat((gate, up), 1)), gate * torch.sigmoid(gate) * up, atol=1e-6)
    want = 0.5 * gate * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (gate + 0.044715 * gate**3))) * up
    assert torch.allclose(gate_mul(torch.cat((gate, up), 1), "gelu_tanh"), want, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotary_turns_pairs_as_complex_numbers(dtype: torch.dtype) -> None:
    head_dim, theta = 16, 10000.0
    positions = torch.tensor([0, 1, 5, 4000])
    x = torch.randn(4, 3, head_dim).to(dtype)
    cos, sin = Rotary(head_dim, theta, None, CPU).tables(positions)
    got = rotary(x, cos, sin)
    assert got.dtype == dtype
    half = head_dim // 2
    pairs = torch.complex(x[..., :half].double(), x[..., half:].double())
    angles = positions[:, None, None].double() * theta ** (-torch.arange(half).double() / half)
    turned = pairs * torch.polar(torch.ones_like(angles), angles)
    want = torch.cat((turned.real, turned.imag), -1)
    assert torch.allclose(got.double(), want, atol=2e-3 if dtype == torch.float32 else 3e-2)
    assert torch.equal(got[0], x[0])


def angles(scaling: RopeScaling | None, head_dim: int = 32, theta: float = 1e5) -> torch.Tensor:
    """Angles at position 1, from which cosines and sines are made: float32 [head_dim / 2]."""
    cos, sin = Rotary(head_dim, theta, scaling, CPU).tables(torch.tensor([1]))
    half = head_dim // 2
    return torch.atan2(sin[0, 0, half:], cos[0, 0, :half])


def test_linear_scaling_divides() -> None:
    assert torch.allclose(angles(RopeScaling(kind="linear", factor=4.0)), angles(None) / 4, rtol=1e-5)


def test_llama3_scaling_keeps_fast_and_stretches_slow() -> None:
    scaling = RopeScaling(kind="llama3", factor=8.0, original_max_position=8192)
    plain, scaled = angles(None), angles(scaling)
    turns = 8192 * plain / (2 * math.pi)
    assert torch.allclose(scaled[turns > 4], plain[turns > 4])
    assert torch.allclose(scaled[turns < 1], plain[turns < 1] / 8, rtol=1e-5)
    between = (turns > 1) & (turns < 4)
    assert between.any()
    assert ((scaled < plain) & (scaled > plain / 8))[between].all()


def test_yarn_grows_the_amplitude() -> None:
    cos, sin = Rotary(32, 1e6, RopeScaling(kind="yarn", factor=4.0, original_max_position=64), CPU).tables(
        torch.tensor([3])
    )
    assert torch.allclose(cos**2 + sin**2, torch.tensor((0.1 * math.log(4) + 1) ** 2))


def test_linear_fuses_parts_and_says_how_each_is_shared() -> None:
    layer = Linear(4, (("q_proj", 6), ("k_proj", 2)), True, Shard.OUTPUT, PLACE)
    declared = {parameter.name: parameter for parameter in layer.parameters("attn.")}
    assert list(declared) == ["attn.q_proj.weight", "attn.q_proj.bias", "attn.k_proj.weight", "attn.k_proj.bias"]
    assert {parameter.shard for parameter in declared.values()} == {Shard.OUTPUT}
    parts = [torch.randn(size, 5) for size in (6, 2)]
    for part, name in zip(parts, ("q_proj", "k_proj"), strict=True):
        declared[f"attn.{name}.weight"].data.copy_(part[:, :4])
        declared[f"attn.{name}.bias"].data.copy_(part[:, 4])
    x = torch.randn(3, 4)
    want = torch.cat([x @ part[:, :4].T + part[:, 4] for part in parts], 1)
    assert torch.allclose(layer(x), want, atol=1e-5)
    layer.pack()
    assert torch.allclose(layer(x), want, atol=1e-5)


def test_bias_is_whole_where_the_input_is_divided() -> None:
    layer = Linear(4, (("o_proj", 6),), True, Shard.INPUT, PLACE)
    assert [parameter.shard for parameter in layer.parameters("")] == [Shard.INPUT, Shard.NONE]


def test_head_shares_the_embedding_or_has_its_own() -> None:
    embedding = Embedding("embed_tokens", 11, 4, PLACE)
    embedding.weight.copy_(torch.randn(11, 4))
    hidden = torch.randn(2, 4)
    tied = Head("lm_head", 11, 4, embedding, PLACE)
    assert list(tied.parameters("")) == []
    assert torch.allclose(tied(hidden), hidden @ embedding.weight.T, atol=1e-6)
    assert [parameter.name for parameter in Head("lm_head", 11, 4, None, PLACE).parameters("")] == ["lm_head.weight"]
    assert torch.equal(embedding(torch.tensor([3, 3])), embedding.weight[[3, 3]])


def test_head_answers_in_float32() -> None:
    place = Placement(torch.bfloat16, CPU)
    embedding = Embedding("embed_tokens", 11, 4, place)
    embedding.weight.fill_(0.5)
    assert Head("lm_head", 11, 4, embedding, place)(torch.ones(1, 4, dtype=torch.bfloat16)).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_norm_whose_weight_is_stored_less_one(dtype: torch.dtype) -> None:
    norm = OffsetRMSNorm("norm", 64, 1e-6, Placement(dtype, CPU))
    stored = torch.randn(64).mul_(1e-3).to(dtype)
    next(norm.parameters("")).data.copy_(stored)
    norm.pack()
    x = torch.randn(5, 64).to(dtype)
    want = rms_norm(x.double(), torch.ones(64).double(), 1e-6) * (1 + stored.double())
    assert torch.equal(norm(x), want.to(dtype)) or dtype == torch.float32
    assert torch.allclose(norm(x).double(), want, atol=1e-6 if dtype == torch.float32 else 2e-2)
    assert torch.equal(norm.add(torch.zeros_like(x), x.clone()), norm(x))
    assert torch.allclose(next(norm.parameters("")).data, stored.float(), atol=1e-7)


def test_mlp_and_norm_layers() -> None:
    mlp, norm = GatedMLP(4, 6, False, "silu", PLACE), RMSNorm("norm", 4, 1e-6, PLACE)
    weights = {}
    for parameter in (*mlp.parameters("mlp."), *norm.parameters("")):
        parameter.data.copy_(torch.randn(parameter.data.shape))
        weights[parameter.name] = parameter
    x = torch.randn(3, 4)
    gate, up, down = (weights[f"mlp.{name}_proj.weight"].data for name in ("gate", "up", "down"))
    assert torch.allclose(mlp(x), (torch.nn.functional.silu(x @ gate.T) * (x @ up.T)) @ down.T, atol=1e-4)
    assert weights["norm.weight"].centre == 1.0
    assert torch.allclose(norm(x), rms_norm(x, weights["norm.weight"].data, 1e-6))

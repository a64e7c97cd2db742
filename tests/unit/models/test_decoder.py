"""Taking weights by name: what is missing, extra or of another shape is named; and every architecture has its row."""

import msgspec
import pytest
import torch

from radixlm.attention.full import Full
from radixlm.attention.torch_native import TorchNative
from radixlm.base.errors import ModelError
from radixlm.config.card import EncoderCard, ModelCard, PoolingCard
from radixlm.layers.parameter import Shard
from radixlm.loader.dummy import fill_dummy
from radixlm.models.table import ARCHITECTURES, CONFIG_DEFAULTS, ENCODERS, POOLED_DECODERS, SCORING
from tests.helpers.forward import Harness, Row
from tests.helpers.tiny import CARD, TIED, build, checkpoint, logits


def test_loaded_weights_are_the_model() -> None:
    weights = checkpoint(CARD)
    a, b = build(CARD), build(CARD)
    a.load(weights.items())
    b.load((name, tensor.double()) for name, tensor in reversed(weights.items()))
    assert torch.equal(logits(a), logits(b))
    b.pack()
    assert torch.allclose(logits(a), logits(b), atol=1e-5)
    other = build(CARD)
    other.load(checkpoint(CARD, seed=1).items())
    assert not torch.allclose(logits(a), logits(other), atol=1e-2)


def test_weights_can_be_read_back_packed_or_not() -> None:
    weights = checkpoint(CARD)
    model = build(CARD)
    model.load(weights.items())
    for packed in (False, True):
        for name, value in weights.items():
            read = model.weight(name)
            assert read is not None and torch.equal(read, value), (name, packed)
        model.pack()
    assert model.weight("model.layers.0.self_attn.q_norm.weight") is None
    assert model.weight("lm_head") is None


def test_missing_weights_are_named() -> None:
    weights = checkpoint(CARD)
    del weights["model.layers.1.self_attn.k_proj.weight"]
    with pytest.raises(ModelError, match=r"lack model\.layers\.1\.self_attn\.k_proj\.weight$"):
        build(CARD).load(weights.items())
    with pytest.raises(ModelError, match=r"lack model\.embed_tokens\.weight, .* and 17 more$"):
        build(CARD).load([])


def test_unexpected_weights_are_named() -> None:
    weights = checkpoint(CARD) | {"model.layers.0.self_attn.q_norm.weight": torch.ones(8)}
    with pytest.raises(ModelError, match=r"LlamaForCausalLM .* model\.layers\.0\.self_attn\.q_norm\.weight$"):
        build(CARD).load(weights.items())


def test_another_shape_is_named() -> None:
    weights = checkpoint(CARD) | {"model.norm.weight": torch.ones(17)}
    with pytest.raises(ModelError, match=r"model\.norm\.weight is \[17\], expected \[16\]"):
        build(CARD).load(weights.items())


def test_redundant_weights_are_let_pass() -> None:
    weights = checkpoint(TIED) | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    build(TIED).load(weights.items())
    build(TIED).load((weights | {"lm_head.weight": torch.ones(24, 16)}).items())
    assert "lm_head.weight" not in weights
    with pytest.raises(ModelError, match=r"lack lm_head\.weight"):
        build(CARD).load(weights.items())


def test_every_projection_says_how_it_is_shared() -> None:
    shards = {parameter.name: parameter.shard for parameter in build(CARD).parameters()}
    layer = "model.layers.1."
    assert shards[f"{layer}self_attn.v_proj.weight"] is Shard.OUTPUT
    assert shards[f"{layer}self_attn.o_proj.weight"] is Shard.INPUT
    assert shards[f"{layer}mlp.up_proj.weight"] is Shard.OUTPUT
    assert shards[f"{layer}mlp.down_proj.weight"] is Shard.INPUT
    assert shards[f"{layer}input_layernorm.weight"] is Shard.NONE
    assert shards["model.embed_tokens.weight"] is Shard.OUTPUT


def card_of(name: str) -> ModelCard:
    """The tiny card with what an architecture of this name needs beside."""
    pooling, encoder = None, None
    if name in ENCODERS:
        encoder = EncoderCard(layer_norm_eps=1e-5, token_types=2)
    if encoder is not None or name in POOLED_DECODERS:
        labels = ("a", "b", "c") if name.endswith(SCORING) else ()
        pooling = PoolingCard(modes=("cls",), labels=labels, deep_head=name.endswith("ForRewardModel"))
    kv_heads = CARD.num_heads if encoder is not None else CARD.num_kv_heads
    return msgspec.structs.replace(
        CARD, architecture=name, hidden_act="gelu", num_kv_heads=kv_heads, pooling=pooling, encoder=encoder
    )


@pytest.mark.parametrize("name", ARCHITECTURES.names())
def test_every_row_builds_and_runs(name: str) -> None:
    card = card_of(name)
    model = build(card)
    fill_dummy(model.parameters())
    model.pack()
    outputs = Harness(model, backend=Full if name in ENCODERS else TorchNative).step([Row(0, [1, 5, 7])])[0]
    assert outputs.shape == (3, card.outputs)
    assert torch.isfinite(outputs).all()
    assert name in ENCODERS or POOLED_DECODERS.get(name, name) in CONFIG_DEFAULTS

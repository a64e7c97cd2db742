"""Taking weights by name: what is missing, extra or of another shape is named; and every architecture has its row."""

import msgspec
import pytest
import torch

from radixlm.base.errors import ModelError
from radixlm.layers.parameter import Shard
from radixlm.loader.dummy import fill_dummy
from radixlm.models.table import ARCHITECTURES, CONFIG_DEFAULTS
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


@pytest.mark.parametrize("name", ARCHITECTURES.names())
def test_every_row_builds_and_runs(name: str) -> None:
    card = msgspec.structs.replace(CARD, architecture=name)
    model = build(card)
    fill_dummy(model.parameters())
    model.pack()
    assert torch.isfinite(logits(model)).all()
    assert name in CONFIG_DEFAULTS

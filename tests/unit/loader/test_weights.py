"""Weights from disk: shards, damaged files, formats that do not fit, stand-ins."""

import json
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import save_file

from radixlm.base.errors import ModelError
from radixlm.layers.parameter import Parameter, Shard
from radixlm.loader.dummy import BLOCK_ELEMENTS, SPREAD, fill_dummy
from radixlm.loader.safetensors import safetensors_weights
from radixlm.loader.source import ModelSource
from radixlm.loader.weights import load_model
from tests.helpers.tiny import CARD, TIED, checkpoint, logits

CPU = torch.device("cpu")


def names(folder: Path) -> list[str]:
    return sorted(name for name, _ in safetensors_weights(folder))


def sharded(folder: Path) -> dict[str, torch.Tensor]:
    """A checkpoint in two files with an index, beside a copy in another layout that is to be left alone."""
    weights = checkpoint(CARD)
    order = list(weights)
    placed = {}
    for number, part in enumerate((order[:9], order[9:])):
        file = f"model-{number}.safetensors"
        save_file({name: weights[name] for name in part}, folder / file)
        placed |= dict.fromkeys(part, file)
    save_file({"tok_embeddings.weight": torch.ones(2)}, folder / "consolidated.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    return weights


def test_shards_load_as_one(tmp_path: Path) -> None:
    weights = sharded(tmp_path)
    assert names(tmp_path) == sorted(weights)
    loaded = load_model(ModelSource("it", tmp_path, "folder"), CARD, torch.float32, CPU)
    assert loaded.weights_bytes == sum(tensor.nbytes for tensor in weights.values())
    (tmp_path / "one").mkdir()
    save_file(weights, tmp_path / "one" / "model.safetensors")
    single = load_model(ModelSource("it", tmp_path / "one", "folder"), CARD, torch.float32, CPU, "safetensors")
    assert torch.equal(logits(loaded.model), logits(single.model))


def test_tied_weights_count_once(tmp_path: Path) -> None:
    weights = checkpoint(TIED)
    save_file(weights, tmp_path / "model.safetensors")
    loaded = load_model(ModelSource("it", tmp_path, "folder"), TIED, torch.bfloat16, CPU)
    assert loaded.weights_bytes == sum(tensor.numel() * 2 for tensor in weights.values())
    assert loaded.seconds > 0


def test_without_an_index_all_files_are_read_but_other_layouts(tmp_path: Path) -> None:
    sharded(tmp_path)
    (tmp_path / "model.safetensors.index.json").unlink()
    assert names(tmp_path) == sorted(checkpoint(CARD))


def test_damage_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="holds no safetensors weights"):
        names(tmp_path)
    sharded(tmp_path)
    path = tmp_path / "model-1.safetensors"
    whole = path.read_bytes()
    for size in (0, 5, 200, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ModelError, match=r"model-1\.safetensors is truncated or damaged") as caught:
            names(tmp_path)
        assert "\n" not in str(caught.value)
    path.unlink()
    with pytest.raises(ModelError, match=r"lacks 1 of 2 weight files, such as model-1\.safetensors"):
        names(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": 3}')
    with pytest.raises(ModelError, match="not a valid index"):
        names(tmp_path)


def test_formats_that_do_not_fit(tmp_path: Path) -> None:
    source = ModelSource("it", tmp_path, "folder")
    with pytest.raises(ModelError, match="it cannot be loaded as gguf: its weights are safetensors"):
        load_model(source, CARD, torch.float32, CPU, "gguf")
    with pytest.raises(ModelError, match="unknown load format 'npz'; known: auto, safetensors, gguf, dummy"):
        load_model(source, CARD, torch.float32, CPU, "npz")


def test_dummy_needs_no_weights_and_is_the_same_every_time(tmp_path: Path) -> None:
    source = ModelSource("it", tmp_path, "folder")
    card = msgspec.structs.replace(CARD, num_layers=3)
    first, second = (load_model(source, card, torch.float32, CPU, "dummy").model for _ in range(2))
    assert torch.equal(logits(first), logits(second))
    assert logits(first).std() > 1e-3


def test_dummy_values() -> None:
    large = Parameter("a", torch.empty(3, BLOCK_ELEMENTS // 2), Shard.NONE)
    norm = Parameter("b", torch.empty(64, dtype=torch.bfloat16), Shard.NONE, centre=1.0)
    fill_dummy([large, norm])
    assert abs(large.data.std().item() - SPREAD) < 1e-3
    assert not torch.equal(large.data[0], large.data[2])
    assert 0.9 < norm.data.float().min() < norm.data.float().max() < 1.1
    other = Parameter("a", torch.empty(3, BLOCK_ELEMENTS // 2), Shard.NONE)
    fill_dummy([other], seed=1)
    assert not torch.equal(other.data, large.data)

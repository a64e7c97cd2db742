"""Vectors and scores of tiny random models against transformers' and sentence-transformers' own, to 1e-5 in fp32."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from radixlm.base.errors import ModelError
from radixlm.loader.card import load_card
from radixlm.loader.source import resolve
from radixlm.loader.tokenizer import load_tokenizer
from radixlm.protocol.arrays import F32
from tests.helpers.pooled import PooledEngine, make_model, prompts, reference, save_tokenizer

BATCH = prompts([7, 1, 33, 12, 100, 12, 2])
BOUND = 1e-5
ENCODERS = ["BertModel", "RobertaModel", "XLMRobertaModel", "DistilBertModel"]
MODES = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]


def near(got: F32, want: F32) -> bool:
    scale = max(1.0, float(np.abs(want).max()))
    return got.shape == want.shape and float(np.abs(got - want).max()) < BOUND * scale


@pytest.mark.parametrize("name", ENCODERS)
def test_encoders_pool_their_first_token(name: str, tmp_path: Path) -> None:
    model = make_model(name, tmp_path)
    engine = PooledEngine(tmp_path)
    want = reference(BATCH, lambda ids: F.normalize(model(ids).last_hidden_state[:, 0], dim=-1))
    assert near(engine.vectors(BATCH), want)
    alone = np.concatenate([engine.vectors([prompt]) for prompt in BATCH])
    assert near(alone, want)


@pytest.mark.parametrize("name", ["BertModel", "Qwen3Model"])
@pytest.mark.parametrize("mode", MODES)
def test_a_sentence_transformers_folder(name: str, mode: str, tmp_path: Path) -> None:
    if name == "Qwen3Model" and mode == "cls":
        pytest.skip("refused: see below")
    model = make_model(name, tmp_path)
    write_modules(tmp_path, mode, normalize=mode != "mean")
    engine = PooledEngine(tmp_path, chunked_prefill_size=16, page_size=4, prefill_max_requests=3)
    want = reference(BATCH, lambda ids: sentence_transformers_pool(model(ids).last_hidden_state, mode))
    for _ in range(2):
        assert near(engine.vectors(BATCH), want)
    assert engine.cached_tokens() == 0 or mode == "lasttoken"


def test_several_modes_stand_side_by_side(tmp_path: Path) -> None:
    model = make_model("BertModel", tmp_path)
    write_modules(tmp_path, ["mean", "max"], normalize=True)

    def both(ids: Tensor) -> Tensor:
        hidden = model(ids).last_hidden_state
        return F.normalize(torch.cat([pool(hidden, "mean"), pool(hidden, "max")], -1), dim=-1)

    assert near(PooledEngine(tmp_path).vectors(BATCH), reference(BATCH, both))


def test_sentence_transformers_agrees(tmp_path: Path) -> None:
    """The library itself on a folder that it has saved, text and all."""
    st = pytest.importorskip("sentence_transformers")
    make_model("BertModel", tmp_path / "plain", pad_token_id=0)
    save_tokenizer(tmp_path / "plain")
    parts = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    modules = [parts.Transformer(str(tmp_path / "plain")), parts.Pooling(48, "mean"), parts.Normalize()]
    st.SentenceTransformer(modules=modules, device="cpu").save(str(tmp_path / "saved"))
    texts = ["a b c", "z", "h e l l o w o r l d"]
    want = st.SentenceTransformer(str(tmp_path / "saved"), device="cpu").encode(texts)
    tokenizer = load_tokenizer(resolve(str(tmp_path / "saved")))
    engine = PooledEngine(tmp_path / "saved")
    assert engine.card.pooling is not None and engine.card.pooling.modes == ("mean",)
    assert near(engine.vectors([tokenizer.encode(text) for text in texts]), want)


def test_sentence_transformers_cross_encoder_agrees(tmp_path: Path) -> None:
    st = pytest.importorskip("sentence_transformers")
    make_model("BertForSequenceClassification", tmp_path, num_labels=1, pad_token_id=0)
    save_tokenizer(tmp_path)
    pairs = [("a b c", "d"), ("z", "h e l l o"), ("q", "q")]
    want = st.CrossEncoder(str(tmp_path), device="cpu").predict(pairs)
    tokenizer = load_tokenizer(resolve(str(tmp_path)))
    assert tokenizer.encode_pair("a b", "c") == ([2, 4, 5, 3, 6, 3], 4)
    engine = PooledEngine(tmp_path)
    got = []
    for first, second in pairs:
        ids, second_at = tokenizer.encode_pair(first, second)
        got.append(engine.vectors([ids], second_at=second_at)[0, 0])
    assert near(np.array(got), want)


@pytest.mark.parametrize("flags", [{}, {"chunked_prefill_size": 16, "page_size": 4}, {"run_ahead": 1}])
def test_a_decoder_embeds_by_its_last_token(flags: dict[str, Any], tmp_path: Path) -> None:
    """As Qwen3-Embedding does: alone, batched, in chunks and on a cached prefix."""
    model = make_model("Qwen3ForCausalLM", tmp_path, tie_word_embeddings=False)
    engine = PooledEngine(tmp_path, embedding=True, **flags)
    want = reference(BATCH, lambda ids: F.normalize(model.model(ids).last_hidden_state[:, -1], dim=-1))
    assert near(engine.vectors(BATCH), want)
    longer = [[*BATCH[4], 9, 8, 7]]
    assert near(
        engine.vectors(longer),
        reference(longer, lambda ids: F.normalize(model.model(ids).last_hidden_state[:, -1], dim=-1)),
    )
    assert engine.cached_tokens() >= 80


def test_a_trunk_without_the_prefix_in_its_names(tmp_path: Path) -> None:
    model = make_model("Qwen3Model", tmp_path)
    want = reference(BATCH, lambda ids: F.normalize(model(ids).last_hidden_state[:, -1], dim=-1))
    assert near(PooledEngine(tmp_path).vectors(BATCH), want)


@pytest.mark.parametrize("family", ["Llama", "Mistral", "Qwen2", "Qwen3"])
def test_decoders_score(family: str, tmp_path: Path) -> None:
    model = make_model(f"{family}ForSequenceClassification", tmp_path, num_labels=3, pad_token_id=1)
    want = reference(BATCH, lambda ids: model(ids).logits)
    assert near(PooledEngine(tmp_path, chunked_prefill_size=16).vectors(BATCH), want)


def test_a_reward_model(tmp_path: Path) -> None:
    """Qwen2ForRewardModel, which is not in transformers: a trunk and two linear maps with a ReLU between."""
    model = make_model("Qwen2Model", tmp_path)
    torch.manual_seed(1)
    head = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    from safetensors.torch import save_file

    weights = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    weights |= {f"score.{name}": tensor for name, tensor in head.state_dict().items()}
    save_file(weights, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text()) | {"architectures": ["Qwen2ForRewardModel"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    want = reference(BATCH, lambda ids: head(model(ids).last_hidden_state[:, -1]))
    assert near(PooledEngine(tmp_path).vectors(BATCH), want)


@pytest.mark.parametrize(
    "name",
    [f"{family}ForSequenceClassification" for family in ("Bert", "Roberta", "XLMRoberta", "DistilBert")],
)
@pytest.mark.parametrize("labels", [1, 4])
def test_cross_encoders(name: str, labels: int, tmp_path: Path) -> None:
    model = make_model(name, tmp_path, num_labels=labels)
    activation = torch.sigmoid if labels == 1 else torch.nn.Identity()
    want = reference(BATCH, lambda ids: activation(model(ids).logits))
    assert near(PooledEngine(tmp_path).vectors(BATCH), want)


def test_the_second_text_of_a_pair_has_its_type(tmp_path: Path) -> None:
    model = make_model("BertForSequenceClassification", tmp_path, num_labels=1)
    pairs = prompts([20, 24])

    def typed(ids: Tensor) -> Tensor:
        types = (torch.arange(ids.shape[1]) >= 9).long()[None]
        return torch.sigmoid(model(ids, token_type_ids=types).logits)

    engine = PooledEngine(tmp_path)
    assert near(engine.vectors(pairs, second_at=9), reference(pairs, typed))
    assert near(engine.vectors(pairs), reference(pairs, lambda ids: torch.sigmoid(model(ids).logits)))


def test_the_activation_of_scores_is_read(tmp_path: Path) -> None:
    model = make_model("BertForSequenceClassification", tmp_path, num_labels=1)
    config = json.loads((tmp_path / "config.json").read_text())
    config["sentence_transformers"] = {"activation_fn": "torch.nn.modules.linear.Identity"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert near(PooledEngine(tmp_path).vectors(BATCH), reference(BATCH, lambda ids: model(ids).logits))
    config["sentence_transformers"] = {"activation_fn": "torch.nn.Tanh"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="Tanh"):
        load_card(resolve(str(tmp_path)))


def test_what_cannot_be_pooled_is_refused(tmp_path: Path) -> None:
    make_model("Qwen3Model", tmp_path)
    source = resolve(str(tmp_path))
    write_modules(tmp_path, "cls", normalize=True)
    with pytest.raises(ModelError, match="first token"):
        load_card(source)
    write_modules(tmp_path, "median", normalize=True)
    with pytest.raises(ModelError, match="median"):
        load_card(source)
    modules = json.loads((tmp_path / "modules.json").read_text())
    modules.insert(2, {"type": "sentence_transformers.models.Dense", "path": "2_Dense"})
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ModelError, match="Transformer, Pooling, Dense, Normalize"):
        load_card(source)


# ---- what the references do ------------------------------------------------------------------------------------------


def pool(hidden: Tensor, mode: str) -> Tensor:
    """One sequence's hidden states [1, n, h] as sentence-transformers pool them."""
    pooling = pytest.importorskip("sentence_transformers.sentence_transformer.modules").Pooling(hidden.shape[-1], mode)
    mask = torch.ones(hidden.shape[:2], dtype=torch.int64)
    pooled: Tensor = pooling({"token_embeddings": hidden, "attention_mask": mask})["sentence_embedding"]
    return pooled


def sentence_transformers_pool(hidden: Tensor, mode: str) -> Tensor:
    return pool(hidden, mode) if mode == "mean" else F.normalize(pool(hidden, mode), dim=-1)


def write_modules(folder: Path, mode: str | list[str], normalize: bool) -> None:
    """The files that make a transformers folder a sentence-transformers one."""
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
    paths = ["", "1_Pooling", "2_Normalize"]
    modules = [
        {"idx": i, "name": str(i), "path": paths[i], "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": mode}))

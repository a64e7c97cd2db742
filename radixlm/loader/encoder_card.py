"""The model card of a BERT-type encoder from its config.json. Knows neither folders nor pooling."""

from typing import Annotated, Any

import msgspec

from radixlm.base.errors import ModelError
from radixlm.config.card import EncoderCard, ModelCard

ACTIVATIONS = ("gelu", "gelu_new", "relu", "silu")  # those of models/encoder.py
# Keys that DistilBERT spells in its own way, and what the others call them.
_SPELLINGS = {
    "dim": "hidden_size",
    "hidden_dim": "intermediate_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "activation": "hidden_act",
}
_POSITIONS_BEHIND_PADDING = ("Roberta", "XLMRoberta")  # families whose first position is the one after the padding id's

_Count = Annotated[int, msgspec.Meta(gt=0)]


class _Config(msgspec.Struct, kw_only=True):
    """The keys that matter, under BERT's names and with its defaults; others are ignored."""

    model_type: str = ""
    vocab_size: _Count
    hidden_size: _Count
    intermediate_size: _Count
    num_hidden_layers: _Count
    num_attention_heads: _Count
    max_position_embeddings: _Count = 512
    type_vocab_size: int = 2
    layer_norm_eps: Annotated[float, msgspec.Meta(gt=0)] = 1e-12
    hidden_act: str = "gelu"
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    position_embedding_type: str | None = None
    is_decoder: bool = False
    quantization_config: dict[str, Any] | None = None


def encoder_card(config: dict[str, Any], architecture: str, dtype: str, name: str) -> ModelCard:
    """The card of `config`; ModelError for a feature that is not computed, msgspec.ValidationError for a bad value."""
    typed = msgspec.convert({_SPELLINGS.get(key, key): value for key, value in config.items()}, _Config)
    _refuse_unknown(typed, name)
    distilled = architecture.startswith("DistilBert")
    behind = architecture.startswith(_POSITIONS_BEHIND_PADDING)
    padding = 1 if typed.pad_token_id is None else typed.pad_token_id
    first = padding + 1 if behind else 0
    return ModelCard(
        architecture=architecture,
        model_type=typed.model_type,
        vocab_size=typed.vocab_size,
        hidden_size=typed.hidden_size,
        intermediate_size=typed.intermediate_size,
        num_layers=typed.num_hidden_layers,
        num_heads=typed.num_attention_heads,
        num_kv_heads=typed.num_attention_heads,
        head_dim=typed.hidden_size // typed.num_attention_heads,
        context_len=typed.max_position_embeddings - first,
        hidden_act=typed.hidden_act,
        dtype=dtype,
        bos_token_id=typed.bos_token_id,
        encoder=EncoderCard(
            layer_norm_eps=typed.layer_norm_eps,
            first_position=first,
            token_types=0 if distilled else typed.type_vocab_size,
        ),
    )


def _refuse_unknown(config: _Config, name: str) -> None:
    if config.quantization_config is not None:
        raise ModelError(f"{name}: quantized encoders are not supported")
    if config.hidden_act not in ACTIVATIONS:
        raise ModelError(f"{name}: activation {config.hidden_act} is not supported; known: {', '.join(ACTIVATIONS)}")
    if config.position_embedding_type not in (None, "absolute"):
        raise ModelError(f"{name}: positions of type {config.position_embedding_type} are not supported")
    if config.is_decoder:
        raise ModelError(f"{name}: an encoder that was made a decoder is not supported")
    if config.hidden_size % config.num_attention_heads:
        raise ModelError(f"{name}: {config.num_attention_heads} heads do not divide {config.hidden_size}")

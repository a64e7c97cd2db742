"""The model card from config.json or a GGUF header. Imports no torch and reads no weights."""

import json
from pathlib import Path
from typing import Annotated, Any

import msgspec

from radixlm.base.errors import ModelError
from radixlm.config.card import GenerationDefaults, ModelCard, RopeScaling
from radixlm.loader.encoder_card import encoder_card
from radixlm.loader.gguf_config import hf_config
from radixlm.loader.gguf_header import read_header
from radixlm.loader.pooling_card import pooling_card
from radixlm.loader.rope import rope_facts
from radixlm.loader.source import ModelSource
from radixlm.models.table import ARCHITECTURES, CONFIG_DEFAULTS, ENCODERS, POOLED_DECODERS

DTYPES = ("float32", "float16", "bfloat16")
ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}

_Count = Annotated[int, msgspec.Meta(gt=0)]
_Positive = Annotated[float, msgspec.Meta(gt=0)]


class _Config(msgspec.Struct, kw_only=True):
    """The keys of a config.json that matter here, under Hugging Face's names; others are ignored."""

    architectures: list[str]
    model_type: str = ""
    vocab_size: _Count
    hidden_size: _Count
    intermediate_size: _Count
    num_hidden_layers: _Count
    num_attention_heads: _Count
    num_key_value_heads: _Count | None = None
    head_dim: _Count | None = None
    max_position_embeddings: _Count
    rms_norm_eps: _Positive = 1e-6
    rope_theta: float | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    partial_rotary_factor: float = 1.0
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    attention_output_bias: bool | None = None  # None: as attention_bias
    mlp_bias: bool = False
    qk_norm: bool = False
    norms_per_layer: int = 2
    use_sliding_window: bool = True
    sliding_window: _Count | None = None
    max_window_layers: Annotated[int, msgspec.Meta(ge=0)] = 0
    sliding_window_pattern: _Count | None = None  # every so many-th layer has no window
    layer_types: list[str] | None = None
    query_pre_attn_scalar: _Positive | None = None
    attn_logit_softcapping: _Positive | None = None
    final_logit_softcapping: _Positive | None = None
    use_bidirectional_attention: bool | None = None
    hidden_act: str = "silu"
    hidden_activation: str | None = None  # Gemma's name for it
    dtype: str | None = None
    torch_dtype: str | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    quantization_config: dict[str, Any] | None = None


def load_card(source: ModelSource, overrides: dict[str, Any] | None = None, embedding: bool = False) -> ModelCard:
    """Read the card of `source`. `overrides` replaces keys of config.json (a GGUF file's facts go by the same keys).

    With `embedding` a causal model makes embeddings; encoders and classifiers generate nothing either way.
    ModelError, in one line, for a folder without a usable config.json, an architecture or a feature we do not know,
    and for damaged files.
    """
    generation: dict[str, Any] = {}
    if source.kind == "gguf":
        config = hf_config(read_header(source.path))
    else:
        config, generation = _read_folder(source.path)
    config |= overrides or {}
    architecture = _architecture(config, source)
    folder = source.path if source.kind == "folder" else None
    try:
        pooling = pooling_card(folder, config, architecture, embedding, source.name)
        if architecture in ENCODERS:
            card = encoder_card(config, architecture, _dtype(config, source.name), source.name)
        else:
            defaults = CONFIG_DEFAULTS[POOLED_DECODERS.get(architecture, architecture)]
            card = _card(msgspec.convert(defaults | config, _Config), architecture, generation, source.name)
        if pooling is None:
            return card
        return msgspec.structs.replace(card, pooling=pooling, num_parameters=0)  # its head is another
    except msgspec.ValidationError as error:
        raise ModelError(f"{source.name}: the model's configuration is not valid: {error}") from None


def _read_folder(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """config.json and generation_config.json (empty when there is none)."""
    if not folder.is_dir():
        raise ModelError(f"model folder {folder} does not exist")
    if not (folder / "config.json").is_file():
        gguf = sorted(folder.glob("*.gguf"))
        hint = f"; it holds {gguf[0].name}: give that file itself" if gguf else ""
        raise ModelError(f"{folder} is not a model: it has no config.json{hint}")
    generation = folder / "generation_config.json"
    return _read_json(folder / "config.json"), _read_json(generation) if generation.is_file() else {}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} is truncated or damaged: {error}") from None
    if not isinstance(content, dict):
        raise ModelError(f"{path} is not a JSON object")
    return content


def _architecture(config: dict[str, Any], source: ModelSource) -> str:
    known = ARCHITECTURES.names()
    named = config.get("architectures")
    if not isinstance(named, list) or not named:
        raise ModelError(f"{source.name}: config.json names no architecture; known: {', '.join(known)}")
    for name in named:
        if name in known:
            return str(name)
    raise ModelError(f"{source.name}: architecture {named[0]} is not supported; known: {', '.join(known)}")


def _card(config: _Config, architecture: str, generation: dict[str, Any], name: str) -> ModelCard:
    if config.quantization_config is not None:
        method = config.quantization_config.get("quant_method", "unknown")
        raise ModelError(f"{name}: weights quantized with {method} are not supported")
    activation = config.hidden_activation or config.hidden_act
    if activation not in ACTIVATIONS:
        raise ModelError(f"{name}: activation {activation} is not supported; known: {', '.join(ACTIVATIONS)}")
    if config.use_bidirectional_attention:
        raise ModelError(f"{name}: attention in both directions (use_bidirectional_attention) is not supported")
    kv_heads = config.num_key_value_heads or config.num_attention_heads
    if config.num_attention_heads % kv_heads:
        raise ModelError(f"{name}: {config.num_attention_heads} heads cannot share {kv_heads} key-value heads evenly")
    head_dim = config.head_dim or config.hidden_size // config.num_attention_heads
    if head_dim % 2:
        raise ModelError(f"{name}: head_dim {head_dim} is odd, which rotary positions do not allow")
    theta, scaling, context_len = _rope(config, name)
    output_bias = config.attention_output_bias
    window, full_layers = _windows(config, context_len, name)
    ends = (*_token_ids(config.eos_token_id), *_token_ids(generation.get("eos_token_id")))
    card = ModelCard(
        architecture=architecture,
        model_type=config.model_type,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        context_len=context_len,
        rms_norm_eps=config.rms_norm_eps,
        rope_theta=theta,
        rope_scaling=scaling,
        tie_word_embeddings=config.tie_word_embeddings,
        attention_bias=config.attention_bias,
        attention_output_bias=config.attention_bias if output_bias is None else output_bias,
        mlp_bias=config.mlp_bias,
        qk_norm=config.qk_norm,
        norms_per_layer=config.norms_per_layer,
        sliding_window=window,
        full_layers=full_layers,
        query_pre_attn_scalar=config.query_pre_attn_scalar,
        attention_soft_cap=config.attn_logit_softcapping,
        logit_soft_cap=config.final_logit_softcapping,
        hidden_act=ACTIVATIONS[activation],
        dtype=_dtype({"dtype": config.dtype, "torch_dtype": config.torch_dtype}, name),
        eos_token_ids=tuple(dict.fromkeys(ends)),
        bos_token_id=config.bos_token_id,
        generation=msgspec.convert(generation, GenerationDefaults),
    )
    return msgspec.structs.replace(card, num_parameters=_num_parameters(card))


def _rope(config: _Config, name: str) -> tuple[float, RopeScaling | None, int]:
    """Base, scaling and context length; newer configurations keep the base beside the scaling."""
    given = dict(config.rope_parameters or config.rope_scaling or {})
    theta = given.pop("rope_theta", None) or config.rope_theta or 10000.0
    partial = given.pop("partial_rotary_factor", None) or config.partial_rotary_factor
    if partial != 1.0:
        raise ModelError(f"{name}: rotary positions on a part of each head are not supported")
    try:
        scaling, context_len = rope_facts(given, config.max_position_embeddings)
    except ModelError as error:
        raise ModelError(f"{name}: {error}") from None
    return float(theta), scaling, context_len


def _windows(config: _Config, context_len: int, name: str) -> tuple[int | None, tuple[int, ...]]:
    """The sliding window, if there is one that matters, and the layers that have none all the same."""
    if not config.use_sliding_window or config.sliding_window is None or config.sliding_window >= context_len:
        return None, ()
    layers, kinds = range(config.num_hidden_layers), config.layer_types
    if kinds is not None:
        if len(kinds) != len(layers):
            raise ModelError(f"{name}: {len(kinds)} layer_types for {len(layers)} layers")
        if unknown := set(kinds) - {"sliding_attention", "full_attention"}:
            raise ModelError(f"{name}: layers of type {min(unknown)} are not supported")
        full = tuple(layer for layer in layers if kinds[layer] == "full_attention")
    elif config.sliding_window_pattern is not None:
        full = tuple(layer for layer in layers if (layer + 1) % config.sliding_window_pattern == 0)
    else:
        full = tuple(layers[: config.max_window_layers])
    return (None, ()) if len(full) == len(layers) else (config.sliding_window, full)


def _dtype(config: dict[str, Any], name: str) -> str:
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch.")
    if dtype not in DTYPES:
        raise ModelError(f"{name}: weights of dtype {dtype} are not supported; known: {', '.join(DTYPES)}")
    return dtype


def _token_ids(value: Any) -> tuple[int, ...]:
    """None, one id or a list of ids, as configurations have them."""
    if value is None:
        return ()
    return msgspec.convert(value if isinstance(value, list) else [value], tuple[int, ...])


def _num_parameters(card: ModelCard) -> int:
    """Elements of all weights; a shared embedding counts once."""
    queries, keys = card.num_heads * card.head_dim, card.num_kv_heads * card.head_dim
    attention = card.hidden_size * (2 * queries + 2 * keys)
    biases = card.attention_bias * (queries + 2 * keys) + card.attention_output_bias * card.hidden_size
    biases += card.mlp_bias * (2 * card.intermediate_size + card.hidden_size)
    norms = card.norms_per_layer * card.hidden_size + card.qk_norm * 2 * card.head_dim
    layer = attention + 3 * card.hidden_size * card.intermediate_size + biases + norms
    embeddings = (1 if card.tie_word_embeddings else 2) * card.vocab_size * card.hidden_size
    return card.num_layers * layer + embeddings + card.hidden_size

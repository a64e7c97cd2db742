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
ACTIVATIONS = ("silu", "swish")  # two names of one function

_Count = Annotated[int, msgspec.Meta(gt=0)]


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
    rms_norm_eps: float = 1e-6
    rope_theta: float | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    partial_rotary_factor: float = 1.0
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    attention_output_bias: bool | None = None  # None: as attention_bias
    mlp_bias: bool = False
    qk_norm: bool = False
    use_sliding_window: bool = True
    sliding_window: _Count | None = None
    max_window_layers: int = 0
    layer_types: list[str] | None = None
    hidden_act: str = "silu"
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
    except (OSError, ValueError) as error:
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
    if config.hidden_act not in ACTIVATIONS:
        raise ModelError(f"{name}: activation {config.hidden_act} is not supported; known: {', '.join(ACTIVATIONS)}")
    kv_heads = config.num_key_value_heads or config.num_attention_heads
    if config.num_attention_heads % kv_heads:
        raise ModelError(f"{name}: {config.num_attention_heads} heads cannot share {kv_heads} key-value heads evenly")
    head_dim = config.head_dim or config.hidden_size // config.num_attention_heads
    if head_dim % 2:
        raise ModelError(f"{name}: head_dim {head_dim} is odd, which rotary positions do not allow")
    theta, scaling, context_len = _rope(config, name)
    output_bias = config.attention_output_bias
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
        sliding_window=_window(config, context_len, name),
        hidden_act="silu",
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


def _window(config: _Config, context_len: int, name: str) -> int | None:
    """The sliding window of all layers, or None; layers of both kinds are refused."""
    if not config.use_sliding_window or config.sliding_window is None or config.sliding_window >= context_len:
        return None
    if config.layer_types is not None:
        sliding = config.layer_types.count("sliding_attention")
    else:
        sliding = max(0, config.num_hidden_layers - config.max_window_layers)
    if sliding == 0:
        return None
    if sliding < config.num_hidden_layers:
        raise ModelError(f"{name}: a sliding window in {sliding} of {config.num_hidden_layers} layers is not supported")
    return config.sliding_window


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
    norms = 2 * card.hidden_size + card.qk_norm * 2 * card.head_dim
    layer = attention + 3 * card.hidden_size * card.intermediate_size + biases + norms
    embeddings = (1 if card.tie_word_embeddings else 2) * card.vocab_size * card.hidden_size
    return card.num_layers * layer + embeddings + card.hidden_size

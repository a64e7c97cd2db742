"""A GGUF header's facts under the keys of a Hugging Face config.json. Knows the families' keys; imports no torch."""

from typing import Any

import numpy as np

from radixlm.base.errors import ModelError
from radixlm.loader.gguf_header import GGUFHeader

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
ROPE_FACTORS = "rope_freqs.weight"
_FLOAT_TYPES = {0: "float32", 1: "float16", 30: "bfloat16"}
_F32 = 0


def hf_config(header: GGUFHeader) -> dict[str, Any]:
    """The file's facts under the keys of a Hugging Face config.json; ModelError when it is no model we know."""
    family = header.architecture
    if family not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ModelError(f"{header.path} has architecture {family!r}, which is not supported; known in GGUF: {known}")
    if header.metadata.get("split.count", 1) > 1:
        raise ModelError(f"{header.path} is one of several split files; merge them with llama-gguf-split first")
    if header.metadata.get(f"{family}.expert_count", 0):
        raise ModelError(f"{header.path} is a mixture of experts, which is not supported")
    keys = {
        "hidden_size": "embedding_length",
        "intermediate_size": "feed_forward_length",
        "num_hidden_layers": "block_count",
        "num_attention_heads": "attention.head_count",
        "num_key_value_heads": "attention.head_count_kv",
        "head_dim": "attention.key_length",
        "max_position_embeddings": "context_length",
        "rms_norm_eps": "attention.layer_norm_rms_epsilon",
        "rope_theta": "rope.freq_base",
        "sliding_window": "attention.sliding_window",
    }
    config: dict[str, Any] = {"architectures": [ARCHITECTURES[family]], "model_type": family}
    for ours, theirs in keys.items():
        value = header.metadata.get(f"{family}.{theirs}")
        if value is not None:
            config[ours] = value
    config["bos_token_id"] = header.metadata.get("tokenizer.ggml.bos_token_id")
    ends = [header.metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")]
    config["eos_token_id"] = [token for token in ends if token is not None]
    config |= _from_tensors(header)
    config |= {"use_sliding_window": "sliding_window" in config, "max_window_layers": 0}
    config["rope_scaling"] = _rope_scaling(header)
    head_dim = config.get("head_dim") or config.get("hidden_size", 0) // config.get("num_attention_heads", 1)
    rotated = header.metadata.get(f"{family}.rope.dimension_count", head_dim)
    return config | {"head_dim": head_dim, "partial_rotary_factor": rotated / head_dim if head_dim else 1.0}


def _from_tensors(header: GGUFHeader) -> dict[str, Any]:
    """What only the tensor directory tells."""
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelError(f"{header.path} holds no token embedding (token_embd.weight)")
    query = header.tensors.get("blk.0.attn_q.weight")
    facts: dict[str, Any] = {
        "vocab_size": embedding.shape[0],
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "dtype": _FLOAT_TYPES.get(query.type_id, "bfloat16") if query else "bfloat16",
    }
    for key, tensor in (("attention_bias", "attn_q"), ("attention_output_bias", "attn_output"), ("mlp_bias", "ffn_up")):
        facts[key] = f"blk.0.{tensor}.bias" in header.tensors
    return facts


def _rope_scaling(header: GGUFHeader) -> dict[str, Any] | None:
    prefix = f"{header.architecture}.rope.scaling."
    kind = header.metadata.get(f"{prefix}type", "none")
    if ROPE_FACTORS in header.tensors:
        return _llama3_scaling(header)
    if kind == "none":
        return None
    known = {f"{prefix}{key}" for key in ("type", "factor", "original_context_length", "finetuned")}
    for key in header.metadata.keys() - known:
        if key.startswith(prefix):
            raise ModelError(f"{header.path}: {key} is not supported")
    scaling = {"rope_type": kind, "factor": header.metadata.get(f"{prefix}factor", 1.0)}
    original = header.metadata.get(f"{prefix}original_context_length")
    return scaling if original is None else scaling | {"original_max_position_embeddings": original}


def _llama3_scaling(header: GGUFHeader) -> dict[str, Any]:
    """Llama 3.1's rule, recognised by the frequency divisors that the converter computed from it."""
    info = header.tensors[ROPE_FACTORS]
    if info.type_id != _F32:
        raise ModelError(f"{header.path}: {ROPE_FACTORS} is not float32")
    found = header.bytes_of(info).view(np.float32).astype(np.float64)
    theta = float(header.metadata.get(f"{header.architecture}.rope.freq_base", 10000.0))
    factor, low, high, original = float(found.max()), 1.0, 4.0, 8192
    turns = original / (2 * np.pi * theta ** (np.arange(len(found)) / len(found)))
    keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
    if not np.allclose(1 / ((1 - keep) / factor + keep), found, rtol=1e-3):
        raise ModelError(f"{header.path}: {ROPE_FACTORS} does not follow Llama 3.1's rule")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }

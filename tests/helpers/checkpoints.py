"""Tiny random checkpoints of every architecture, made by Hugging Face transformers."""

from pathlib import Path
from typing import Any

import torch
import transformers

VOCAB = 160

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "eos_token_id": 3,
    "initializer_range": 0.1,  # wide enough that the top logits are apart
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 64}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama2": ("Llama", {"num_key_value_heads": 4, "rms_norm_eps": 1e-5}),
    "llama3-tied": ("Llama", {"rope_parameters": LLAMA3_ROPE, "tie_word_embeddings": True, "attention_bias": True}),
    "llama-mlp-bias": ("Llama", {"mlp_bias": True, "head_dim": 32}),
    "mistral-window": ("Mistral", {"sliding_window": 11}),
    "qwen2": ("Qwen2", {}),
    "qwen2-tied-window": (
        "Qwen2",
        {"tie_word_embeddings": True, "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 0},
    ),
    "qwen2-half-window": ("Qwen2", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}),
    "qwen2-yarn": ("Qwen2", {"rope_parameters": YARN_ROPE}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "qwen3-tied-linear": (
        "Qwen3",
        {
            "head_dim": 16,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
        },
    ),
    # Caps so low that both matter; SDPA, which transformers takes by itself, leaves the first one out.
    "gemma2": (
        "Gemma2",
        {
            "head_dim": 32,
            "query_pre_attn_scalar": 24,
            "sliding_window": 11,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 4.0,
            "attn_implementation": "eager",
            "initializer_range": 0.03,  # the embedding is multiplied by 8, what layers add is of length 1
        },
    ),
}


def make_checkpoint(case: str, folder: Path, **more: Any) -> transformers.PreTrainedModel:
    """Save the tiny model called `case`, with `more` in its config, into `folder`; returns Hugging Face's own of it."""
    family, options = CASES[case]
    config = getattr(transformers, f"{family}Config")(**(SIZES | options | more))
    torch.manual_seed(11)
    reference = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        # Norms and biases start at one and zero, which would hide their being swapped or dropped; and layers have to
        # outweigh a tied embedding, or every token would only repeat itself.
        for weight in reference.model.layers.parameters():
            weight.mul_(2.0) if weight.dim() > 1 else weight.add_(torch.randn(weight.shape) * 0.2)
    reference.save_pretrained(folder)
    return reference


def in_bfloat16(reference: transformers.PreTrainedModel, folder: Path) -> transformers.PreTrainedModel:
    """The checkpoint that `make_checkpoint` saved, in bfloat16, attending in the same way."""
    attention = reference.config._attn_implementation
    return type(reference).from_pretrained(folder, dtype=torch.bfloat16, attn_implementation=attention).eval()

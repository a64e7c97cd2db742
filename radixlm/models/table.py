"""The architectures, one row each, and what their configurations leave unsaid. Imports no torch and no architecture."""

from typing import TYPE_CHECKING, Any

from radixlm.base.registry import Registry, Row

if TYPE_CHECKING:
    from radixlm.models.base import Model

_DECODERS = [
    Row("LlamaForCausalLM", "radixlm.models.llama:Llama"),
    Row("MistralForCausalLM", "radixlm.models.llama:Llama"),
    Row("Qwen2ForCausalLM", "radixlm.models.qwen2:Qwen2"),
    Row("Qwen3ForCausalLM", "radixlm.models.qwen3:Qwen3"),
    Row("Gemma2ForCausalLM", "radixlm.models.gemma2:Gemma2"),
]
# Decoders that pool, with the architecture that generates on the same trunk, whose row and configuration they share. A
# bare trunk makes embeddings; the others score.
POOLED_DECODERS = {
    **{f"{family}Model": f"{family}ForCausalLM" for family in ("Llama", "Mistral", "Qwen2", "Qwen3")},
    **{
        f"{family}ForSequenceClassification": f"{family}ForCausalLM"
        for family in ("Llama", "Mistral", "Qwen2", "Qwen3")
    },
    "Qwen2ForRewardModel": "Qwen2ForCausalLM",
}
_TARGETS = {row.name: row.target for row in _DECODERS}
_ENCODERS = [
    Row("BertModel", "radixlm.models.bert:Bert"),
    Row("BertForSequenceClassification", "radixlm.models.bert:Bert"),
    Row("RobertaModel", "radixlm.models.bert:Roberta"),
    Row("RobertaForSequenceClassification", "radixlm.models.bert:Roberta"),
    Row("XLMRobertaModel", "radixlm.models.bert:Roberta"),
    Row("XLMRobertaForSequenceClassification", "radixlm.models.bert:Roberta"),
    Row("DistilBertModel", "radixlm.models.distilbert:DistilBert"),
    Row("DistilBertForSequenceClassification", "radixlm.models.distilbert:DistilBert"),
]
ENCODERS = frozenset(row.name for row in _ENCODERS)  # read by loader/encoder_card.py
SCORING = ("ForSequenceClassification", "ForRewardModel")  # ends of names of architectures with a head that scores

ARCHITECTURES: "Registry[type[Model]]" = Registry(
    "architecture",
    [*_DECODERS, *(Row(name, _TARGETS[trunk]) for name, trunk in POOLED_DECODERS.items()), *_ENCODERS],
)

# Hugging Face's defaults for keys that a config.json of the architecture may leave out, under its own key names;
# `qk_norm`, `norms_per_layer` and `attention_output_bias` are our additions. Keys common to all have their defaults in
# the loader.
CONFIG_DEFAULTS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {"max_position_embeddings": 2048, "bos_token_id": 1, "eos_token_id": 2},
    "MistralForCausalLM": {
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "Qwen2ForCausalLM": {
        "max_position_embeddings": 32768,
        "attention_bias": True,
        "attention_output_bias": False,
        "use_sliding_window": False,
        "max_window_layers": 28,
    },
    "Qwen3ForCausalLM": {
        "max_position_embeddings": 32768,
        "head_dim": 128,
        "qk_norm": True,
        "use_sliding_window": False,
        "max_window_layers": 28,
    },
    "Gemma2ForCausalLM": {
        "max_position_embeddings": 8192,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
        "norms_per_layer": 4,
        "sliding_window": 4096,
        "sliding_window_pattern": 2,
        "query_pre_attn_scalar": 256,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "bos_token_id": 2,
        "eos_token_id": 1,
    },
}

"""Cards from config.json: every fact that is read, and every refusal, in one line."""

import json
from pathlib import Path
from typing import Any

import pytest

from radixlm.base.errors import ModelError
from radixlm.config.card import GenerationDefaults, ModelCard, RopeScaling
from radixlm.loader.card import load_card
from radixlm.loader.source import ModelSource

SMALL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
}
QWEN = SMALL | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}


def card(folder: Path, config: dict[str, Any], generation: dict[str, Any] | None = None, **overrides: Any) -> ModelCard:
    (folder / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return load_card(ModelSource("it", folder, "folder"), overrides)


def refusal(folder: Path, config: dict[str, Any], **overrides: Any) -> str:
    with pytest.raises(ModelError) as caught:
        card(folder, config, **overrides)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith("it: ")
    return text


def test_facts_and_defaults(tmp_path: Path) -> None:
    got = card(tmp_path, SMALL | {"torch_dtype": "bfloat16", "rope_theta": 5e5, "bos_token_id": 7})
    assert (got.head_dim, got.num_kv_heads, got.context_len, got.dtype) == (16, 2, 2048, "bfloat16")
    assert (got.rope_theta, got.rope_scaling, got.bos_token_id, got.eos_token_ids) == (5e5, None, 7, (2,))
    assert (got.attention_bias, got.qk_norm, got.sliding_window) == (False, False, None)
    without = {key: value for key, value in SMALL.items() if key != "num_key_value_heads"}
    assert card(tmp_path, without).num_kv_heads == 4
    assert card(tmp_path, SMALL).dtype == "float32"


def test_generation_config(tmp_path: Path) -> None:
    generation = {"eos_token_id": [9, 5], "temperature": 1, "top_k": 20, "top_p": 0.8, "transformers_version": "5"}
    got = card(tmp_path, SMALL | {"eos_token_id": 5}, generation)
    assert got.eos_token_ids == (5, 9)
    assert got.generation == GenerationDefaults(temperature=1.0, top_k=20, top_p=0.8)


def test_what_families_leave_unsaid(tmp_path: Path) -> None:
    qwen2 = card(tmp_path, QWEN)
    assert (qwen2.attention_bias, qwen2.attention_output_bias, qwen2.sliding_window) == (True, False, None)
    qwen3 = card(tmp_path, QWEN | {"architectures": ["Qwen3ForCausalLM"]})
    assert (qwen3.qk_norm, qwen3.head_dim, qwen3.attention_bias) == (True, 128, False)
    mistral = SMALL | {"architectures": ["MistralForCausalLM"], "max_position_embeddings": 32768}
    assert card(tmp_path, mistral).sliding_window == 4096
    assert card(tmp_path, mistral | {"sliding_window": None}).sliding_window is None
    assert card(tmp_path, mistral | {"sliding_window": 32768}).sliding_window is None


def test_sliding_window_of_some_layers(tmp_path: Path) -> None:
    sliding = QWEN | {"use_sliding_window": True, "sliding_window": 512}

    def windows(**more: Any) -> list[int | None]:
        got = card(tmp_path, sliding | more)
        return [got.window(layer) for layer in range(got.num_layers)]

    assert windows(max_window_layers=0) == [512] * 4
    assert windows(max_window_layers=2) == [None, None, 512, 512]
    assert card(tmp_path, sliding | {"max_window_layers": 4}).sliding_window is None
    assert windows(layer_types=["sliding_attention"] * 4) == [512] * 4
    assert windows(layer_types=["full_attention", "sliding_attention"] * 2) == [None, 512] * 2
    assert card(tmp_path, sliding | {"layer_types": ["full_attention"] * 4}).sliding_window is None
    assert "3 layer_types for 4 layers" in refusal(tmp_path, sliding | {"layer_types": ["full_attention"] * 3})
    assert "linear_attention" in refusal(tmp_path, sliding | {"layer_types": ["linear_attention"] * 4})


def test_gemma2_as_it_is_published(tmp_path: Path) -> None:
    """Of what its config.json leaves out, a window in every other layer, from the first one on."""
    published = SMALL | {
        "architectures": ["Gemma2ForCausalLM"],
        "max_position_embeddings": 8192,
        "hidden_act": "gelu_pytorch_tanh",
    }
    got = card(tmp_path, published | {"sliding_window": 4096, "query_pre_attn_scalar": 144})
    assert [got.window(layer) for layer in range(4)] == [4096, None] * 2
    assert (got.attention_scale, got.hidden_act, got.head_dim) == (1 / 12, "gelu_tanh", 256)
    assert (got.attention_soft_cap, got.logit_soft_cap, got.tie_word_embeddings) == (50.0, 30.0, True)
    uncapped = card(tmp_path, published | {"attn_logit_softcapping": None, "final_logit_softcapping": None})
    assert (uncapped.attention_soft_cap, uncapped.logit_soft_cap) == (None, None)
    assert "attn_logit_softcapping" in refusal(tmp_path, published | {"attn_logit_softcapping": -1})
    assert "both directions" in refusal(tmp_path, published | {"use_bidirectional_attention": True})


def test_rope_scaling_in_both_spellings(tmp_path: Path) -> None:
    llama3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 512}
    want = RopeScaling(kind="llama3", factor=8.0, original_max_position=512)
    old = card(tmp_path, SMALL | {"rope_theta": 5e5, "rope_scaling": {"type": "llama3"} | llama3})
    new = card(tmp_path, SMALL | {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5} | llama3})
    assert old == new
    assert (old.rope_scaling, old.rope_theta, old.context_len) == (want, 5e5, 2048)
    linear = card(tmp_path, SMALL | {"rope_scaling": {"type": "linear", "factor": 4}})
    assert linear.context_len == 8192
    assert card(tmp_path, SMALL | {"rope_parameters": {"rope_type": "default", "rope_theta": 9.0}}).rope_theta == 9.0


def test_overrides_win(tmp_path: Path) -> None:
    assert card(tmp_path, SMALL, max_position_embeddings=77).context_len == 77


def test_refused_features(tmp_path: Path) -> None:
    assert "dynamic" in refusal(tmp_path, SMALL | {"rope_scaling": {"type": "dynamic", "factor": 2.0}})
    assert "truncate" in refusal(tmp_path, SMALL | {"rope_scaling": {"type": "yarn", "truncate": False}})
    assert "part of each head" in refusal(tmp_path, SMALL | {"partial_rotary_factor": 0.5})
    assert "quantized with gptq" in refusal(tmp_path, SMALL | {"quantization_config": {"quant_method": "gptq"}})
    assert "gelu" in refusal(tmp_path, SMALL | {"hidden_act": "gelu"})
    assert "float64" in refusal(tmp_path, SMALL | {"dtype": "float64"})
    assert "evenly" in refusal(tmp_path, SMALL | {"num_key_value_heads": 3})
    assert "odd" in refusal(tmp_path, SMALL | {"head_dim": 15})


def test_bad_values_are_named(tmp_path: Path) -> None:
    without = {key: value for key, value in SMALL.items() if key != "hidden_size"}
    assert "hidden_size" in refusal(tmp_path, without)
    assert "num_hidden_layers" in refusal(tmp_path, SMALL | {"num_hidden_layers": 0})
    assert "vocab_size" in refusal(tmp_path, SMALL, vocab_size="many")
    for key, value in (("max_window_layers", -1), ("rms_norm_eps", -1), ("rms_norm_eps", 0)):
        assert key in refusal(tmp_path, SMALL | {key: value})
    encoder = SMALL | {"architectures": ["BertModel"], "hidden_act": "gelu", "layer_norm_eps": -1}
    assert "layer_norm_eps" in refusal(tmp_path, encoder)


def test_architectures(tmp_path: Path) -> None:
    known = "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM"
    novel = refusal(tmp_path, SMALL | {"architectures": ["NovelModel"]})
    assert f"architecture NovelModel is not supported; known: {known}, " in novel
    assert known in refusal(tmp_path, {key: value for key, value in SMALL.items() if key != "architectures"})
    assert known in refusal(tmp_path, SMALL | {"architectures": []})
    several = card(tmp_path, SMALL | {"architectures": ["Novelty", "LlamaForCausalLM"]})
    assert several.architecture == "LlamaForCausalLM"


def test_folders_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        load_card(ModelSource("it", tmp_path / "gone", "folder"))
    with pytest.raises(ModelError, match=r"no config\.json$"):
        load_card(ModelSource("it", tmp_path, "folder"))
    (tmp_path / "some.gguf").touch()
    with pytest.raises(ModelError, match=r"some\.gguf: give that file itself"):
        load_card(ModelSource("it", tmp_path, "folder"))


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("content", ['{"hidden_size": 6', "", "[1]", "\xff", "[" * 100_000])
def test_damaged_json(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    (tmp_path / name).write_bytes(content.encode("latin-1"))
    with pytest.raises(ModelError) as caught:
        load_card(ModelSource("it", tmp_path, "folder"))
    assert str(caught.value).startswith(str(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_no_torch_is_imported() -> None:
    import subprocess
    import sys

    code = "import radixlm.loader.card, radixlm.loader.source, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

"""GGUF files: tiny ones of each family against the same weights in Hugging Face, and the demo model against its own."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from gguf.constants import GGMLQuantizationType as Type
from torch import Tensor

from radixlm.loader.card import load_card
from radixlm.loader.source import resolve
from radixlm.loader.weights import load_model
from radixlm.models.decoder import Decoder
from tests.helpers.forward import Harness
from tests.helpers.gguf_files import write_gguf

VOCAB = 96
PROMPT = torch.randint(0, VOCAB, (37,), generator=torch.Generator().manual_seed(3)).tolist()
CPU = torch.device("cpu")
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
}
# With 8 frequencies the slowest turns less than once in 8,192 tokens, the next between once and 4 times.
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}

CASES: dict[str, tuple[str, dict[str, Any], list[Type]]] = {
    "llama-f16": ("Llama", {}, [Type.F16]),
    "llama-quantized-tied": ("Llama", {"tie_word_embeddings": True}, [Type.Q8_0, Type.Q4_1, Type.F16, Type.BF16]),
    "llama3-rope": ("Llama", {"rope_parameters": LLAMA3_ROPE}, [Type.F32, Type.Q5_0]),
    "qwen2-linear": ("Qwen2", {"rope_parameters": LINEAR_ROPE}, [Type.Q8_0, Type.Q5_1]),
    "qwen3": ("Qwen3", {"head_dim": 32}, [Type.Q4_0, Type.F16]),
}


@pytest.mark.parametrize("case", CASES)
def test_tiny_file(case: str, tmp_path: Path) -> None:
    family, options, kinds = CASES[case]
    torch.manual_seed(5)
    config = getattr(transformers, f"{family}Config")(**(SIZES | options))
    reference = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for weight in reference.model.layers.parameters():
            if weight.dim() == 1:
                weight.add_(torch.randn(weight.shape) * 0.2)
    path = tmp_path / "tiny.gguf"
    write_gguf(path, reference, family.lower(), kinds)
    source = resolve(str(path))
    card = load_card(source)
    assert card.architecture == f"{family}ForCausalLM"
    assert card.num_parameters == reference.num_parameters()
    assert card.eos_token_ids == (3, 5)
    scaling = options.get("rope_parameters")
    assert (card.rope_scaling.kind if card.rope_scaling else None) == (scaling["rope_type"] if scaling else None)
    with torch.inference_mode():
        want = reference(torch.tensor([PROMPT])).logits[0]
    model = load_model(source, card, torch.float32, CPU).model
    assert (Harness(model).prefill(0, PROMPT, 16) - want).abs().max() < 1e-4


@pytest.fixture(scope="module")
def demo() -> tuple[transformers.PreTrainedModel, Decoder]:
    source = resolve("demo")
    model = load_model(source, load_card(source), torch.float32, CPU).model
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        source.path.parent, gguf_file=source.path.name, dtype=torch.float32
    )
    return reference.eval(), model


@pytest.mark.slow
@pytest.mark.parametrize(
    "prompt",
    [
        [504, 3575, 282, 4649, 314],  # "The capital of France is"
        [1, 4093, 198, 1780, 314, 260, 2240, 282, 260, 2006, 47, 2, 198, 1, 520, 9531, 198],
        list(range(1000, 1200, 3)),
    ],
)
def test_demo_model(demo: tuple[transformers.PreTrainedModel, Decoder], prompt: list[int]) -> None:
    reference, model = demo
    with torch.inference_mode():
        want: Tensor = reference(torch.tensor([prompt])).logits[0]
        continued = reference.generate(torch.tensor([prompt]), max_new_tokens=16, do_sample=False, eos_token_id=None)
    assert (Harness(model).prefill(0, prompt) - want).abs().max() < 1e-3
    assert Harness(model).greedy(0, prompt, 16, chunk_tokens=16) == continued[0, len(prompt) :].tolist()

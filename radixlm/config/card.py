"""The model card: what the rest of the engine may know of a model without loading it. Built by loader/, read by all."""

from typing import Literal

import msgspec


class RopeScaling(msgspec.Struct, frozen=True):
    """How rotary frequencies are changed for long contexts.

    `kind` "llama3" is the rule of Llama 3.1 (arXiv 2407.21783), "yarn" that of arXiv 2309.00071. `attention_factor`
    multiplies cosine and sine under yarn; None takes the paper's 0.1 ln(factor) + 1.
    """

    kind: Literal["linear", "llama3", "yarn"]
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None


class GenerationDefaults(msgspec.Struct, frozen=True):
    """generation_config.json: the model author's sampling defaults; None where the file is silent."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder-only transformer in numbers. Sizes in elements, lengths in tokens."""

    architecture: str  # Hugging Face class name, such as "Qwen3ForCausalLM"
    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_len: int  # the longest sequence the model was made for
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False  # bias on q, k, v
    attention_output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    hidden_act: str = "silu"
    dtype: str = "bfloat16"  # of the checkpoint: float32, float16, bfloat16
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    generation: GenerationDefaults = GenerationDefaults()
    num_parameters: int = 0  # 0 when unknown before loading

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        """Bytes of keys and values that one token takes in all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * element_bytes

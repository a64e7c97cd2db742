"""The model card: what the rest of the engine may know of a model without loading it. Built by loader/, read by all."""

import math
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


PoolingMode = Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]


class PoolingCard(msgspec.Struct, frozen=True, kw_only=True):
    """How a model that generates nothing makes one vector of a prompt's hidden states.

    `modes` under sentence-transformers' names; the results of several stand side by side. `labels` are the names of the
    classes that a head scores; empty: the vector is an embedding. `deep_head`: a decoder's has a hidden layer.
    `normalize`: to length 1. `sigmoid`: on every score. `matryoshka`: only the beginning of an embedding may be asked
    for, of a length in `dimensions` if there are any.
    """

    modes: tuple[PoolingMode, ...]
    normalize: bool = False
    labels: tuple[str, ...] = ()
    deep_head: bool = False
    sigmoid: bool = False
    matryoshka: bool = False
    dimensions: tuple[int, ...] = ()

    @property
    def carries(self) -> bool:
        """Whether the vector needs more of a prompt than its last chunk, so that no part may come from the cache."""
        return self.modes != ("lasttoken",)


class EncoderCard(msgspec.Struct, frozen=True, kw_only=True):
    """What an encoder has and a decoder has not: every token sees the whole prompt, which is computed in one step.

    `first_position` is the position embedding of the first token. `token_types`: rows of the token type embedding; 0:
    there is none. `pair_separated`: the second of two texts has token type 1.
    """

    layer_norm_eps: float
    first_position: int = 0
    token_types: int = 0

    @property
    def pair_separated(self) -> bool:
        return self.token_types > 1


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """A transformer in numbers. Sizes in elements, lengths in tokens.

    `encoder` None: a decoder. `pooling` None: it generates; otherwise a prompt gets one vector. `full_layers` have no
    sliding window though the others have one. Scores of attention, and logits, s are softened to cap * tanh(s / cap)
    where there is a cap. `hidden_act`: of a decoder "silu" or "gelu_tanh".
    """

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
    norms_per_layer: int = 2  # of the residual stream
    sliding_window: int | None = None
    full_layers: tuple[int, ...] = ()
    query_pre_attn_scalar: float | None = None  # in place of head_dim in the scale of scores
    attention_soft_cap: float | None = None
    logit_soft_cap: float | None = None
    hidden_act: str = "silu"
    dtype: str = "bfloat16"  # of the checkpoint: float32, float16, bfloat16
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    generation: GenerationDefaults = GenerationDefaults()
    num_parameters: int = 0  # 0 when unknown before loading
    encoder: EncoderCard | None = None
    pooling: PoolingCard | None = None

    @property
    def outputs(self) -> int:
        """Elements of what a prompt gets: of a vector, or of the logits."""
        if self.pooling is None:
            return self.vocab_size
        return len(self.pooling.labels) or self.hidden_size * len(self.pooling.modes)

    @property
    def attention_scale(self) -> float:
        """What products of queries and keys are multiplied by."""
        return 1 / math.sqrt(self.query_pre_attn_scalar or self.head_dim)

    def window(self, layer: int) -> int | None:
        """How many tokens a layer sees; None: all."""
        return None if layer in self.full_layers else self.sliding_window

    @property
    def kv_layers(self) -> int:
        """Layers whose keys and values are kept."""
        return 0 if self.encoder is not None else self.num_layers

    @property
    def layer_weights(self) -> int:
        """Elements of a layer's matrices that one token is multiplied with."""
        projections = 2 * self.num_heads + 2 * self.num_kv_heads
        return self.hidden_size * (projections * self.head_dim + 3 * self.intermediate_size)

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        """Bytes of keys and values that one token takes in all layers."""
        return 2 * self.kv_layers * self.num_kv_heads * self.head_dim * element_bytes

"""The names that the flags of attention backends take: `auto`, and those of radixlm.attention's tables."""

from collections.abc import Mapping
from types import MappingProxyType

DECODE_BACKENDS = ("auto", "triton", "native_cpu", "torch_native", "flashinfer")
PREFILL_BACKENDS = (*DECODE_BACKENDS, "fa4")
ENCODER_BACKENDS = ("full",)
# They attend all rows of a step together, so that no other can do the prompts or the decode rows.
WHOLE = ("native_cpu", "torch_native")
# The others run on both.
DEVICES: Mapping[str, str] = MappingProxyType(
    {"triton": "cuda", "native_cpu": "cpu", "flashinfer": "cuda", "fa4": "cuda"}
)


def prefill_backend(word: str) -> str:
    """The word; ValueError with what to take in place of FlashAttention-3."""
    if word == "fa3":
        raise ValueError("'fa3' is on no package index; flashinfer runs FlashAttention-3 on Hopper")
    return word


def decode_backend(word: str) -> str:
    """The word; ValueError also for what attends prompts only."""
    if word not in DECODE_BACKENDS and word in PREFILL_BACKENDS:
        raise ValueError(f"{word!r} is for prompts: --prefill-attention-backend {word}")
    return prefill_backend(word)

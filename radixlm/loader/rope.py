"""Rotary scaling as configurations spell it, into the card's form. Refuses what the rotary layer does not compute."""

import math
from typing import Any, Literal

import msgspec

from radixlm.base.errors import ModelError
from radixlm.config.card import RopeScaling

UNSCALED = ("default", "none")
KINDS: dict[str, Literal["linear", "llama3", "yarn"]] = {"linear": "linear", "llama3": "llama3", "yarn": "yarn"}


class _Given(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Keys of Hugging Face's `rope_scaling` or `rope_parameters`, less the base and the rotated part."""

    rope_type: str | None = None
    type: str | None = None  # the older spelling
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None


def rope_facts(given: dict[str, Any], max_position: int) -> tuple[RopeScaling | None, int]:
    """The scaling that `given` asks for (None: none), and the context length in tokens that it makes of `max_position`.

    ModelError for a kind or a key that is not known: guessing would serve a subtly different model.
    """
    named = given.get("rope_type") or given.get("type") or "default"
    if named in UNSCALED:
        return None, max_position
    kind = KINDS.get(named)
    if kind is None:
        raise ModelError(f"rope scaling {named!r} is not supported; known: {', '.join(KINDS)}")
    try:
        typed = msgspec.convert(given, _Given)
    except msgspec.ValidationError as error:
        raise ModelError(f"rope scaling {kind!r} cannot be honoured: {error}") from None
    scaling = RopeScaling(
        kind=kind,
        factor=typed.factor,
        low_freq_factor=typed.low_freq_factor,
        high_freq_factor=typed.high_freq_factor,
        original_max_position=typed.original_max_position_embeddings or max_position,
        beta_fast=typed.beta_fast or 32.0,
        beta_slow=typed.beta_slow or 1.0,
        attention_factor=_attention_factor(typed),
    )
    # With an original length beside it, `max_position` is the scaled one already; Llama 3's always is.
    scaled = kind == "llama3" or typed.original_max_position_embeddings is not None
    return scaling, max_position if scaled else int(max_position * typed.factor)


def _attention_factor(given: _Given) -> float | None:
    if given.attention_factor is not None or not (given.mscale and given.mscale_all_dim) or given.factor <= 1:
        return given.attention_factor
    log = math.log(given.factor)
    return (0.1 * given.mscale * log + 1.0) / (0.1 * given.mscale_all_dim * log + 1.0)

"""The one table of sampling parameters: native names, types, ranges and size limits. Knows no route and no prompt."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from radixlm.base.errors import RequestError
from radixlm.config.card import GenerationDefaults
from radixlm.frontend import checks
from radixlm.frontend.checks import INT64_MAX, INT64_MIN, Check, boolean, integer, number, strings
from radixlm.frontend.constraints import CONSTRAINT_FIELDS, Constraint, constraint_of
from radixlm.protocol.messages import TextOptions
from radixlm.protocol.sampling import SamplingParams
from radixlm.scheduler.regex import Pattern, UnsupportedPattern

MAX_STOPS = 32
MAX_STOP_BYTES = 1024
MAX_REGEX_BYTES = 256
MAX_STOP_TOKEN_IDS = 1024
DEFAULT_MAX_NEW_TOKENS = 128


@dataclass(frozen=True)
class Sampling:
    """Checked parameters that do not know their prompt yet.

    `params.max_new_tokens` counts only when `max_new_tokens` is not None, which means "up to the context's end";
    `max_new_tokens_given` is False for the default, which may be cut without a word. `stream_interval` is in tokens.
    """

    params: SamplingParams
    text: TextOptions
    max_new_tokens: int | None
    max_new_tokens_given: bool
    stream_interval: int | None = None
    constraint: Constraint | None = None
    custom_params: Mapping[str, Any] = field(default_factory=dict)


def _top_k(name: str, value: Any) -> int:
    if type(value) is int and (value == 0 or value < -1):
        raise RequestError(f"{name} must be at least 1, or -1 for all, got {checks.shown(value)}", name)
    return int(integer(-1)(name, value))


def _patterns(name: str, value: Any) -> tuple[str, ...]:
    patterns: tuple[str, ...] = strings(MAX_STOPS, MAX_REGEX_BYTES)(name, value)
    for pattern in patterns:
        try:
            Pattern(pattern)
        except UnsupportedPattern as error:
            raise RequestError(str(error), name) from error
    return patterns


def _as_is(name: str, value: Any) -> Any:
    return value


# Every key that sampling_params may have. What needs the vocabulary is checked in `parse`.
FIELDS: dict[str, Check] = {
    "max_new_tokens": integer(0),
    "min_new_tokens": integer(0),
    "stop": strings(MAX_STOPS, MAX_STOP_BYTES),
    "stop_token_ids": _as_is,
    "stop_regex": _patterns,
    "temperature": number(0.0, 1e6),
    "top_p": number(0.0, 1.0, above=True),
    "top_k": _top_k,
    "min_p": number(0.0, 1.0),
    "frequency_penalty": number(-2.0, 2.0),
    "presence_penalty": number(-2.0, 2.0),
    "repetition_penalty": number(0.01, 2.0),
    "n": integer(1),  # whoever submits has made the copies
    "ignore_eos": boolean,
    "skip_special_tokens": boolean,
    "spaces_between_special_tokens": boolean,
    "no_stop_trim": boolean,
    "stream_interval": integer(1),
    "logit_bias": _as_is,
    "sampling_seed": integer(INT64_MIN, INT64_MAX),
    **CONSTRAINT_FIELDS,
}
# Known to SGLang and not served here: the values that ask for nothing.
NOT_YET: dict[str, tuple[Any, ...]] = {
    "beam_width": (None, 1),
    "watermark": (None, {}),
}
_TEXT_FIELDS = ("skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim")
_PARAM_FIELDS = (
    *("min_new_tokens", "temperature", "top_p", "top_k", "min_p", "ignore_eos"),
    *("frequency_penalty", "presence_penalty", "repetition_penalty", "stop", "stop_regex", "stop_token_ids"),
)


def parse(
    raw: Mapping[str, Any],
    vocab_size: int,
    defaults: GenerationDefaults | None = None,
    draw: random.Random | None = None,
) -> Sampling:
    """Check `raw` against the table; the model author's `defaults`, if given, count where `raw` is silent or null.

    RequestError names the key at fault. A request without a seed gets one from `draw`, or a random one.
    """
    _refuse_foreign_keys(raw)
    values = {name: FIELDS[name](name, value) for name, value in raw.items() if name in FIELDS and value is not None}
    for name, value in _defaults(defaults).items():
        values.setdefault(name, value)
    if "stop_token_ids" in values:
        values["stop_token_ids"] = _stop_token_ids(values["stop_token_ids"], vocab_size)
    if values.get("top_k", -1) >= vocab_size:
        values["top_k"] = -1
    given = raw.get("max_new_tokens") is not None
    endless = "max_new_tokens" in raw and not given
    max_new_tokens = None if endless else values.get("max_new_tokens", DEFAULT_MAX_NEW_TOKENS)
    min_new_tokens = values.get("min_new_tokens", 0)
    if max_new_tokens is not None and min_new_tokens > max_new_tokens:
        raise RequestError(
            f"min_new_tokens ({min_new_tokens}) must not exceed max_new_tokens ({max_new_tokens})", "min_new_tokens"
        )
    params = SamplingParams(
        logit_bias=_logit_bias(values.get("logit_bias", {}), vocab_size),
        seed=values.get("sampling_seed", (draw or random).getrandbits(63)),
        **{name: values[name] for name in _PARAM_FIELDS if name in values},
    )
    text = TextOptions(params.stop, **{name: values[name] for name in _TEXT_FIELDS if name in values})
    return Sampling(
        params,
        text,
        max_new_tokens,
        given,
        values.get("stream_interval"),
        constraint_of(values),
        values.get("custom_params", {}),
    )


def _refuse_foreign_keys(raw: Mapping[str, Any]) -> None:
    for name, value in raw.items():
        if name in FIELDS:
            continue
        if name not in NOT_YET:
            known = ", ".join(f"`{key}`" for key in (*FIELDS, *NOT_YET))
            raise RequestError(f"unknown field `{checks.shown(name)[1:-1]}`, expected one of {known}", str(name))
        if not any(value == unset and type(value) is type(unset) for unset in NOT_YET[name]):
            raise RequestError(f"{name} is not supported yet", name)


def _defaults(defaults: GenerationDefaults | None) -> dict[str, Any]:
    """The set values; a top_k of 0 means "all" in generation_config.json."""
    if defaults is None:
        return {}
    named = ("temperature", "top_p", "min_p", "repetition_penalty")
    values = {name: getattr(defaults, name) for name in named if getattr(defaults, name) is not None}
    if defaults.top_k is not None:
        values["top_k"] = defaults.top_k if defaults.top_k > 0 else -1
    return values


def _stop_token_ids(value: Any, vocab_size: int) -> tuple[int, ...]:
    """Nulls are passed over, as in SGLang."""
    name = "stop_token_ids"
    ids = [id_ for id_ in value if id_ is not None] if isinstance(value, list | tuple) else value
    checked = checks.token_ids(name, ids, vocab_size)
    if len(checked) > MAX_STOP_TOKEN_IDS:
        raise RequestError(f"{name} must have at most {MAX_STOP_TOKEN_IDS} entries, got {len(checked)}", name)
    return tuple(dict.fromkeys(checked))


def _logit_bias(value: Any, vocab_size: int) -> dict[int, float]:
    """Keys are token ids, as JSON writes them (strings); values are finite numbers."""
    name = "logit_bias"
    if not isinstance(value, dict):
        raise RequestError(f"{name} must be an object of token ids and numbers, got {checks.shown(value)}", name)
    biases: dict[int, float] = {}
    finite = number(-1e30, 1e30)
    for key, bias in value.items():
        text = str(key)
        if type(key) not in (int, str) or not (text.isascii() and text.isdigit() and len(text) <= 10):
            raise RequestError(f"{name} has the key {checks.shown(key)}, which is not a token id", name)
        id_ = int(text)
        if id_ >= vocab_size:
            raise RequestError(f"{name} has the key {id_}, but the vocabulary is [0, {vocab_size})", name)
        try:
            biases[id_] = finite(name, bias)
        except RequestError as error:
            raise RequestError(f"{name}[{id_}]: {error.message}", name) from error
    return biases

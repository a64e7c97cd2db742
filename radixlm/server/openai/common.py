"""What completions and chat share: common fields, their native names, usage and chunk pieces. Knows neither route."""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import msgspec

from radixlm.base.errors import RequestError
from radixlm.frontend.choice import ChoiceRequest
from radixlm.protocol.messages import CacheNamespace, FinishReason
from radixlm.server.formats import of_response_format
from radixlm.server.generation import Transcript, choice_seed
from radixlm.server.names import renamed, served_name
from radixlm.server.native import check_rid
from radixlm.server.refused import Refused
from radixlm.server.services import Services

# Fields that are handed on as sampling parameters: name here -> native name.
SAMPLING_NAMES = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "repetition_penalty": "repetition_penalty",
    "min_tokens": "min_new_tokens",
    "stop": "stop",
    "stop_token_ids": "stop_token_ids",
    "stop_regex": "stop_regex",
    "no_stop_trim": "no_stop_trim",
    "ignore_eos": "ignore_eos",
    "skip_special_tokens": "skip_special_tokens",
    "logit_bias": "logit_bias",
    "regex": "regex",
    "ebnf": "ebnf",
    "custom_params": "custom_params",
    "seed": "sampling_seed",
}


class StreamOptions(msgspec.Struct, frozen=True):
    """`include_usage`: one usage chunk at the end. `continuous_usage_stats`: usage so far in every chunk."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class CommonBody(msgspec.Struct, kw_only=True, frozen=True):
    """Fields of both OpenAI routes. Null means the same as leaving the field out; unknown keys are ignored."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    stop_regex: str | list[str] | None = None
    no_stop_trim: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    rid: str | None = None
    priority: int | None = None
    extra_key: str | None = None
    cache_salt: str | None = None
    response_format: dict[str, Any] | None = None
    regex: str | None = None
    ebnf: str | None = None
    custom_params: dict[str, Any] | None = None
    custom_logit_processor: str | None = None


COMMON_REFUSED = (
    *(Refused(name) for name in ("structural_tag", "watermark", "lora_path")),
    *(Refused(name) for name in ("return_routed_experts", "return_token_ids")),
    *(Refused(name) for name in ("return_cached_tokens_details", "return_spec_tokens_details")),
    *(Refused(name) for name in ("session_id", "bootstrap_host", "bootstrap_port", "bootstrap_room")),
    *(Refused(name, (0,)) for name in ("routed_dp_rank", "data_parallel_rank")),
)


def sampling_of(body: CommonBody) -> dict[str, Any]:
    """The sampling parameters the client gave, under their native names."""
    given = {native: getattr(body, name) for name, native in SAMPLING_NAMES.items()}
    params = {native: value for native, value in given.items() if value is not None}
    for kind, text in of_response_format(body.response_format).items():
        if params.get(kind):
            raise RequestError(f"response_format and {kind} exclude each other", "response_format")
        params[kind] = text
    return params


def own_names(max_tokens: str, prompt: str, top_logprobs: str = "top_logprobs") -> AbstractContextManager[None]:
    """Errors of validation speak of native fields; inside this block they name the route's own instead."""
    shown = {native: name for name, native in SAMPLING_NAMES.items()}
    shown |= {"json_schema": "response_format", "structural_tag": "response_format"}
    lengths = {"max_new_tokens": max_tokens, "text": prompt, "input_ids": prompt, "top_logprobs_num": top_logprobs}
    return renamed(shown | lengths)


def expand(prompts: Sequence[ChoiceRequest], n: int, rid: str | None) -> list[ChoiceRequest]:
    """n requests per prompt, prompt by prompt. The client's rid goes to a request that is the only one."""
    rid = check_rid(rid)
    if len(prompts) * n == 1:
        return [replace(prompts[0], rid=rid)]
    return [_sibling(prompt, index) for prompt in prompts for index in range(n)]


def _sibling(prompt: ChoiceRequest, index: int) -> ChoiceRequest:
    params = dict(prompt.sampling_params)
    if "sampling_seed" in params:
        params["sampling_seed"] = choice_seed(params["sampling_seed"], index)
    return replace(prompt, sampling_params=params)


def namespace_of(body: CommonBody) -> CacheNamespace:
    return CacheNamespace(cache_salt=body.cache_salt or "", extra_key=body.extra_key or "")


def finish_of(reason: FinishReason | None) -> tuple[str | None, int | str | None]:
    """(finish_reason, matched_stop) of a choice; (None, None) while it runs."""
    return (reason.type, reason.matched) if reason is not None else (None, None)


def hidden_of(transcript: Transcript) -> list[float] | None:
    """The last hidden vector of a choice that was asked for them."""
    for extras in reversed(transcript.extras):
        if extras.hidden is not None and len(extras.hidden):
            vector: list[float] = extras.hidden[-1].tolist()
            return vector
    return None


class Frame:
    """The fields that every body and chunk of one answer has in common, and its usage."""

    def __init__(self, services: Services, body: CommonBody, n: int) -> None:
        options = body.stream_options or StreamOptions()
        self.n = n
        self.continuous_usage = bool(options.continuous_usage_stats)
        self.final_usage = bool(options.include_usage) or services.stream_response_default_include_usage
        self._services = services
        self._model = served_name(services, body.model)
        self._created = int(time.time())
        self._id = ""

    def head(self, transcript: Transcript, kind: str) -> dict[str, Any]:
        """id, object, created, model. All chunks of an answer carry the id of the choice seen first."""
        self._id = self._id or transcript.choice.rid
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}

    def metadata(self, transcripts: Sequence[Transcript]) -> dict[str, Any]:
        version = self._services.weight_version
        end = transcripts[0].completion_tokens
        return {"weight_version": version, "weight_versions": [{"version": version, "start": 0, "end": end}]}

    def usage(self, transcripts: Sequence[Transcript], reasoning_tokens: int = 0) -> dict[str, Any]:
        """Usage of these choices. A prompt counts once; its cached part is what its first computation found."""
        prompts = [transcripts[start : start + self.n] for start in range(0, len(transcripts), self.n)]
        prompt_tokens = sum(siblings[0].prompt_tokens for siblings in prompts)
        completion_tokens = sum(one.completion_tokens for one in transcripts)
        details = None
        if self._services.enable_cache_report:
            details = {"cached_tokens": sum(min(one.cached_tokens for one in siblings) for siblings in prompts)}
        return {
            "prompt_tokens": prompt_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "completion_tokens": completion_tokens,
            "prompt_tokens_details": details,
            "reasoning_tokens": reasoning_tokens,
        }

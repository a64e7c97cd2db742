"""The APIs that can be measured, one row each: route, body, reader, defaults. Knows nothing of time or sockets."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from radixlm.base.errors import ConfigError
from radixlm.benchmark.outcome import Request
from radixlm.benchmark.readers import NativeReader, OpenAiReader, Reader


class BodySettings(msgspec.Struct, frozen=True):
    """What every request body of a run has in common. `extra` is merged over the rest, one level deep."""

    model: str
    stream: bool = True
    ignore_eos: bool = True
    temperature: float = 0.0
    top_p: float = 1.0
    extra: dict[str, Any] = {}


@dataclass(frozen=True)
class Backend:
    """One row. `takes_ids`: prompts may be sent as token ids. `flush_path`: POST here empties the prefix cache."""

    path: str
    body: Callable[[Request, BodySettings], dict[str, Any]]
    reader: Callable[[], Reader]
    default_port: int
    takes_ids: bool
    flush_path: str


def _sampling(settings: BodySettings) -> dict[str, Any]:
    sampling: dict[str, Any] = {"temperature": settings.temperature}
    if settings.top_p != 1.0:
        sampling["top_p"] = settings.top_p
    if settings.ignore_eos:
        sampling["ignore_eos"] = True
    return sampling


def native_body(request: Request, settings: BodySettings) -> dict[str, Any]:
    """The body of `/generate`."""
    prompt_key = "text" if isinstance(request.prompt, str) else "input_ids"
    sampling = {**_sampling(settings), "max_new_tokens": request.output_tokens}
    return {prompt_key: request.prompt, "sampling_params": sampling, "stream": settings.stream}


def _openai_body(settings: BodySettings) -> dict[str, Any]:
    body = {"model": settings.model, **_sampling(settings), "stream": settings.stream}
    if settings.stream:
        body["stream_options"] = {"include_usage": True}
    return body


def completions_body(request: Request, settings: BodySettings) -> dict[str, Any]:
    """The body of `/v1/completions`. Usage is asked for, so that lengths and cache hits are reported, not assumed."""
    return {**_openai_body(settings), "prompt": request.prompt, "max_tokens": request.output_tokens}


def chat_body(request: Request, settings: BodySettings) -> dict[str, Any]:
    """The body of `/v1/chat/completions`: the prompt is one user message."""
    messages = [{"role": "user", "content": request.prompt}]
    return {**_openai_body(settings), "messages": messages, "max_completion_tokens": request.output_tokens}


_NATIVE = Backend("/generate", native_body, NativeReader, 30000, True, "/flush_cache?timeout={timeout_s:g}")
_SGLANG_OAI = Backend("/v1/completions", completions_body, OpenAiReader, 30000, True, _NATIVE.flush_path)
_SGLANG_CHAT = Backend("/v1/chat/completions", chat_body, OpenAiReader, 30000, False, _NATIVE.flush_path)

BACKENDS = {
    "sglang": _NATIVE,
    "sglang-native": _NATIVE,
    "sglang-oai": _SGLANG_OAI,
    "sglang-oai-chat": _SGLANG_CHAT,
    "vllm": Backend("/v1/completions", completions_body, OpenAiReader, 8000, True, "/reset_prefix_cache"),
    # Port 30000 for vllm-chat is SGLang's own default; command lines written for it rely on it.
    "vllm-chat": Backend("/v1/chat/completions", chat_body, OpenAiReader, 30000, False, "/reset_prefix_cache"),
}


def backend_named(name: str) -> Backend:
    """The row called `name`; ConfigError names the known ones when there is none."""
    backend = BACKENDS.get(name)
    if backend is None:
        raise ConfigError(f"unknown backend {name!r}; known: {', '.join(BACKENDS)}")
    return backend


def encode_body(backend: Backend, request: Request, settings: BodySettings) -> bytes:
    """The JSON body of one request, with the extra fields merged in: mappings key by key, anything else replaced."""
    body = backend.body(request, settings)
    for key, value in settings.extra.items():
        old = body.get(key)
        body[key] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
    return msgspec.json.encode(body)

"""The APIs that can be measured, one row each: route, body, reader, defaults. Knows nothing of time or sockets."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from radixlm.base.errors import ConfigError
from radixlm.benchmark.outcome import Request
from radixlm.benchmark.readers import EmbeddingReader, NativeReader, OpenAiReader, Reader


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
    """One row.

    `takes_ids`: prompts may be sent as token ids. `flush_path`: POST here empties the prefix cache. `lora_key`: the
    body's field that names an adapter. `generates`: answers are text; the others' are whole and count no tokens.
    """

    path: str
    body: Callable[[Request, BodySettings], dict[str, Any]]
    reader: Callable[[], Reader]
    default_port: int
    takes_ids: bool
    flush_path: str
    lora_key: str = "model"
    generates: bool = True

    @property
    def chat(self) -> bool:
        """Whether the server gets messages and applies its chat template."""
        return self.body is chat_body

    @property
    def native(self) -> bool:
        """Whether it is /generate."""
        return self.body is native_body


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


def messages_of(prompt: str | list[Any]) -> list[Any]:
    """The chat messages of a prompt: itself, or text as one user message."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


def chat_body(request: Request, settings: BodySettings) -> dict[str, Any]:
    """The body of `/v1/chat/completions`."""
    body = {**_openai_body(settings), "messages": messages_of(request.prompt)}
    return {**body, "max_completion_tokens": request.output_tokens}


def embedding_body(request: Request, settings: BodySettings) -> dict[str, Any]:
    """The body of `/v1/embeddings`."""
    return {"model": settings.model, "input": request.prompt}


FLUSH = "/flush_cache?timeout={timeout_s:g}"
FLUSH_VLLM = "/reset_prefix_cache"
COMPLETIONS = ("/v1/completions", completions_body, OpenAiReader)
CHAT = ("/v1/chat/completions", chat_body, OpenAiReader)
EMBEDDINGS = ("/v1/embeddings", embedding_body, EmbeddingReader)
_NATIVE = Backend("/generate", native_body, NativeReader, 30000, True, FLUSH, lora_key="lora_path")

# Port 30000 where another is the engine's own default is SGLang's: command lines written for it rely on it.
BACKENDS = {
    "sglang": _NATIVE,
    "sglang-native": _NATIVE,
    "sglang-oai": Backend(*COMPLETIONS, 30000, True, FLUSH),
    "sglang-oai-chat": Backend(*CHAT, 30000, False, FLUSH),
    "sglang-embedding": Backend(*EMBEDDINGS, 30000, True, FLUSH, generates=False),
    "vllm": Backend(*COMPLETIONS, 8000, True, FLUSH_VLLM),
    "vllm-chat": Backend(*CHAT, 30000, False, FLUSH_VLLM),
    "vllm-embedding": Backend(*EMBEDDINGS, 8000, True, FLUSH_VLLM, generates=False),
    "lmdeploy": Backend(*COMPLETIONS, 23333, False, FLUSH),
    "lmdeploy-chat": Backend(*CHAT, 30000, False, FLUSH),
}


def backend_named(name: str) -> Backend:
    """The row called `name`; ConfigError names the known ones when there is none."""
    backend = BACKENDS.get(name)
    if backend is None:
        raise ConfigError(f"unknown backend {name!r}; known: {', '.join(BACKENDS)}")
    return backend


def encode_body(backend: Backend, request: Request, settings: BodySettings) -> bytes:
    """The JSON body of one request, with the extra fields merged in: mappings key by key, anything else replaced.

    What the dataset says of a request wins over what the run says of all.
    """
    body = backend.body(request, settings)
    for key, value in (*settings.extra.items(), *request.extra.items()):
        old = body.get(key)
        body[key] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
    return msgspec.json.encode(body)


def continued(backend: Backend, before: Request, answer: str, turn: Request) -> Request:
    """`turn` with what was said before it: the earlier request as it was sent, and its answer."""
    if backend.chat:
        said = {"role": "assistant", "content": answer}
        prompt: Any = [*messages_of(before.prompt), said, *messages_of(turn.prompt)]
    else:
        prompt = f"{before.prompt}{answer}{turn.prompt}"
    return msgspec.structs.replace(turn, prompt=prompt)

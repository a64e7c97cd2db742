"""The bodies of Ollama's /api/chat and /api/generate, and their options as sampling parameters. Knows no answer."""

from typing import Any

import msgspec

from radixlm.base.errors import RequestError
from radixlm.server.conversation import Conversation, template_kwargs, thinking_kwargs
from radixlm.server.formats import ANY_OBJECT, json_text
from radixlm.server.refused import Refusals, Refused
from radixlm.server.services import Services
from radixlm.server.tooling import tool_use

DEFAULT_NUM_PREDICT = 2048
# Options that are handed on: name here -> native name.
OPTION_NAMES = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "repeat_penalty": "repetition_penalty",
    "stop": "stop",
    "seed": "sampling_seed",
}
NAMES = {native: f"options.{name}" for name, native in OPTION_NAMES.items()} | {
    "max_new_tokens": "options.num_predict",
}


class Body(msgspec.Struct, kw_only=True, frozen=True):
    """The fields of both. Streams unless told not to. `keep_alive` and unknown keys are ignored."""

    model: str | None = None
    stream: bool | None = None
    options: dict[str, Any] | None = None
    format: str | dict[str, Any] | None = None
    think: bool | str | None = None

    @property
    def streams(self) -> bool:
        return self.stream is not False


class ChatBody(Body, kw_only=True, frozen=True):
    """/api/chat."""

    messages: list[dict[str, Any]]
    tools: list[Any] | None = None


class GenerateBody(Body, kw_only=True, frozen=True):
    """/api/generate. The prompt is continued as it is, without the model's template, as in SGLang."""

    prompt: str | None = None
    system: str | None = None


CHAT_REFUSED = Refusals([Refused("logprobs")])
GENERATE_REFUSED = Refusals([Refused(name) for name in ("images", "suffix", "template", "logprobs")])


def sampling_params(body: Body) -> dict[str, Any]:
    """The options under their native names; those this server does not know are ignored, as in SGLang.

    num_predict below 0 means until the context ends, top_k 0 means all.
    """
    options = body.options or {}
    limit = options.get("num_predict")
    if limit is None:
        limit = DEFAULT_NUM_PREDICT
    params: dict[str, Any] = {"max_new_tokens": None if isinstance(limit, int) and limit < 0 else limit}
    for name, native in OPTION_NAMES.items():
        if options.get(name) is not None:
            params[native] = options[name]
    if params.get("top_k") == 0:
        params["top_k"] = -1
    if body.format:
        params["json_schema"] = _schema(body.format)
    return params


def _schema(asked: str | dict[str, Any]) -> str:
    if isinstance(asked, dict):
        return json_text(asked)
    if asked != "json":
        raise RequestError(f"format must be 'json' or a JSON schema, not {asked!r}", "format")
    return ANY_OBJECT


def conversation_of(services: Services, body: ChatBody) -> Conversation:
    """The messages and tools as the template takes them. RequestError when they hold pictures."""
    for index, message in enumerate(body.messages):
        if message.get("images"):
            raise RequestError(f"messages[{index}].images: this model takes text only", f"messages[{index}].images")
    messages = [{key: value for key, value in message.items() if key != "images"} for message in body.messages]
    kwargs = template_kwargs(None, body.think if isinstance(body.think, str) else None)
    if isinstance(body.think, bool):
        kwargs = thinking_kwargs(body.think)
    return Conversation(messages=messages, kwargs=kwargs, tools=tool_use(services, body.tools))


def prompt_of(body: GenerateBody) -> str:
    """The system text, a blank line, and the prompt."""
    return f"{body.system}\n\n{body.prompt or ''}" if body.system else body.prompt or ""

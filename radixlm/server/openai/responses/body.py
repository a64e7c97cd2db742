"""The body of /v1/responses and the conversation in it. Knows OpenAI's input items; no answer, no store."""

from collections.abc import Sequence
from typing import Any

from radixlm.base.errors import RequestError
from radixlm.protocol.extras import OUTPUTS_ONLY, LogprobOptions
from radixlm.server.conversation import template_kwargs
from radixlm.server.formats import ANY_OBJECT, json_text
from radixlm.server.limits import MAX_CHAT_TOP_LOGPROBS
from radixlm.server.openai.common import CommonBody, sampling_of
from radixlm.server.readings import check_top
from radixlm.server.refused import Refusals, Refused
from radixlm.server.services import Services
from radixlm.server.tooling import ToolUse, tool_use

DEFAULT_TEMPERATURE = 0.7  # SGLang's, where neither the request nor generation_config.json has one
LOGPROBS = "message.output_text.logprobs"


class ResponsesBody(CommonBody, kw_only=True, frozen=True):
    """The fields of /v1/responses that work; `n` and `rid` of the common ones are not among them."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    previous_response_id: str | None = None
    background: bool | None = None
    store: bool | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    include: list[str] | None = None
    metadata: dict[str, Any] | None = None
    truncation: str | None = None
    user: str | None = None
    request_id: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    top_logprobs: int | None = None


REFUSED = Refusals(
    [
        Refused("n", (1,)),
        *(Refused(name) for name in ("conversation", "prompt", "lora_path", "session_id", "max_tool_calls")),
        *(Refused(name) for name in ("bootstrap_host", "bootstrap_port", "bootstrap_room")),
    ]
)


def refuse_unsupported(body: ResponsesBody) -> None:
    """RequestError for what cannot be honoured."""
    if body.background and body.stream:
        raise RequestError("background and stream cannot be combined", "background")
    if body.max_output_tokens is not None and body.max_output_tokens < 1:
        raise RequestError("max_output_tokens must be at least 1", "max_output_tokens")


def logprobs_of(body: ResponsesBody) -> LogprobOptions | None:
    """`top_logprobs` means nothing unless log probabilities are included."""
    if LOGPROBS not in (body.include or ()):
        return None
    top = body.top_logprobs or 0
    check_top(top, "top_logprobs", MAX_CHAT_TOP_LOGPROBS)
    return LogprobOptions(OUTPUTS_ONLY, top)


def sampling_params(body: ResponsesBody, services: Services) -> dict[str, Any]:
    """Sampling parameters under their native names."""
    params = sampling_of(body) | {"max_new_tokens": body.max_output_tokens} | _format(body.text)
    defaults = services.manager.card.generation if services.sampling_defaults == "model" else None
    if "temperature" not in params and (defaults is None or defaults.temperature is None):
        params["temperature"] = DEFAULT_TEMPERATURE
    return params


def _format(text: dict[str, Any] | None) -> dict[str, Any]:
    asked = (text or {}).get("format") or {"type": "text"}
    kind = asked.get("type") if isinstance(asked, dict) else None
    if kind == "text":
        return {}
    if kind == "json_object":
        return {"json_schema": ANY_OBJECT}
    schema = asked.get("schema") if kind == "json_schema" else None
    if not isinstance(schema, dict):
        raise RequestError("text.format must be text, json_object, or json_schema with a schema", "text.format")
    return {"json_schema": json_text(schema)}


def kwargs_of(body: ResponsesBody) -> dict[str, Any]:
    """The template's variables."""
    effort = (body.reasoning or {}).get("effort")
    return template_kwargs(body.chat_template_kwargs, effort)


def tools_of(body: ResponsesBody, services: Services) -> ToolUse | None:
    """The function tools, which this route writes flat where chat nests them. RequestError for other kinds."""
    nested: list[dict[str, Any]] = []
    for index, tool in enumerate(body.tools or ()):
        if tool.get("type") != "function":
            raise RequestError(f"tools[{index}] has type {tool.get('type')!r}; only functions are supported", "tools")
        named = {key: tool[key] for key in ("name", "description", "parameters", "strict") if tool.get(key) is not None}
        nested.append({"type": "function", "function": named})
    choice = body.tool_choice
    if isinstance(choice, dict) and choice.get("type") == "function":
        choice = {"type": "function", "function": {"name": choice.get("name")}}
    return tool_use(services, nested, choice, body.parallel_tool_calls)


def turns_of(items: str | Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The input as chat messages. RequestError names the item that cannot be used."""
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    turns: list[dict[str, Any]] = []
    for index, item in enumerate(items):
        where = f"input[{index}]"
        kind = item.get("type", "message")
        if kind == "message":
            turns.append(_message(item, where))
        elif kind == "function_call":
            _add_call(turns, item, where)
        elif kind == "function_call_output":
            output = item.get("output")
            text = output if isinstance(output, str) else _text(output, where)
            turns.append({"role": "tool", "tool_call_id": str(item.get("call_id", "")), "content": text})
        elif kind != "reasoning":  # earlier thoughts are not shown to the model again
            raise RequestError(f"{where} has type {kind!r}, which is not supported", where)
    return turns


def _message(item: dict[str, Any], where: str) -> dict[str, Any]:
    role = item.get("role")
    if role not in ("user", "assistant", "system", "developer"):
        raise RequestError(f"{where}.role must be user, assistant, system or developer", f"{where}.role")
    return {"role": "system" if role == "developer" else role, "content": _text(item.get("content"), where)}


def _add_call(turns: list[dict[str, Any]], item: dict[str, Any], where: str) -> None:
    """Calls of one turn follow each other; they belong to the assistant's message before them."""
    name, arguments = item.get("name"), item.get("arguments", "{}")
    if not isinstance(name, str) or not isinstance(arguments, str):
        raise RequestError(f"{where}: a function_call needs a name and arguments as text", where)
    if not turns or turns[-1]["role"] != "assistant":
        turns.append({"role": "assistant", "content": ""})
    function = {"name": name, "arguments": arguments}
    call = {"id": str(item.get("call_id", "")), "type": "function", "function": function}
    turns[-1] = {**turns[-1], "tool_calls": [*turns[-1].get("tool_calls", []), call]}


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"{where}.content must be a string or a list of parts", f"{where}.content")
    texts: list[str] = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("text") if kind in ("input_text", "output_text", "text") else None
        if not isinstance(text, str):
            message = f"{where}.content[{index}] has type {kind!r}; this model takes text only"
            raise RequestError(message, f"{where}.content[{index}]")
        texts.append(text)
    return "\n".join(texts)

"""The body of /v1/messages and the conversation in it. Knows Anthropic's shapes; no answer, no HTTP."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from radixlm.base.errors import RequestError
from radixlm.server.conversation import Conversation, template_kwargs, thinking_kwargs
from radixlm.server.services import Services
from radixlm.server.tooling import ToolUse, tool_use

MIN_BUDGET_TOKENS = 1024
_EFFORTS = {"xhigh": "max"}  # Anthropic's name to the template's, where they differ
_SERVER_TOOL = re.compile(r"(web_search|web_fetch|code_execution|computer|bash|text_editor|memory)_\d+$")

Blocks = str | list[dict[str, Any]]


class Message(msgspec.Struct, frozen=True):
    """One turn; `content` is text or a list of blocks."""

    role: str
    content: Blocks


class Thinking(msgspec.Struct, frozen=True):
    """`budget_tokens` is checked but not enforced, as in SGLang."""

    type: str
    budget_tokens: int | None = None


class CountBody(msgspec.Struct, kw_only=True, frozen=True):
    """What /v1/messages/count_tokens reads. Unknown keys are ignored."""

    model: str | None = None
    messages: list[Message]
    system: Blocks | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: Thinking | None = None
    output_config: dict[str, Any] | None = None


class MessagesBody(CountBody, kw_only=True, frozen=True):
    """What /v1/messages reads."""

    max_tokens: int
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None


def conversation_of(services: Services, body: CountBody) -> Conversation:
    """The messages and tools in OpenAI's shape. RequestError names the block that cannot be used.

    A last message of the assistant is the beginning of the answer, as Anthropic defines it.
    """
    messages: list[dict[str, Any]] = []
    if body.system:
        messages.append({"role": "system", "content": _text(body.system, "system")})
    for index, message in enumerate(body.messages):
        messages += _turns(message, f"messages[{index}]")
    continues = bool(body.messages) and body.messages[-1].role == "assistant" and "tool_calls" not in messages[-1]
    kwargs = _kwargs(services, body)
    return Conversation(messages=messages, kwargs=kwargs, continues=continues, tools=_tools(services, body))


def _tools(services: Services, body: CountBody) -> ToolUse | None:
    """The tools a model can be told of; those that Anthropic runs itself are passed over, as in SGLang."""
    tools = [_function(tool) for tool in body.tools or () if _SERVER_TOOL.match(str(tool.get("type", ""))) is None]
    asked = body.tool_choice or {}
    kind = asked.get("type", "auto" if tools else "none")
    if kind not in ("auto", "any", "tool", "none"):
        raise RequestError(f"tool_choice.type {kind!r} is none of auto, any, tool, none", "tool_choice")
    choice: str | dict[str, Any] = "required" if kind == "any" else kind
    if kind == "tool":
        choice = {"type": "function", "function": {"name": asked.get("name")}}
    return tool_use(services, tools, choice, not asked.get("disable_parallel_tool_use"))


def _function(tool: Mapping[str, Any]) -> dict[str, Any]:
    named = {"name": tool.get("name"), "description": tool.get("description"), "parameters": tool.get("input_schema")}
    return {"type": "function", "function": {key: value for key, value in named.items() if value is not None}}


def _kwargs(services: Services, body: CountBody) -> dict[str, Any]:
    effort = (body.output_config or {}).get("effort")
    kwargs = template_kwargs(None, _EFFORTS.get(effort, effort) if isinstance(effort, str) else effort)
    if body.thinking is None:
        return kwargs
    kind = body.thinking.type
    if kind not in ("enabled", "disabled", "adaptive"):
        raise RequestError(f"thinking.type {kind!r} is none of enabled, disabled, adaptive", "thinking")
    if kind == "enabled" and (body.thinking.budget_tokens or 0) < MIN_BUDGET_TOKENS:
        raise RequestError(
            f"thinking.budget_tokens must be at least {MIN_BUDGET_TOKENS} with thinking.type enabled", "thinking"
        )
    if kind == "enabled" and services.reasoning_parser is None:
        raise RequestError("thinking needs a server that tells thinking apart: --reasoning-parser", "thinking")
    return kwargs | thinking_kwargs(kind != "disabled")


def _turns(message: Message, where: str) -> list[dict[str, Any]]:
    if message.role == "assistant":
        return [_assistant_turn(message.content, where)]
    if message.role == "user":
        return _user_turns(message.content, where)
    if message.role == "system":
        return [{"role": "system", "content": _text(message.content, where)}]
    raise RequestError(f"{where}.role must be user, assistant or system", f"{where}.role")


def _user_turns(content: Blocks, where: str) -> list[dict[str, Any]]:
    """Results of tools come first, each a turn of its own, then what the user says."""
    if isinstance(content, str):
        return [{"role": "user", "content": content}]
    results = [block for block in content if block.get("type") == "tool_result"]
    turns = [_tool_turn(block, where) for block in results]
    said = [block for block in content if block.get("type") != "tool_result"]
    return [*turns, {"role": "user", "content": _text(said, where)}] if said or not turns else turns


def _tool_turn(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    name = block.get("tool_use_id")
    if not isinstance(name, str):
        raise RequestError(f"{where}: a tool_result needs a tool_use_id", where)
    return {"role": "tool", "tool_call_id": name, "content": _text(block.get("content") or "", where)}


def _assistant_turn(content: Blocks, where: str) -> dict[str, Any]:
    if isinstance(content, str):
        return {"role": "assistant", "content": content}
    calls = [_call(block, where) for block in content if block.get("type") == "tool_use"]
    thoughts = [str(block.get("thinking", "")) for block in content if block.get("type") == "thinking"]
    said = [block for block in content if block.get("type") not in ("tool_use", "thinking")]
    turn: dict[str, Any] = {"role": "assistant", "content": _text(said, where)}
    if thoughts:
        turn["reasoning_content"] = "".join(thoughts)
    if calls:
        turn["tool_calls"] = calls
    return turn


def _call(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    name, arguments = block.get("name"), block.get("input", {})
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise RequestError(f"{where}: a tool_use needs a name and an input object", where)
    function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"id": str(block.get("id", "")), "type": "function", "function": function}


def _text(content: Blocks | Sequence[Mapping[str, Any]], where: str) -> str:
    """The text of blocks that are text; RequestError names any other."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"{where}: content must be a string or a list of blocks", where)
    texts: list[str] = []
    for index, block in enumerate(content):
        kind = block.get("type") if isinstance(block, dict) else None
        text = block.get("text") if kind == "text" else None
        if kind == "search_result":
            text = f"{block.get('title', '')}\n{_text(block.get('content', []), where)}"
        if not isinstance(text, str):
            raise RequestError(
                f"{where}: block {index} of type {kind!r} is not supported; this model takes text", where
            )
        texts.append(text)
    return "\n".join(texts)

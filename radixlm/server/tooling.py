"""A request's tools, checked: what the template shows of them and what the parsers know. Knows no route, no answer."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from radixlm.base.errors import RequestError
from radixlm.parsers.constraint import WORDS, Constraint, constraint_of, is_strict
from radixlm.parsers.tools.table import TOOL_CALLS
from radixlm.parsers.tools.toolbox import Tool, Toolbox
from radixlm.server.services import Services

MAX_TOOLS = 1024
_NAME = re.compile(r"[^\s\"'<>{}()\[\]`]{1,256}")


@dataclass(frozen=True)
class ToolUse:
    """Functions that the model may call. `shown` is what its template is given, `demand` what a grammar makes sure of.

    `forced`: the model must call.
    """

    toolbox: Toolbox
    shown: list[dict[str, Any]]
    demand: Constraint | None = None
    forced: bool = False


def tool_use(services: Services, tools: Any, tool_choice: Any = None, parallel: bool | None = None) -> ToolUse | None:
    """The tools of a request in OpenAI's form, or None when the model is to see none.

    RequestError names what is wrong, and refuses what no grammar can guarantee.
    """
    toolbox = toolbox_of(tools)
    checked = toolbox.tools
    choice = _choice(tool_choice, checked)
    if choice == "none" or not checked:
        return None
    form = None if services.tool_call_parser is None else TOOL_CALLS.load(services.tool_call_parser)
    demand = constraint_of(checked, choice, parallel is not False, form)
    strict = is_strict(checked)
    if choice == "auto" and strict is not None and demand is None:
        field = f"tools[{strict}].function.strict"
        message = (
            f"{field} cannot be enforced under tool_choice auto: this server's --tool-call-parser is "
            f"{services.tool_call_parser or 'unset'}, whose calls have no fixed frame; use required or a named function"
        )
        raise RequestError(message, field)
    forced = choice != "auto"
    shown = tools if choice in WORDS else [tool for tool in tools if tool["function"]["name"] == choice]
    return ToolUse(toolbox, shown, demand, forced)


def toolbox_of(tools: Any) -> Toolbox:
    """Tools in OpenAI's form, whether or not they may be called. RequestError names what is wrong."""
    if tools is not None and (not isinstance(tools, list) or len(tools) > MAX_TOOLS):
        raise RequestError(f"tools must be a list of at most {MAX_TOOLS}", "tools")
    return Toolbox([_tool(index, tool) for index, tool in enumerate(tools or [])])


def _tool(index: int, tool: Any) -> Tool:
    where = f"tools[{index}]"
    if not isinstance(tool, Mapping) or tool.get("type", "function") != "function":
        raise RequestError(f"{where} must be an object of type function", where)
    function = tool.get("function")
    if not isinstance(function, Mapping):
        raise RequestError(f"{where}.function must be an object", f"{where}.function")
    where = f"{where}.function"
    name, parameters = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        message = f"{where}.name must be a name of 1 to 256 characters without spaces, brackets or quotes"
        raise RequestError(message, f"{where}.name")
    if not isinstance(function.get("description"), str | None):
        raise RequestError(f"{where}.description must be a string", f"{where}.description")
    if not isinstance(function.get("strict"), bool | None):
        raise RequestError(f"{where}.strict must be true or false", f"{where}.strict")
    if parameters is not None and not (
        isinstance(parameters, Mapping)
        and isinstance(parameters.get("properties", {}), Mapping)
        and parameters.get("type", "object") == "object"
    ):
        raise RequestError(f"{where}.parameters must be a JSON schema of an object", f"{where}.parameters")
    return Tool(name, function.get("description"), parameters or {}, bool(function.get("strict")))


def _choice(given: Any, tools: Sequence[Tool]) -> str:
    """ "none", "auto", "required", or the name of the one function to call."""
    if given is None:
        return "auto" if tools else "none"
    if isinstance(given, str) and given in WORDS:
        if given == "required" and not tools:
            raise RequestError("tool_choice required needs tools", "tool_choice")
        return given
    function = given.get("function") if isinstance(given, Mapping) and given.get("type") == "function" else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        allowed = f"{', '.join(WORDS)}, or an object that names a function"
        raise RequestError(f"tool_choice must be one of {allowed}", "tool_choice")
    if all(tool.name != name for tool in tools):
        raise RequestError(f"Tool '{name}' not found in tools list.", "tool_choice")
    return name

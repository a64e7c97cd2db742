"""Chat messages to prompt text with the model's Jinja template, sandboxed. Knows no ids and no request route."""

import json
import re
import time
from collections.abc import Mapping, Sized
from datetime import datetime
from functools import reduce
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from radixlm.base.errors import ConfigError, ModelError, RequestError
from radixlm.loader.tokenizer import Tokenizer

_PROBE = "RADIXLM-PROBE"
_PROBED_ROLES = ("system", "user", "assistant")
ROLES = ("system", "developer", "user", "assistant", "tool", "function", "latest_reminder")
RENDER_LIMIT_S = 10.0  # a template that takes longer than this is stopped
PROBE_LIMIT_S = 1.0  # the same for each of the few renderings by which a template is looked at, at start
MOST_MADE, MOST_BITS = 1 << 26, 1 << 14  # what an operator may make: characters or items; bits of a whole number
_DEADLINE = "_radixlm_deadline_s"  # the variable in which a rendering finds when it must have ended (monotonic)


class RenderTimeout(RequestError):
    """The template takes longer than it was allowed."""


class ChatTemplate:
    """A model's compiled chat templates. Rendering is CPU work: long histories belong on a thread.

    Whether a role's content may be a list of parts is found by trying: a template that shows a text part as its
    plain text gets lists, the others get the parts' text joined with a space. A template that does not show what a
    developer says is given it as the system's.

    Attributes:
        source: the templates' text.
    """

    def __init__(
        self,
        templates: Mapping[str, str],
        special_tokens: Mapping[str, str],
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        """Compile `templates` (by name, "default" must be there). ModelError when one has a syntax error.

        `defaults`: variables that every rendering has unless it brings its own.
        """
        environment = _environment()
        self._variables = {**special_tokens, **(defaults or {})}
        try:
            self._compiled = {
                name: environment.from_string(_watched(environment.parse(text))) for name, text in templates.items()
            }
        except jinja2.TemplateSyntaxError as error:
            raise ModelError(f"the chat template has a syntax error in line {error.lineno}: {error.message}") from error
        self.source = "\n".join(templates.values())
        self._takes_parts = {role: self._renders_parts(role) for role in _PROBED_ROLES}
        self._knows_developer = self._shows({"role": "developer", "content": _PROBE})

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        limit_s: float | None = None,
        **kwargs: Any,
    ) -> str:
        """The prompt text of a chat; it holds its own special tokens, so encode it without adding any.

        With `continue_final_message` the last message, of the assistant, is the beginning of the answer: its text
        follows the generation prompt. Without it such a message, if it is a plain string, is turned into a user's, as
        SGLang does, when an answer is asked for. `kwargs` are variables for the template. RequestError names the
        message that cannot be used; RenderTimeout when rendering takes longer than `limit_s`, RENDER_LIMIT_S for None.
        """
        history = [_checked(index, message) for index, message in enumerate(messages)]
        if not history:
            raise RequestError("messages must not be empty", "messages")
        beginning = ""
        last = history[-1]
        if continue_final_message:
            if last["role"] != "assistant" or last.get("tool_calls"):
                message = "continue_final_message needs a last message of the assistant, without tool calls"
                raise RequestError(message, "continue_final_message")
            beginning = text_of(history.pop()["content"])
        elif add_generation_prompt and _is_said_by_assistant(last):
            history[-1] = {**last, "role": "user"}
        history = [self._fitted(message) for message in history]
        compiled = self._compiled["default"]
        if tools:
            compiled = self._compiled.get("tool_use", compiled)
        variables = {**self._variables, **kwargs, "add_generation_prompt": add_generation_prompt}
        return _render(compiled, history, tools, variables, limit_s) + beginning

    def _fitted(self, message: dict[str, Any]) -> dict[str, Any]:
        if message["role"] == "developer" and not self._knows_developer:
            message = {**message, "role": "system"}
        if isinstance(message["content"], str) or self._takes_parts.get(message["role"], False):
            return message
        return {**message, "content": text_of(message["content"])}

    def _renders_parts(self, role: str) -> bool:
        return self._shows({"role": role, "content": [{"type": "text", "text": _PROBE}]})

    def _shows(self, probe: dict[str, Any]) -> bool:
        """Whether the probe's text, and nothing of how it is wrapped, is in a prompt that has it as a message."""
        turn = {"role": "user", "content": "x"}
        history = {"user": [probe], "assistant": [turn, probe, turn]}.get(probe["role"], [probe, turn])
        variables = {**self._variables, "add_generation_prompt": True}
        try:
            text = _render(self._compiled["default"], history, None, variables, PROBE_LIMIT_S)
        except Exception:  # whatever a template does with a value that it was not made for
            return False
        return _PROBE in text and "'text'" not in text and '"text"' not in text


def _is_said_by_assistant(message: Mapping[str, Any]) -> bool:
    return message["role"] == "assistant" and isinstance(message["content"], str) and not message.get("tool_calls")


def text_of(content: str | list[dict[str, Any]] | None) -> str:
    """A message's content as one text; parts are joined with a space."""
    if content is None or isinstance(content, str):
        return content or ""
    return " ".join(part["text"] for part in content)


def built_in_templates() -> dict[str, Path]:
    """The files that --chat-template knows by name."""
    return {path.stem: path for path in sorted((Path(__file__).parent / "templates").glob("*.jinja"))}


def load_chat_template(
    tokenizer: Tokenizer, override: str | None = None, defaults: Mapping[str, Any] | None = None
) -> ChatTemplate | None:
    """The model's template, or the one that `override` names (--chat-template: a file, or one of ours); None when
    there is neither."""
    if override is None:
        templates = tokenizer.chat_templates
        return ChatTemplate(templates, tokenizer.special_tokens, defaults) if "default" in templates else None
    path = Path(override).expanduser()
    if not path.is_file():
        known = built_in_templates()
        if override not in known:
            names = ", ".join(known)
            raise ConfigError(f"--chat-template {override}: there is no such file, and it is none of {names}")
        path = known[override]
    try:
        return ChatTemplate({"default": path.read_text("utf-8")}, tokenizer.special_tokens, defaults)
    except (ModelError, ValueError, OSError) as error:
        raise ConfigError(f"--chat-template {override}: {error}") from error


def _checked(index: int, message: Any) -> dict[str, Any]:
    """A copy that templates can use: known types, no nulls, arguments of tool calls as objects."""
    where = f"messages[{index}]"
    if not isinstance(message, dict):
        raise RequestError(f"{where} must be an object", where)
    role = message.get("role")
    if not isinstance(role, str) or role.lower() not in ROLES:
        raise RequestError(f"{where}.role must be one of {', '.join(ROLES)}, not {role!r:.40}", f"{where}.role")
    checked = {key: value for key, value in message.items() if value is not None}
    checked["role"] = role.lower()
    content = message.get("content")
    if checked["role"] == "assistant" and isinstance(content, list):
        thoughts, content = _without_thoughts(content)
        if thoughts:
            checked.setdefault("reasoning_content", thoughts)
    if content is None and checked["role"] != "assistant":
        raise RequestError(f"{where}.content is missing", f"{where}.content")
    checked["content"] = _checked_content(content, f"{where}.content")
    if "tool_calls" in checked:
        checked["tool_calls"] = _checked_tool_calls(checked["tool_calls"], f"{where}.tool_calls")
    return checked


def _without_thoughts(parts: list[Any]) -> tuple[str, list[Any]]:
    """An assistant's parts of type thinking or reasoning, joined, and the other parts."""
    thoughts: list[str] = []
    others: list[Any] = []
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get(kind, part.get("text")) if kind in ("thinking", "reasoning") else None
        if isinstance(text, str):
            thoughts.append(text)
        else:
            others.append(part)
    return "".join(thoughts), others


def _checked_content(content: Any, where: str) -> str | list[dict[str, Any]]:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"{where} must be a string or a list of parts", where)
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            raise RequestError(f"{where}[{index}] has type {kind!r}; this model takes text only", f"{where}[{index}]")
        if not isinstance(part.get("text"), str):
            raise RequestError(f"{where}[{index}].text must be a string", f"{where}[{index}].text")
    return content


def _checked_tool_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise RequestError(f"{where} must be a list", where)
    checked = []
    for index, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise RequestError(f"{where}[{index}].function must have a name", f"{where}[{index}].function")
        arguments = _checked_arguments(function.get("arguments"), f"{where}[{index}].function.arguments")
        checked.append({**call, "function": {**function, "arguments": arguments}})
    return checked


def _checked_arguments(arguments: Any, where: str) -> dict[str, Any]:
    """The arguments of an earlier call as an object: text is JSON, and none at all are none."""
    if isinstance(arguments, str) and arguments.strip():
        try:
            arguments = json.loads(arguments)
        except ValueError as error:
            raise RequestError(f"{where} is not valid JSON: {error}", where) from error
        except RecursionError:
            raise RequestError(f"{where} is nested too deeply", where) from None
    if arguments is None or isinstance(arguments, str):
        return {}
    if not isinstance(arguments, dict):
        raise RequestError(f"{where} must be a JSON object", where)
    return arguments


def _render(
    compiled: jinja2.Template,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
    variables: Mapping[str, Any],
    limit_s: float | None = None,
) -> str:
    """Render; with tools a second try gives the template bare function objects, which some expect."""
    forms = [tools or None]
    if tools and all(isinstance(tool.get("function"), dict) for tool in tools):
        forms.append([tool["function"] for tool in tools])
    failure = ""
    limit_s = RENDER_LIMIT_S if limit_s is None else limit_s
    until = {_DEADLINE: time.monotonic() + limit_s}
    for form in forms:
        try:
            return compiled.render(**{**variables, "messages": messages, "tools": form, **until})
        except _TooLong:
            message = f"the chat template needs more than {limit_s:g} s for these messages"
            raise RenderTimeout(message, "messages") from None
        except Exception as error:  # templates are programs: any error of theirs is about this history
            failure = failure or str(error) or type(error).__name__
    raise RequestError(f"the chat template cannot render these messages: {failure}", "messages")


class _TooLong(Exception):
    """Rendering has used up its time."""


@jinja2.pass_context
def _in_time(context: jinja2.runtime.Context, value: str) -> str:
    """The filter that `_watched` puts where a template may go on for ever."""
    if time.monotonic() > context[_DEADLINE]:
        raise _TooLong
    return value


def _watched(template: nodes.Template) -> nodes.Template:
    """The same template, which looks at the clock in every turn of a loop and every call of a macro, and in which
    every operator can be measured."""
    _Joined().visit(template)
    places: list[nodes.For | nodes.Macro] = [*template.find_all(nodes.For), *template.find_all(nodes.Macro)]
    for node in places:
        look = nodes.Filter(nodes.Const(""), "in_time", [], [], None, None)
        node.body.insert(0, nodes.ExprStmt(look).set_lineno(node.lineno))
    return template


class _Generation(Extension):
    """`{% generation %}` marks the assistant's words in training; for serving its body is plain output."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own convention

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Sandbox(ImmutableSandboxedEnvironment):
    """No operator makes a text, list or number so large that it takes long, or takes the memory."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        numbers = isinstance(left, int) and isinstance(right, int)
        if _size_of(operator, left, right) > (MOST_BITS if numbers else MOST_MADE):
            raise jinja2.TemplateRuntimeError(f"the template makes something too large with {operator}")
        return super().call_binop(context, operator, left, right)


def _size_of(operator: str, left: Any, right: Any) -> float:
    """Of the result, at most: characters, items, or bits."""
    if operator == "%":
        return max((int(width) for width in re.findall(r"\d+", left)), default=0) if isinstance(left, str) else 0
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length(), right.bit_length()
        return bits[0] * abs(right) if operator == "**" else sum(bits)
    sizes = [len(value) for value in (left, right) if isinstance(value, Sized)]
    if operator == "*" and sizes:
        times = next((value for value in (left, right) if isinstance(value, int)), 1)
        return sizes[0] * times
    return sum(sizes)


class _Joined(NodeTransformer):
    """`a ~ b` as the sum of two texts, so that it is measured like one."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:
        self.generic_visit(node)
        texts: list[nodes.Expr] = [nodes.Filter(part, "string", [], [], None, None) for part in node.nodes]
        whole = reduce(nodes.Add, texts)
        whole.set_lineno(node.lineno)
        return whole


def _environment() -> ImmutableSandboxedEnvironment:
    """The environment that chat templates on the hub are written for (transformers' conventions)."""
    environment = _Sandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, loopcontrols],
        optimized=False,  # constants are worked out when they are needed, under the same limits
    )
    environment.filters["tojson"] = _tojson
    environment.filters["in_time"] = _in_time
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _raise_exception(message: str) -> str:
    raise jinja2.TemplateError(message)


def _strftime_now(format_: str) -> str:
    return datetime.now().strftime(format_)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: jinja2's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

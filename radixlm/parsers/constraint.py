"""What tools and tool_choice demand of an answer's text, for a grammar to enforce. Knows no grammar backend."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from radixlm.parsers.tools.base import Frame, ToolFormat
from radixlm.parsers.tools.toolbox import Tool

Choice = Literal["none", "auto", "required"] | str  # any other string is the name of the function to call
WORDS = ("none", "auto", "required")
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True)
class Constraint:
    """A demand on the whole answer.

    Attributes:
        kind: "structural_tag": `value` is a legacy structural tag (structures, triggers, at_least_one), and the
            model's own parser reads the answer. "json_schema": `value` is the schema of a bare array of calls, which
            tools/json_calls.py's JsonArray reads.
    """

    kind: Literal["structural_tag", "json_schema"]
    value: Mapping[str, Any]


def constraint_of(
    tools: Sequence[Tool], choice: Choice, parallel: bool = True, form: ToolFormat | None = None
) -> Constraint | None:
    """The demand that `choice` and strict tools make, or None when the answer is free.

    `choice` is "none", "auto", "required" or a function's name. A format with a fixed frame is constrained in its own
    form, so the model says what it was trained to say; any other, and an answer with one call only, by a JSON schema.
    Under "auto" strict tools without a frame cannot be enforced: the answer is free.
    """
    if choice == "none" or not tools:
        return None
    frame = form.frame if form is not None else None
    if choice == "auto":
        strict = any(tool.strict for tool in tools)
        return _tag(tools, frame, at_least_one=False) if strict and frame is not None else None
    wanted = tools if choice == "required" else [tool for tool in tools if tool.name == choice]
    if frame is not None and parallel:
        return _tag(wanted, frame, at_least_one=True, stop_after_first=choice != "required")
    return Constraint("json_schema", _array(wanted, parallel))


def is_strict(tools: Sequence[Tool]) -> int | None:
    """The index of the first strict tool, or None."""
    return next((index for index, tool in enumerate(tools) if tool.strict), None)


def _tag(tools: Sequence[Tool], frame: Frame, at_least_one: bool, stop_after_first: bool = False) -> Constraint:
    """Calls that are demanded follow their schema, and nothing else is said; where they are not, only strict tools
    bring theirs, and the others take any arguments."""
    structures = [
        {
            "begin": frame.begin.replace("{name}", tool.name),
            "schema": _schema(tool) if tool.strict or at_least_one else {"type": "object"},
            "end": frame.end,
        }
        for tool in tools
    ]
    value = {"structures": structures, "triggers": [frame.trigger], "at_least_one": at_least_one}
    if at_least_one:
        value |= {"tags_only": True, "stop_after_first": stop_after_first}
    return Constraint("structural_tag", value)


def _schema(tool: Tool) -> dict[str, Any]:
    return {"type": "object", **tool.parameters} if tool.parameters else _NO_PARAMETERS


def _array(tools: Sequence[Tool], parallel: bool) -> dict[str, Any]:
    definitions: dict[str, Any] = {}
    items = [_item(tool, definitions) for tool in tools]
    schema: dict[str, Any] = {
        "type": "array",
        "minItems": 1,
        "items": items[0] if len(items) == 1 else {"anyOf": items},
    }
    if not parallel:
        schema["maxItems"] = 1
    if definitions:
        schema["$defs"] = definitions
    return schema


def _item(tool: Tool, definitions: dict[str, Any]) -> dict[str, Any]:
    parameters = dict(tool.parameters or _NO_PARAMETERS)
    for word in ("$defs", "definitions"):
        for name, definition in (parameters.pop(word, None) or {}).items():
            definitions[f"{tool.name}.{name}"] = _moved(definition, tool.name)
    return {
        "type": "object",
        "properties": {"name": {"const": tool.name}, "parameters": _moved(parameters, tool.name)},
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }


def _moved(schema: Any, owner: str) -> Any:
    """A copy whose references to definitions point to where `_item` has put them: at the root, by owner."""
    if isinstance(schema, list):
        return [_moved(item, owner) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    moved = {key: _moved(value, owner) for key, value in schema.items()}
    reference = moved.get("$ref")
    for prefix in ("#/$defs/", "#/definitions/"):
        if isinstance(reference, str) and reference.startswith(prefix):
            moved["$ref"] = f"#/$defs/{owner}.{reference.removeprefix(prefix)}"
    return moved

"""The functions a request offers: their names, and what their schemas say of each parameter. Knows no format."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

KINDS = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
STRING = frozenset({"string"})
_MAX_DEPTH = 16  # of references and combinations inside one parameter's schema
_OF_TYPE: Mapping[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    dict: "object",
    list: "array",
    type(None): "null",
}


@dataclass(frozen=True)
class Tool:
    """One function. `parameters` is its JSON schema, an object; `strict` asks that arguments follow it."""

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    strict: bool = False


class Toolbox:
    """The functions a model may call."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self.tools = tuple(tools)
        self._by_name = {tool.name: tool for tool in tools}

    def knows(self, name: str) -> bool:
        return name in self._by_name

    def kinds(self, function: str, parameter: str) -> frozenset[str]:
        """The JSON types that a parameter may have; all of them when its schema does not say."""
        tool = self._by_name.get(function)
        properties = tool.parameters.get("properties") if tool is not None else None
        schema = properties.get(parameter) if isinstance(properties, Mapping) else None
        return KINDS if tool is None or schema is None else _kinds(schema, tool.parameters, 0) or KINDS


def kind_of(value: Any) -> str:
    """The JSON type of a decoded value."""
    return _OF_TYPE[type(value)]


def _kinds(schema: Any, root: Mapping[str, Any], depth: int) -> frozenset[str]:
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return frozenset()
    if "$ref" in schema:
        return _kinds(_resolve(schema["$ref"], root), root, depth + 1)
    kinds = schema.get("type")
    if isinstance(kinds, str):
        return KINDS & {kinds}
    if isinstance(kinds, list):
        return KINDS & {kind for kind in kinds if isinstance(kind, str)}
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return frozenset(kind_of(value) for value in values if type(value) in _OF_TYPE)
    found: frozenset[str] = frozenset()
    for word in ("anyOf", "oneOf", "allOf"):
        options = schema.get(word)
        for option in options if isinstance(options, list) else ():
            found |= _kinds(option, root, depth + 1)
    return found


def _resolve(reference: Any, root: Mapping[str, Any]) -> Any:
    """What a reference inside the same schema (`#/$defs/x`) points to, or None."""
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    found: Any = root
    for step in reference[2:].split("/"):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found

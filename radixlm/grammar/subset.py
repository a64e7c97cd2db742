"""The part of JSON Schema that XGrammar is known to enforce to the letter; what lies outside is named. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

NOTES = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "$schema"}
)
_DEFINITIONS = ("$defs", "definitions")
_TYPES: Mapping[str, frozenset[str]] = {
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items", "minItems", "maxItems"}),
    "integer": frozenset({"minimum", "maximum"}),
    "string": frozenset(),
    "number": frozenset(),
    "boolean": frozenset(),
    "null": frozenset(),
}
_LARGEST = 2**31
SHOWN_GAPS = 3  # so many are named in a message


def gaps(schema: Any, path: str = "", ignored: frozenset[str] = frozenset()) -> Iterator[str]:
    """What of `schema` XGrammar does not enforce, or not as the standard has it, each with its place.

    `ignored`: words that the backend at hand does not enforce, although XGrammar does.
    """
    if schema is True:
        return
    if not isinstance(schema, Mapping):
        yield f"{path or 'a schema'} that is no object"
        return
    words = schema.keys() - NOTES - set(_DEFINITIONS)
    for name in _DEFINITIONS:
        yield from _of_each(schema.get(name, {}), f"{path}/{name}", ignored)
    if "$ref" in words:
        yield from _alone(words, "$ref", path)
        if not str(schema["$ref"]).startswith("#/"):
            yield f"{path}/$ref to another document"
    elif "anyOf" in words:
        yield from _alone(words, "anyOf", path)
        options = schema["anyOf"]
        for index, option in enumerate(options if isinstance(options, list) else [options]):
            yield from gaps(option, f"{path}/anyOf/{index}", ignored)
    elif "const" in words or "enum" in words:
        yield from _alone(words, "const" if "const" in words else "enum", path)
    elif words:
        yield from _typed(schema, words, path, ignored)


def _typed(schema: Mapping[str, Any], words: set[str], path: str, ignored: frozenset[str]) -> Iterator[str]:
    kind = schema.get("type")
    known = _TYPES.get(kind) if isinstance(kind, str) else None
    if known is None:
        yield f"{path}/type that is not one known type" if "type" in words else f"{path or 'a schema'} without a type"
        return
    for word in sorted(words - (known - ignored) - {"type"}):
        yield f"{path}/{word}"
    for word in ("minimum", "maximum", "minItems", "maxItems"):
        if word in words and not (type(schema[word]) is int and abs(schema[word]) < _LARGEST):
            yield f"{path}/{word} that is no small integer"
    if kind == "object":
        yield from _object(schema, path, ignored)
    if kind == "array" and "items" in words:
        yield from gaps(schema["items"], f"{path}/items", ignored)


def _object(schema: Mapping[str, Any], path: str, ignored: frozenset[str]) -> Iterator[str]:
    properties, more = schema.get("properties", {}), schema.get("additionalProperties", True)
    yield from _of_each(properties, f"{path}/properties", ignored)
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(name in properties for name in required):
        yield f"{path}/required of what is not in properties"
    if not isinstance(more, bool):
        yield from gaps(more, f"{path}/additionalProperties", ignored)
        if properties:
            yield f"{path}/additionalProperties beside properties"


def _of_each(schemas: Any, path: str, ignored: frozenset[str]) -> Iterator[str]:
    if not isinstance(schemas, Mapping):
        yield f"{path} that is no object"
        return
    for name, schema in schemas.items():
        yield from gaps(schema, f"{path}/{name}", ignored)


def _alone(words: set[str], word: str, path: str) -> Iterator[str]:
    for other in sorted(words - {word, "type"}) if word in ("const", "enum") else sorted(words - {word}):
        yield f"{path}/{other} beside {word}"

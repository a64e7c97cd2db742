"""The part of JSON Schema and regular expressions that XGrammar is known to enforce to the letter; what lies outside is
named. Pure."""

import string
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
_PYTHON_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "null": (type(None),),
}
_ESCAPES = frozenset("dDwWsSnrtfvxu") | frozenset(string.punctuation)
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
        if schema["$ref"] == "#":
            yield f"{path}/$ref to the whole schema"
        elif not str(schema["$ref"]).startswith("#/"):
            yield f"{path}/$ref to another document"
    elif "anyOf" in words:
        yield from _alone(words, "anyOf", path)
        options = schema["anyOf"]
        if options == []:
            yield f"{path}/anyOf without branches"
        for index, option in enumerate(options if isinstance(options, list) else [options]):
            yield from gaps(option, f"{path}/anyOf/{index}", ignored)
    elif "const" in words or "enum" in words:
        yield from _alone(words, "const" if "const" in words else "enum", path)
        values = [schema["const"]] if "const" in words else schema["enum"]
        if "type" in words and not all(_is_of(schema["type"], value) for value in values):
            yield f"{path}/type that a value beside it does not have"
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


def _is_of(kind: Any, value: Any) -> bool:
    """Whether a JSON value is of the one type called `kind`."""
    if isinstance(value, bool) or kind == "boolean":
        return isinstance(value, bool) and kind == "boolean"
    return isinstance(value, _PYTHON_TYPES.get(kind, ()) if isinstance(kind, str) else ())


def regex_gaps(pattern: str) -> Iterator[str]:
    """What of a regular expression XGrammar takes for something else than it commonly means."""
    inside = False  # of a character class
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            if pattern[at + 1 : at + 2] not in _ESCAPES:
                yield f"the escape {pattern[at : at + 2]}"
            at += 1
        elif inside:
            if pattern.startswith("[:", at):
                yield "a class of characters by name"
            inside = char != "]"
        elif char == "[":
            inside = True
            at += pattern.startswith("^", at + 1)
        elif (char == "^" and at) or (char == "$" and at + 1 < len(pattern)):
            yield f"{char} inside the expression"
        elif pattern.startswith("(?", at) and not pattern.startswith("(?:", at):
            yield "a group with (?"
        at += 1


def _alone(words: set[str], word: str, path: str) -> Iterator[str]:
    for other in sorted(words - {word, "type"}) if word in ("const", "enum") else sorted(words - {word}):
        yield f"{path}/{other} beside {word}"

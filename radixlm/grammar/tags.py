"""Structural tags: free text in which certain beginnings lead into JSON that follows a schema. Knows no backend."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from radixlm.grammar.base import GrammarError

_FLAGS = ("at_least_one", "tags_only", "stop_after_first")


@dataclass(frozen=True)
class Tag:
    """`begin`, then JSON by `schema`, then `end`."""

    begin: str
    schema: Any
    end: str


@dataclass(frozen=True)
class Tags:
    """Tags in free text: once a trigger has come, a tag that begins with it must follow.

    With `at_least_one` the text begins with a tag. `tags_only`: nothing but line breaks may stand between tags.
    `stop_after_first`: the text ends with the first.
    """

    tags: tuple[Tag, ...]
    triggers: tuple[str, ...]
    at_least_one: bool = False
    tags_only: bool = False
    stop_after_first: bool = False


def parse(text: str) -> Tags | None:
    """The tags of a legacy structural tag (structures, triggers, at_least_one, and our own tags_only and
    stop_after_first); None when it has a `format` instead.

    GrammarError says what is wrong with it.
    """
    value = msgspec.json.decode(text)
    if not isinstance(value, Mapping) or "format" in value:
        return None
    structures, triggers = value.get("structures"), value.get("triggers")
    if not isinstance(structures, list) or not structures:
        raise GrammarError("structural_tag needs a format, or structures and triggers")
    if not isinstance(triggers, list) or not triggers or not all(isinstance(t, str) and t for t in triggers):
        raise GrammarError("structural_tag.triggers must be a list of texts")
    tags = tuple(_tag(index, structure, triggers) for index, structure in enumerate(structures))
    flags = {name: value.get(name, False) for name in _FLAGS}
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise GrammarError(f"structural_tag.{name} must be true or false")
    return Tags(tags, tuple(triggers), **flags)


def _tag(index: int, structure: Any, triggers: list[str]) -> Tag:
    where = f"structural_tag.structures[{index}]"
    begin = structure.get("begin") if isinstance(structure, Mapping) else None
    end = structure.get("end") if isinstance(structure, Mapping) else None
    if not isinstance(begin, str) or not isinstance(end, str):
        raise GrammarError(f"{where} needs begin and end as texts")
    schema = structure.get("schema")
    if not isinstance(schema, Mapping | bool):
        raise GrammarError(f"{where}.schema must be a JSON schema")
    if not any(begin.startswith(trigger) for trigger in triggers):
        raise GrammarError(f"{where}.begin starts with none of the triggers")
    return Tag(begin, schema, end)


def schemas(value: Any) -> list[Any]:
    """Every JSON schema inside a structural tag's `format`, however deep."""
    if isinstance(value, list):
        return [schema for item in value for schema in schemas(item)]
    if not isinstance(value, Mapping):
        return []
    found = [value["json_schema"]] if value.get("type") == "json_schema" and "json_schema" in value else []
    rest = [item for key, item in value.items() if key != "json_schema"]
    return found + schemas(rest)

"""OpenAI's `response_format` and SGLang's fields beside it, as native sampling parameters. Knows no route."""

from collections.abc import Mapping
from typing import Any

import msgspec

from radixlm.base.errors import RequestError

ANY_OBJECT = '{"type": "object"}'
_KINDS = ("text", "json_object", "json_schema", "structural_tag")


def json_text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def of_response_format(given: Mapping[str, Any] | None, field: str = "response_format") -> dict[str, str]:
    """The grammar it asks for, by native name; empty for none. RequestError names what is wrong with it."""
    if given is None:
        return {}
    kind = given.get("type")
    if kind not in _KINDS:
        raise RequestError(f"{field}.type must be one of {', '.join(_KINDS)}, got {kind!r}", field)
    if kind == "text":
        return {}
    if kind == "json_object":
        return {"json_schema": ANY_OBJECT}
    if kind == "structural_tag":
        return {"structural_tag": json_text(given)}
    return {"json_schema": json_text(_schema(given, field))}


def _schema(given: Mapping[str, Any], field: str) -> Any:
    """The schema of a json_schema format, which may also stand beside the type, as Responses has it."""
    inner = given.get("json_schema", given)
    if not isinstance(inner, Mapping):
        raise RequestError(f"{field}.json_schema must be an object", field)
    if not isinstance(inner.get("strict"), bool | None):
        raise RequestError(f"{field}.json_schema.strict must be true or false", field)
    schema = inner.get("schema")
    if schema is None:
        raise RequestError("schema_ is required for json_schema response format request.", field)
    if not isinstance(schema, Mapping | bool):
        raise RequestError(f"{field}.json_schema.schema must be a JSON schema", field)
    return schema

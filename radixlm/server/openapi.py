"""/openapi.json: the route table as an OpenAPI document, for people, clients and fuzzers. Knows rows, no handler."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from radixlm.server.exchange import Exchange
from radixlm.server.route import Row

PATH = "/openapi.json"
_PARAMETER = re.compile(r"\{(\w+)(:path)?\}")


def document(rows: Sequence[Row], version: str) -> dict[str, Any]:
    """An OpenAPI 3.1 document of `rows`. Bodies are those that are read: unknown fields are ignored or refused."""
    bodies = list(dict.fromkeys(row.body for row in rows if row.body is not None))
    schemas, components = msgspec.json.schema_components(bodies, ref_template="#/components/schemas/{name}")
    schema_of = dict(zip(bodies, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for row in rows:
        operations = paths.setdefault(_PARAMETER.sub(r"{\1}", row.path), {})
        for method in row.methods:
            operations[method.lower()] = _operation(row, method, None if row.body is None else schema_of[row.body])
    return {
        "openapi": "3.1.0",
        "info": {"title": "RadixLM", "version": version},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(row: Row, method: str, schema: dict[str, Any] | None) -> dict[str, Any]:
    operation: dict[str, Any] = {"responses": {"200": {"description": "done"}}, "tags": [row.level]}
    if row.level != "public":
        operation["security"] = [{"key": []}, {}]
    names = [match[1] for match in _PARAMETER.finditer(row.path)]
    if names:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    if schema is not None and method != "GET":
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation


def row_of(rows: Sequence[Row], version: str) -> Row:
    """The route that serves the document of `rows`."""
    content = document(rows, version)

    async def handle(exchange: Exchange) -> None:
        await exchange.json(content)

    return Row(PATH, ("GET",), handle, "user")

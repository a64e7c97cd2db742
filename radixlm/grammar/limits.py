"""How large and how deep a grammar may be before anything is compiled. Knows no backend."""

import re
from typing import Any

import msgspec

from radixlm.protocol.grammar import Kind

MOST_BYTES: dict[Kind, int] = {
    "json_schema": 256 * 1024,
    "regex": 16 * 1024,
    "ebnf": 64 * 1024,
    "structural_tag": 512 * 1024,
}
MOST_DEPTH = 64
_REPETITION = re.compile(r"\{(\d*),?(\d*)\}")
MOST_REPETITIONS = 100_000


def why_refused(kind: Kind, text: str) -> str | None:
    """Why a grammar is not even tried, or None."""
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError as error:
        return f"{kind} is not valid Unicode: {error.reason}"
    if size_bytes > MOST_BYTES[kind]:
        return f"{kind} has {size_bytes} bytes; at most {MOST_BYTES[kind]} are allowed"
    if kind in ("json_schema", "structural_tag"):
        return _json_problem(kind, text)
    if _nesting(text) > MOST_DEPTH:
        return f"{kind} is nested more than {MOST_DEPTH} deep"
    counts = [int(count) for match in _REPETITION.finditer(text) for count in match.groups() if count]
    if counts and max(counts) > MOST_REPETITIONS:
        return f"{kind} has a repetition of {max(counts)}; at most {MOST_REPETITIONS} are allowed"
    return None


def _json_problem(kind: Kind, text: str) -> str | None:
    if max(text.count("{"), text.count("[")) > MOST_DEPTH and _nesting(text) > MOST_DEPTH:
        return f"{kind} is nested more than {MOST_DEPTH} deep"
    try:
        value: Any = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        return f"{kind} is not valid JSON: {error}"
    if isinstance(value, dict) or (kind == "json_schema" and isinstance(value, bool)):
        return None
    return f"{kind} must be a JSON object"


def _nesting(text: str) -> int:
    """The deepest nesting of brackets, those in strings included."""
    depth = deepest = 0
    for character in text:
        if character in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")]}":
            depth -= 1
    return deepest

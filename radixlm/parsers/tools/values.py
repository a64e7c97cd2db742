"""Values that a model writes as plain text, as JSON text. Knows JSON types; no format and no schema."""

import json
from collections.abc import Set

from radixlm.parsers.tools.toolbox import kind_of

_WORDS = {"True": "true", "False": "false", "None": "null", "Null": "null", "NULL": "null"}


def escaped(text: str) -> str:
    """`text` as the inside of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def json_text(text: str, kinds: Set[str]) -> str:
    """The value that `text` stands for, as JSON.

    It is JSON of one of the `kinds` where it reads like that (also in Python's spelling of constants); otherwise it is
    a string, so that nothing of it is lost.
    """
    plain = text.strip()
    plain = _WORDS.get(plain, plain)
    try:
        kind = kind_of(json.loads(plain, parse_constant=_refuse))
    except (ValueError, RecursionError):
        kind = "string"
    else:
        if kind in kinds or (kind == "integer" and "number" in kinds) or _whole(plain, kinds):
            return plain
    return json.dumps(text, ensure_ascii=False)


def _whole(text: str, kinds: Set[str]) -> bool:
    """Whether `text` is a number such as 3.0 where an integer is wanted: the same value to JSON Schema."""
    if "integer" not in kinds:
        return False
    try:
        return float(text).is_integer()
    except ValueError:
        return False


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")

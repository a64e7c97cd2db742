"""Checks of single values out of a JSON body: strict types, ranges, sizes. Knows no field by name."""

import math
from collections.abc import Callable
from typing import Any, TypeAlias

from radixlm.base.errors import RequestError

Check: TypeAlias = Callable[[str, Any], Any]  # (field name, value) to the value to use; RequestError when it is wrong

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def number(low: float, high: float = math.inf, above: bool = False) -> Check:
    """A finite number in [low, high], or in (low, high] with `above`."""

    def check(name: str, value: Any) -> float:
        if type(value) not in (int, float):
            raise RequestError(f"{name} must be a number, got {shown(value)}", name)
        try:
            result = float(value)
        except OverflowError:
            result = math.inf
        if not math.isfinite(result):
            raise RequestError(f"{name} must be finite, got {shown(value)}", name)
        if result > high or (result <= low if above else result < low):
            raise RequestError(f"{name} must be {_range(low, high, above)}, got {shown(value)}", name)
        return result

    return check


def integer(low: int, high: int = INT64_MAX) -> Check:
    """A whole number in [low, high]; 2.0 and true are none."""

    def check(name: str, value: Any) -> int:
        if type(value) is not int:
            raise RequestError(f"{name} must be an integer, got {shown(value)}", name)
        if not INT64_MIN <= value <= INT64_MAX:
            raise RequestError(f"{name} must fit in 64 bits, got {shown(value)}", name)
        if not low <= value <= high:
            raise RequestError(f"{name} must be {_range(low, high, False)}, got {shown(value)}", name)
        return value

    return check


def boolean(name: str, value: Any) -> bool:
    if type(value) is not bool:
        raise RequestError(f"{name} must be true or false, got {shown(value)}", name)
    return value


def strings(most: int, most_bytes: int) -> Check:
    """A string or a list of at most `most`; none empty, none of more than `most_bytes` bytes of UTF-8."""

    def check(name: str, value: Any) -> tuple[str, ...]:
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
            raise RequestError(f"{name} must be a string or a list of strings, got {shown(value)}", name)
        if len(items) > most:
            raise RequestError(f"{name} must have at most {most} entries, got {len(items)}", name)
        for item in items:
            if not item:
                raise RequestError(f"{name} must not contain an empty string", name)
            try:
                size_bytes = len(item.encode())
            except UnicodeEncodeError as error:
                raise RequestError(f"{name} is not valid Unicode: {error.reason}", name) from error
            if size_bytes > most_bytes:
                raise RequestError(f"{name} has an entry of more than {most_bytes} bytes", name)
        return tuple(items)

    return check


def token_ids(name: str, ids: Any, vocab_size: int) -> list[int]:
    """A list of vocabulary ids; the error names the position of the first that is none."""
    if not isinstance(ids, list | tuple):
        raise RequestError(f"{name} must be a list of token ids, got {shown(ids)}", name)
    if set(map(type, ids)) <= {int} and (not ids or (min(ids) >= 0 and max(ids) < vocab_size)):
        return list(ids)
    for position, id_ in enumerate(ids):
        if type(id_) is not int:
            raise RequestError(f"{name}[{position}] must be an integer, got {shown(id_)}", name)
        if not 0 <= id_ < vocab_size:
            raise RequestError(
                f"{name}[{position}] is {shown(id_)}, which is not a token id: the vocabulary is [0, {vocab_size})",
                name,
            )
    return list(ids)


def shown(value: Any) -> str:
    """A value in an error message: short, whatever it is."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _range(low: float, high: float, above: bool) -> str:
    floor = f"greater than {low:g}" if above else f"at least {low:g}"
    return floor if high in (math.inf, INT64_MAX) else f"{floor} and at most {high:g}"

"""How one flag is declared, and how words, YAML and Python values become its value. Knows no particular flag.

A flag is a dataclass field whose metadata says everything that the CLI, YAML, docs and /server_info show.
"""

import dataclasses
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin
from urllib.parse import urlsplit

from radixlm.base.errors import ConfigError

REQUIRED = dataclasses.MISSING

_HUMAN = re.compile(r"([+-]?\d+(?:\.\d+)?)(k|M|G|T|Ki|Mi|Gi|Ti)?")
_POWERS = {"k": 1, "K": 1, "M": 2, "G": 3, "T": 4}


@dataclass(frozen=True)
class Flag:
    """Metadata of one flag. The canonical spelling is the field's name with dashes; `aliases` are further spellings.

    `parse` turns one word into a value or raises ValueError (int, float, str, or a function such as `human_int`); a
    bool field has none. `choices` restricts values. `many` takes one or more words. `check` says what is wrong with a
    parsed value, or None. The value of a `secret` flag is never shown. `needs` and `idle_with` are flat names of flags
    of the same group: without the first, or with the second, any value but the default would do nothing.
    """

    help: str
    parse: Callable[[str], Any] | None = None
    aliases: tuple[str, ...] = ()
    choices: tuple[str, ...] | None = None
    metavar: str | None = None
    many: bool = False
    check: Callable[[Any], str | None] | None = None
    secret: bool = False
    needs: str | None = None
    idle_with: str | None = None


def flag(
    default: Any,
    help: str,  # noqa: A002
    *,
    parse: Callable[[str], Any] | None = None,
    aliases: Sequence[str] = (),
    choices: Sequence[str] | None = None,
    metavar: str | None = None,
    many: bool = False,
    check: Callable[[Any], str | None] | None = None,
    secret: bool = False,
    needs: str | None = None,
    idle_with: str | None = None,
) -> Any:
    """A dataclass field that is also a command-line flag. `parse` None takes the type from the field's annotation.

    `default` is `REQUIRED` for a field that must be given.
    """
    fixed = tuple(choices) if choices is not None else None
    meta = Flag(help, parse, tuple(aliases), fixed, metavar, many, check, secret, needs, idle_with)
    return field(default=default, repr=not secret, metadata={"flag": meta})


def option_of(name: str) -> str:
    """The canonical spelling of the flag with this flat name."""
    return "--" + name.replace("_", "-")


def refuse_idle(group: Any) -> None:
    """ConfigError for the first flag of a group (a dataclass of flags) that was given a value which does nothing."""
    for item in dataclasses.fields(group):
        meta: Flag = item.metadata["flag"]
        value = getattr(group, item.name)
        if value == item.default:
            continue
        given = f"{option_of(item.name)} {value}" if meta.choices else option_of(item.name)
        if meta.needs is not None and getattr(group, meta.needs) in (None, False):
            raise ConfigError(f"{given} needs {option_of(meta.needs)}")
        if meta.idle_with is not None and getattr(group, meta.idle_with):
            raise ConfigError(f"{given} does nothing with {option_of(meta.idle_with)}")


# ---- words to values --------------------------------------------------------------------------------------------


def human_int(word: str) -> int:
    """An integer, plain or with a decimal suffix k M G T (1.5k is 1500) or a binary one Ki Mi Gi Ti (whole numbers)."""
    match = _HUMAN.fullmatch(word)
    if match is None:
        raise ValueError(f"{word!r} is not an integer such as 4096, 1.5k, 2M or 64Ki")
    digits, suffix = match.groups()
    binary = suffix is not None and suffix.endswith("i")
    if "." in digits and (suffix is None or binary):
        raise ValueError(f"{word!r}: a fraction needs a decimal suffix (k, M, G, T)")
    if suffix is None:
        return int(digits)
    if binary:
        return int(digits) * int(1024 ** _POWERS[suffix[0]])
    whole, _, fraction = digits.partition(".")
    zeros = 3 * _POWERS[suffix] - len(fraction)
    if zeros < 0 and int(fraction[zeros:]):
        raise ValueError(f"{word!r} is not a whole number")
    return int(whole + (fraction + "0" * zeros if zeros >= 0 else fraction[:zeros]))


def json_object(word: str) -> dict[str, Any]:
    """A JSON object, parsed."""
    try:
        value = json.loads(word)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"not valid JSON ({error})") from None
    if not isinstance(value, dict):
        raise ValueError(f"must be a JSON object, not {word!r}")
    return value


def http_url(word: str) -> str:
    """An http or https URL with a host, as it is."""
    try:
        parts = urlsplit(word)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number
        usable = False
    if not usable:
        raise ValueError(f"{word!r} is not an http or https URL such as http://127.0.0.1:30000")
    return word


def json_text(word: str) -> str:
    """A JSON object, checked and kept as text."""
    return json.dumps(json_object(word))


def string_labels(word: str) -> dict[str, str]:
    """A JSON object whose values are strings."""
    value = json_object(word)
    wrong = next((key for key, item in value.items() if not isinstance(item, str)), None)
    if wrong is not None:
        raise ValueError(f"the value of {wrong!r} must be a string")
    return value


def whole_numbers(word: str) -> dict[str, int]:
    """A JSON object whose values are integers."""
    value = json_object(word)
    wrong = next((key for key, item in value.items() if not isinstance(item, int) or isinstance(item, bool)), None)
    if wrong is not None:
        raise ValueError(f"the value of {wrong!r} must be an integer")
    return value


# ---- checks -----------------------------------------------------------------------------------------------------


def at_least(low: float) -> Callable[[Any], str | None]:
    return lambda value: None if value >= low else f"must be at least {low:g}, not {value}"


def within(low: float, high: float) -> Callable[[Any], str | None]:
    return lambda value: None if low <= value <= high else f"must lie between {low:g} and {high:g}, not {value}"


def strictly_between(low: float, high: float) -> Callable[[Any], str | None]:
    return lambda value: None if low < value < high else f"must be above {low:g} and below {high:g}, not {value}"


def each(check: Callable[[Any], str | None]) -> Callable[[Sequence[Any]], str | None]:
    """`check` for every value of a flag that takes many: the first complaint."""
    return lambda values: next((complaint for value in values if (complaint := check(value)) is not None), None)


def increasing(values: Sequence[float]) -> str | None:
    """Complaint about bucket edges that do not rise."""
    rising = all(a < b for a, b in pairwise(values))
    return None if rising else "must be strictly increasing"


def writable(path: str | Path) -> str | None:
    """Complaint about a file that cannot be written; said before there is anything to write, and writes nothing.

    The empty name stands for no file.
    """
    if not str(path):
        return None
    file = Path(path)
    try:
        if file.is_dir():
            return f"{file} is a folder"
        if not file.parent.is_dir():
            return f"cannot write {file}: there is no folder {file.parent}"
        may = os.access(file if file.exists() else file.parent, os.W_OK)
    except OSError as error:  # a name that is too long
        return f"cannot write {file}: {error.strerror}"
    return None if may else f"cannot write {file}: permission denied"


# ---- a flag in its group ----------------------------------------------------------------------------------------

Kind = Literal["switch", "value", "list"]
_NAMES: dict[Any, str] = {int: "an integer", float: "a number", str: "text"}


@dataclass(frozen=True)
class FlagField:
    """A flag with what its dataclass field adds: name, group, default and type. `base` is the type of one word."""

    name: str
    group: str
    default: Any
    base: type
    optional: bool
    flag: Flag

    @property
    def option(self) -> str:
        return option_of(self.name)

    @property
    def help(self) -> str:
        """What it does, and which other flag that takes."""
        needs, idle_with = self.flag.needs, self.flag.idle_with
        text = self.flag.help
        text += f"; needs {option_of(needs)}" if needs is not None else ""
        return text + (f"; not with {option_of(idle_with)}" if idle_with is not None else "")

    @property
    def spellings(self) -> tuple[str, ...]:
        return (self.option, *self.flag.aliases)

    @property
    def kind(self) -> Kind:
        if self.base is bool:
            return "switch"
        return "list" if self.flag.many else "value"

    @property
    def required(self) -> bool:
        return self.default is REQUIRED

    def read(self, words: Sequence[str]) -> Any:
        """The value of this flag's words on the command line (none for a switch); ConfigError names the flag."""
        if self.kind == "switch":
            return True
        return self.accept(tuple(words) if self.kind == "list" else words[0])

    def accept(self, value: Any) -> Any:
        """`value` from Python, JSON or YAML, checked and in its final type; ConfigError names the flag.

        Text is parsed as on the command line, a mapping stands for its JSON text, a list becomes a tuple.
        """
        if value is None and self.optional:
            return None
        try:
            result = self._list(value) if self.kind == "list" else self._one(value)
            complaint = self.flag.check(result) if self.flag.check else None
        except ValueError as error:
            complaint = str(error)
        if complaint is not None:
            raise ConfigError(f"{self.option}: {complaint}")
        return result

    def _list(self, value: Any) -> tuple[Any, ...]:
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise ValueError(f"must be a list, not {value!r}")
        return tuple(self._one(item) for item in value)

    def _one(self, value: Any) -> Any:
        if self.base is bool:
            if not isinstance(value, bool):
                raise ValueError(f"must be true or false, not {value!r}")
            return value
        if isinstance(value, os.PathLike) and self.base is str:
            value = os.fspath(value)
        if isinstance(value, Mapping) and self.flag.parse is not None:
            value = json.dumps(dict(value))
        result = self._parse(value) if isinstance(value, str) else self._convert(value)
        if self.flag.choices is not None and result not in self.flag.choices:
            raise ValueError(f"{result!r} is not one of: {', '.join(self.flag.choices)}")
        return result

    def _parse(self, word: str) -> Any:
        if self.flag.parse is not None:
            return self.flag.parse(word)
        try:
            return self.base(word)
        except ValueError:
            raise ValueError(f"{word!r} is not {_NAMES[self.base]}") from None

    def _convert(self, value: Any) -> Any:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if self.base is float and number:
            return float(value)
        if self.base is int and number and float(value).is_integer():
            return int(value)
        raise ValueError(f"{value!r} is not {_NAMES.get(self.base, 'a JSON object')}")


def _strip_optional(annotation: Any) -> tuple[Any, bool]:
    if get_origin(annotation) in (Union, UnionType):
        members = [member for member in get_args(annotation) if member is not NoneType]
        return members[0], True
    return annotation, False


def flags_of(group_name: str, group: Any) -> list[FlagField]:
    """The flags that the dataclass `group` declares, in order."""
    found = []
    for item in dataclasses.fields(group):
        meta: Flag = item.metadata["flag"]
        annotation, optional = _strip_optional(item.type)
        if meta.many:
            annotation = get_args(annotation)[0]
        base = get_origin(annotation) or annotation
        found.append(FlagField(item.name, group_name, item.default, base, optional, meta))
    return found

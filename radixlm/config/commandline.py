"""What programs share: command lines out of flag groups, exit codes, result files and tables. Knows no program's
options.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from radixlm.base.errors import ConfigError, RadixError
from radixlm.base.pipes import until_unread
from radixlm.config.flags import FlagField, flags_of, refuse_idle

Groups = Mapping[str, type]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


@dataclass(frozen=True)
class Program:
    """One command: its name, what it does, its flag groups by title, and SGLang's options that it refuses, and why.

    `family`: the words before its name, such as `python -m` before a module's.
    """

    name: str
    about: str
    groups: Groups
    refused: Mapping[str, str] | None = None
    family: str = "radixlm bench"

    @property
    def prog(self) -> str:
        return f"{self.family} {self.name}"

    def parser(self, rest: str = "") -> argparse.ArgumentParser:
        """The parser; `rest` names what may follow the options."""
        parser = _Parser(
            prog=self.prog,
            usage=f"{self.prog} [options]{' ' + rest if rest else ''}",
            description=self.about,
            allow_abbrev=False,
            argument_default=argparse.SUPPRESS,
        )
        for title, group in self.groups.items():
            section = parser.add_argument_group(title)
            for item in flags_of(title, group):
                _add(section, item)
        return parser

    def read(self, argv: Sequence[str] | None = None) -> dict[str, Any]:
        """The groups of a command line by title. ConfigError names the flag at fault; SystemExit 0 after --help."""
        found, rest = self.read_known(argv)
        if rest:
            raise ConfigError(self._complaint(rest[0]))
        return found

    def read_known(self, argv: Sequence[str] | None = None, rest: str = "") -> tuple[dict[str, Any], list[str]]:
        """The groups, and the words that belong to none of them."""
        space, words = self.parser(rest).parse_known_args(argv)
        given = vars(space)
        every = [item for title, group in self.groups.items() for item in flags_of(title, group)]
        missing = [item.option for item in every if item.required and item.name not in given]
        if missing:
            raise ConfigError(f"{missing[0]} is required")
        found = {
            title: group(
                **{item.name: item.read(given[item.name]) for item in flags_of(title, group) if item.name in given}
            )
            for title, group in self.groups.items()
        }
        for group in found.values():
            refuse_idle(group)
        return found, words

    def read_files(self, argv: Sequence[str] | None, rest: str) -> tuple[dict[str, Any], list[str]]:
        """The groups, and the names of files, which `rest` says; ConfigError for an option that is in no group."""
        found, words = self.read_known(argv, rest)
        unknown = next((word for word in words if word.startswith("-")), None)
        if unknown is not None:
            raise ConfigError(self._complaint(unknown))
        return found, words

    def _complaint(self, word: str) -> str:
        option = word.partition("=")[0]
        reason = (self.refused or {}).get(option)
        return f"{option}: {reason}" if reason else f"unknown argument {word}; see {self.prog} --help"


def _add(group: "argparse._ArgumentGroup", item: FlagField) -> None:
    text = item.flag.help.replace("%", "%%")
    if item.kind == "switch":
        group.add_argument(item.option, dest=item.name, action="store_const", const=(), help=text)
        return
    shown = item.default not in (None, (), "", float("inf"))
    default = "required" if item.required else _listed(item.default)
    choices = "{" + ",".join(item.flag.choices) + "}" if item.flag.choices else None
    group.add_argument(
        *item.spellings,
        dest=item.name,
        nargs="+" if item.kind == "list" else 1,
        metavar=choices or item.flag.metavar or item.base.__name__.upper(),
        help=text + (f" ({default})" if shown else ""),
    )


def _listed(default: Any) -> str:
    return " ".join(map(str, default)) if isinstance(default, tuple) else str(default)


def command(run: Callable[[Sequence[str] | None], int], argv: Sequence[str] | None) -> int:
    """A program's exit code; a failure with a known cause is one line on stderr and 1, or 2 for the command line's.

    An interruption is 130.
    """
    try:
        return until_unread(lambda: run(argv))
    except RadixError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def append_line(path: str, line: bytes) -> None:
    """Put a line at the end of a result file; ConfigError when it cannot be written."""
    try:
        with Path(path).open("ab") as file:
            file.write(line)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None


def made_folder(path: Path, option: str) -> Path:
    """The folder at `path`, which `option` named, there from now on; ConfigError when it cannot be made."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{option}: {path} cannot be made: {error.strerror}") from None
    return path


def table(rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns; the first row is the heads. Cells that begin like a number stand on the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    numeric = [all(_number_like(row[i]) for row in rows[1:]) for i in range(len(widths))]

    def cell(text: str, i: int) -> str:
        return text.rjust(widths[i]) if numeric[i] else text.ljust(widths[i])

    return "\n".join("  ".join(cell(text, i) for i, text in enumerate(row)).rstrip() for row in rows)


def _number_like(text: str) -> bool:
    return text[:1].isdigit() or text in ("", "-", "inf", "n/a") or text[:1] in "+-"

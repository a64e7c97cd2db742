"""The command line of `radixlm serve`: a parser built from the flags' metadata and the manifest, and YAML files.

Words become values in config/flags.py; here they are only told apart. Knows no flag by name but MODEL and --config.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from radixlm.base.errors import ConfigError
from radixlm.config.flags import FlagField
from radixlm.config.groups import Config, canonical_name, fields_by_name, sections
from radixlm.config.manifest import Row, rows, unsupported

PROGRAM = "radixlm"
USAGE = f"{PROGRAM} serve [MODEL] [--config FILE] [options]"
EPILOG = "A flag may be shortened while it stays unambiguous. docs/flags.md lists every flag of SGLang and its state."

_WORKING = "working"  # dest of flags that a group declares; _MANIFEST of those that only the manifest knows
_MANIFEST = "manifest"


@dataclass(frozen=True)
class Given:
    """The options of one command line, told apart but not read: words by flat name, YAML files, other arguments."""

    working: dict[str, list[str]]
    manifest: list[tuple[Row, bool | str | list[str]]]
    files: list[str]
    positional: list[str]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message.removeprefix("argument "))


def _collector(dest: str, remember: Callable[[str, list[str]], Any]) -> type[argparse.Action]:
    """An action that appends `remember(spelling, words)` to `dest`."""

    class Collect(argparse.Action):
        def __call__(
            self,
            parser: argparse.ArgumentParser,
            namespace: argparse.Namespace,
            values: str | Sequence[Any] | None,
            option_string: str | None = None,
        ) -> None:
            words = [values] if isinstance(values, str) else list(values or ())
            getattr(namespace, dest).append(remember(option_string or "", words))

    return Collect


def _help(item: FlagField) -> str:
    default = "" if item.kind == "switch" or item.default is None else f" ({item.default})"
    return (item.help + (" (required)" if item.required else default)).replace("%", "%%")


def _add_working(group: "argparse._ArgumentGroup", item: FlagField) -> None:
    metavar = item.flag.metavar or item.base.__name__.upper()
    group.add_argument(
        *item.spellings,
        action=_collector(_WORKING, lambda _, words: (item.name, words)),
        nargs=0 if item.kind == "switch" else "+" if item.kind == "list" else None,
        metavar="{" + ",".join(item.flag.choices) + "}" if item.flag.choices else metavar,
        help=_help(item),
    )


def _manifest_value(row: Row, spelling: str, words: list[str]) -> bool | str | list[str]:
    if row.type in ("switch", "bool"):
        return not spelling.startswith("--no-")
    if row.type == "list":
        return words
    return words[0] if words else ""


def _add_hidden(parser: argparse.ArgumentParser, row: Row) -> None:
    nargs: dict[str, int | str] = {"switch": 0, "bool": 0, "list": "+", "str?": "?"}
    parser.add_argument(
        *row.spellings,
        *([row.negative] if row.negative else []),
        action=_collector(_MANIFEST, lambda spelling, words: (row, _manifest_value(row, spelling, words))),
        nargs=nargs.get(row.type),
        help=argparse.SUPPRESS,
    )


def build_parser() -> argparse.ArgumentParser:
    """A parser of every spelling of every SGLang flag, so that prefixes resolve as they do there.

    Only flags that work are shown in its help, one section per group.
    """
    parser = _Parser(prog=PROGRAM, usage=USAGE, add_help=False, epilog=EPILOG)
    general = parser.add_argument_group("General")
    general.add_argument("-h", "--help", action="help", help="show this and exit")
    general.add_argument(
        "--config", action="append", metavar="FILE", help="YAML file of options; the command line wins over it"
    )
    for title, items in sections().items():
        section = parser.add_argument_group(title)
        for item in items:
            _add_working(section, item)
    known = fields_by_name()
    for row in rows():
        if row.name not in known and row.name != "config":
            _add_hidden(parser, row)
    return parser


def split(argv: Sequence[str]) -> Given:
    """The options of `argv`; ConfigError for one that nobody knows or that is ambiguous, SystemExit 0 after --help."""
    start = argparse.Namespace(**{_WORKING: [], _MANIFEST: []})
    # Unknown words come back, and MODEL with them: argparse cannot find an optional positional behind options.
    space, rest = build_parser().parse_known_args(list(argv), start)
    unknown = [word for word in rest if word.startswith("-") and word != "--"]
    if unknown:
        option = unknown[0].partition("=")[0]
        known_gone = unsupported(canonical_name(option), None) if option.startswith("--") else []
        raise ConfigError("; ".join(known_gone) or f"unknown flag {option}")
    positional = [word for word in rest if word != "--"]
    return Given(dict(getattr(space, _WORKING)), getattr(space, _MANIFEST), space.config or [], positional)


def read_yaml(path: str) -> dict[str, Any]:
    """The options of a YAML file by flat name, checked; ConfigError names the file and, where it can, the key."""
    import yaml

    try:
        content = yaml.safe_load(Path(path).read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path}: not valid YAML ({' '.join(str(error).split())})") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"--config {path}: must be a mapping of options, not a {type(content).__name__}")
    values: dict[str, Any] = {}
    for key, value in content.items():
        name = canonical_name(str(key))
        try:
            accepted = _accept(name, value)
        except ConfigError as error:
            raise ConfigError(f"--config {path}: {key}: {error}") from None
        if name in values:
            raise ConfigError(f"--config {path}: {key}: given twice")
        if name in fields_by_name():
            values[name] = accepted
    return values


def _accept(name: str, value: Any) -> Any:
    item = fields_by_name().get(name)
    if item is not None:
        return item.accept(value)
    complaints = unsupported(name, value)
    if complaints:
        raise ConfigError(complaints[0])
    return value


def read_serve(argv: Sequence[str]) -> Config:
    """The configuration that the words of `radixlm serve` ask for; ConfigError when they cannot be honoured."""
    given = split(argv)
    complaints = [text for row, value in given.manifest if (text := row.complaint(value))]
    if complaints:
        raise ConfigError("; ".join(dict.fromkeys(complaints)))
    if len(given.files) > 1:
        raise ConfigError("--config may be given once only")
    values = read_yaml(given.files[0]) if given.files else {}
    known = fields_by_name()
    line = {name: known[name].read(words) for name, words in given.working.items()}
    if len(given.positional) > 1:
        raise ConfigError(f"one model is served, but arguments are: {' '.join(given.positional)}")
    if given.positional:
        model = given.positional[0]
        if line.setdefault("model_path", model) != model:
            raise ConfigError(f"two models are named: {model} and --model-path {line['model_path']}")
    return Config.from_flat(values | line)


def parse_serve(argv: Sequence[str]) -> Config:
    """`read_serve` for the command line: an error is one line on stderr and exit code 2."""
    try:
        return read_serve(argv)
    except ConfigError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        raise SystemExit(2) from None

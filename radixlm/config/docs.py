"""docs/flags.md, made from the groups and the manifest: `python -m radixlm.config.docs` writes it anew."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from radixlm.config.flags import FlagField, human_int
from radixlm.config.groups import fields_by_name, sections
from radixlm.config.manifest import RENAMED, Status, rows

PATH = Path(__file__).parents[2] / "docs" / "flags.md"

_INTRO = """\
# Flags

Made by `python -m radixlm.config.docs`; do not edit. `radixlm serve` knows every server flag of SGLang 0.5.22 by its
spelling and aliases, and so do the YAML file of `--config` and the keywords of `radixlm.Engine` (with underscores).
Each flag works, is planned or is refused. Planned and refused flags are accepted when they ask for nothing new, which
is their default and what else the column "accepted" names; anything else ends the start with one line and exit code 2.
Flags may be shortened while they stay unambiguous. "unset" means: decided at start, and reported with its reason.
"""
_ADVICE = """\
## What to do

- Set as few as you can: what is unset is decided at start, and the start-up report gives each reason.
- `radixlm size MODEL` names the flags whose defaults assume another machine, `radixlm tune` those that help you.
- A command line of SGLang's can be taken as it is: what does nothing here is named at the start; look it up above.
"""
_TYPES: Mapping[type, str] = MappingProxyType({int: "integer", float: "number", str: "text"})


def render() -> str:
    """The whole page."""
    known = fields_by_name()
    counts = {status: sum(row.status == status for row in rows()) for status in ("works", "planned", "refused")}
    parts = [_INTRO, f"{len(rows())} flags: " + ", ".join(f"{n} {status}" for status, n in counts.items()) + ".\n"]
    for title, items in sections().items():
        lines = [_field_line(item) for item in items]
        parts.append(f"## {title}\n\n" + _table(("flag", "type", "default", "what it does"), lines))
    always = [(_code(row.option), row.note) for row in rows() if row.status == "works" and row.name not in known]
    parts.append("## Accepted, without a setting behind them\n\n" + _table(("flag", "why"), always))
    parts.append("## Planned\n\n" + _by_section("planned", "what will bring it"))
    parts.append("## Refused\n\n" + _by_section("refused", "why"))
    renamed = [(_code(old), new) for old, new in RENAMED.items()]
    parts.append(
        "## Renamed or dropped by SGLang\n\nWhat stands in SGLang 0.5.22 for old spellings, values and environment "
        "variables. Those that still are flags of it are in the tables above too.\n\n"
        + _table(("old", "in SGLang 0.5.22"), renamed)
    )
    parts.append(_ADVICE)
    return "\n".join(parts)


def _field_line(item: FlagField) -> tuple[str, ...]:
    default = "required" if item.required else "off" if item.kind == "switch" else _shown(item.default)
    return (_spellings(item.spellings), _type(item), default, item.help)


def _type(item: FlagField) -> str:
    if item.kind == "switch":
        return "switch"
    if item.flag.choices is not None:
        return ", ".join(item.flag.choices)
    if item.flag.metavar is not None:
        return item.flag.metavar
    name = _TYPES[item.base] + (" with k M G T or Ki Mi Gi Ti" if item.flag.parse is human_int else "")
    return f"{name}, one or more" if item.kind == "list" else name


def _by_section(status: Status, reason: str) -> str:
    lines = [
        (_spellings(row.spellings), row.section, ", ".join(_shown(value) for value in row.accepted), row.note)
        for row in rows()
        if row.status == status
    ]
    return _table(("flag", "section", "accepted", reason), lines)


def _spellings(options: Sequence[str]) -> str:
    return " ".join(_code(option) for option in options)


def _shown(value: object) -> str:
    return "unset" if value is None else _code(str(value)) if value != "" else "empty"


def _code(text: str) -> str:
    return f"`{text}`"


def _table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    cells = [heads, ["---"] * len(heads), *lines]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in cells)


def main() -> None:
    PATH.write_text(render(), "utf-8")
    print(PATH, file=sys.stderr)


if __name__ == "__main__":
    main()

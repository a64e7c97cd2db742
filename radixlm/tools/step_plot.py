"""`python -m radixlm.tools.step_plot FILE OUT`: what decode steps cost the host, drawn as an SVG. Knows no engine.

FILE is what `python -m radixlm.engine.step_cost --out` wrote. The host's work is stacked by phase over the number of
rows; the line above it is the whole step, so that what lies between is time in which the host waits for the device.
"""

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from radixlm.base.errors import ConfigError, RadixError
from radixlm.config.commandline import Program, command

PHASES = (("plan", "#4878a8"), ("launch", "#e8a33d"), ("commit", "#6aa84f"), ("output", "#9a6fb0"))
STEP_COLOUR = "#555555"
WIDTH, HEIGHT = 640, 380
LEFT, RIGHT, TOP, BOTTOM = 70, 110, 20, 45


_Us = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


class _Row(msgspec.Struct):
    """What is drawn of a row."""

    batch: Annotated[int, msgspec.Meta(ge=1, le=10**9)]
    step_us: _Us
    plan_us: _Us
    launch_us: _Us
    commit_us: _Us
    output_us: _Us


class _Document(msgspec.Struct):
    rows: Annotated[list[_Row], msgspec.Meta(min_length=1)]


PROGRAM = Program("radixlm.tools.step_plot", "Draw what step_cost --out FILE wrote.", {}, family="python -m")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The file's rows by batch size. RadixError when it is not what step_cost writes."""
    try:
        rows = msgspec.json.decode(path.read_bytes(), type=_Document).rows
    except OSError as error:
        raise RadixError(f"{path}: {error.strerror or error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RadixError(f"{path} was not written by radixlm.engine.step_cost: {error}") from None
    return [msgspec.structs.asdict(row) for row in sorted(rows, key=lambda row: row.batch)]


def draw(rows: Sequence[dict[str, Any]]) -> str:
    """The SVG: rows on a logarithmic axis, microseconds up to the host's highest and a little more."""
    sums = [sum(row[f"{name}_us"] for name, _ in PHASES) for row in rows]
    unit = 10 ** math.floor(math.log10(max(*sums, 1.0)))
    highest = math.ceil(max(*sums, 1.0) * 1.25 / unit) * unit
    first, last = (math.log2(max(rows[end]["batch"], 1)) for end in (0, -1))

    def x(row: dict[str, Any]) -> float:
        share: float = (math.log2(max(row["batch"], 1)) - first) / max(last - first, 1e-9)
        return float(LEFT + share * (WIDTH - LEFT - RIGHT))

    def y(us: float) -> float:
        return float(HEIGHT - BOTTOM - min(us / highest, 1.0) * (HEIGHT - TOP - BOTTOM))

    parts = [_axes(rows, x, y, unit, highest)]
    below = [0.0] * len(rows)
    for place, (name, colour) in enumerate(PHASES):
        above = [low + row[f"{name}_us"] for low, row in zip(below, rows, strict=True)]
        edge = [(x(row), y(us)) for row, us in zip(rows, above, strict=True)]
        edge += [(x(row), y(us)) for row, us in zip(reversed(rows), reversed(below), strict=True)]
        parts.append(f'<polygon fill="{colour}" points="{_points(edge)}"/>')
        parts.append(_label(place, name, colour))
        below = above
    whole = [(x(row), y(row["step_us"])) for row in rows]
    parts.append(f'<polyline fill="none" stroke="{STEP_COLOUR}" stroke-width="2" points="{_points(whole)}"/>')
    parts.append(_label(len(PHASES), "whole step", STEP_COLOUR))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
    return head + 'font-size="12">\n' + "\n".join(parts) + "\n</svg>\n"


def _axes(rows: Sequence[dict[str, Any]], x: Any, y: Any, unit: float, highest: float) -> str:
    parts = [f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    for tick in range(round(highest / unit) + 1):
        at = y(tick * unit)
        parts.append(f'<path stroke="#dddddd" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{tick * unit:,.0f}</text>')
    for row in rows:
        parts.append(f'<text x="{x(row):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{row["batch"]:,}</text>')
    parts.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">rows that decode</text>'
    )
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(
        f'<text transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">microseconds a step</text>'
    )
    return "\n".join(parts)


def _label(place: int, name: str, colour: str) -> str:
    at = TOP + 10 + 18 * place
    return (
        f'<rect x="{WIDTH - RIGHT + 12}" y="{at - 9}" width="10" height="10" fill="{colour}"/>'
        f'<text x="{WIDTH - RIGHT + 28}" y="{at}">{name}</text>'
    )


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Exit 0: it is drawn; 1: a file is at fault; 2: the command line is wrong."""
    return command(_main, argv)


def _main(argv: Sequence[str] | None) -> int:
    _, files = PROGRAM.read_files(argv, "FILE OUT")
    if len(files) != 2:
        raise ConfigError("name a file of step_cost's and the SVG to write")
    file, out = map(Path, files)
    drawing = draw(read_rows(file))
    try:
        out.write_text(drawing)
    except OSError as error:
        raise RadixError(f"cannot write {out}: {error.strerror}") from None
    return 0


if __name__ == "__main__":
    sys.exit(main())

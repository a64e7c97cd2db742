"""`python -m radixlm.tools.step_plot FILE OUT`: what decode steps cost the host, drawn as an SVG. Knows no engine.

FILE is what `python -m radixlm.engine.step_cost --out` wrote. The host's work is stacked by phase over the number of
rows; the line above it is the whole step, so that what lies between is time in which the host waits for the device.
"""

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from radixlm.base.errors import ConfigError

PHASES = (("plan", "#4878a8"), ("launch", "#e8a33d"), ("commit", "#6aa84f"), ("output", "#9a6fb0"))
STEP_COLOUR = "#555555"
WIDTH, HEIGHT = 640, 380
LEFT, RIGHT, TOP, BOTTOM = 70, 110, 20, 45


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The file's rows by batch size. ConfigError when it is not what step_cost writes."""
    try:
        rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
        wanted = ("batch", "step_us", *(f"{name}_us" for name, _ in PHASES))
        if not rows or any(not isinstance(row[name], int | float) for row in rows for name in wanted):
            raise ValueError("it has no rows")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} was not written by radixlm.engine.step_cost: {error}") from None
    return sorted(rows, key=lambda row: float(row["batch"]))


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
    parser = argparse.ArgumentParser(prog="python -m radixlm.tools.step_plot", description=__doc__)
    parser.add_argument("file", type=Path, help="what radixlm.engine.step_cost --out wrote")
    parser.add_argument("out", type=Path, help="the SVG to write")
    options = parser.parse_args(argv)
    options.out.write_text(draw(read_rows(options.file)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

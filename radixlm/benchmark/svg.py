"""A line chart as an SVG text, readable on light and on dark ground. Knows nothing of what its numbers are."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 40, 56
COLOURS = ("#2f6fde", "#d1495b", "#2e9e6b", "#b07a1e", "#7b52c9")
TICKS = 5


@dataclass(frozen=True)
class Series:
    """One line: as many values as the chart has places; None leaves a gap."""

    name: str
    values: Sequence[float | None]


def line_chart(title: str, x_label: str, y_label: str, xs: Sequence[float], series: Sequence[Series]) -> str:
    """The chart; `xs` ascend, and values start at 0."""
    highest = _round_up(max((v for one in series for v in one.values if v is not None), default=1.0))
    low, high = min(xs), max(xs)

    def place(x: float, y: float) -> tuple[float, float]:
        share = (x - low) / (high - low) if high > low else 0.5
        width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        return LEFT + share * width, TOP + (1 - y / highest) * height

    body = [_text(WIDTH / 2, 20, title, "middle"), _text(WIDTH / 2, HEIGHT - 8, x_label, "middle")]
    body.append(_text(8, TOP - 8, y_label, "start"))
    for i in range(TICKS + 1):
        value = highest * i / TICKS
        _, y = place(low, value)
        body.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#8888" />')
        body.append(_text(LEFT - 8, y + 4, f"{value:g}", "end"))
    body += [_text(place(x, 0)[0], HEIGHT - BOTTOM + 18, f"{x:g}", "middle") for x in xs]
    for number, one in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        points = [place(x, value) for x, value in zip(xs, one.values, strict=True) if value is not None]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        body.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2" />')
        body += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}" />' for x, y in points]
        body.append(_text(LEFT + 12, TOP + 16 + 16 * number, one.name, "start", colour))
    style = "<style>text{font:12px sans-serif;fill:#222}@media(prefers-color-scheme:dark){text{fill:#ddd}}</style>"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
            style,
            *body,
            "</svg>\n",
        ]
    )


def _text(x: float, y: float, text: str, anchor: str, colour: str = "") -> str:
    style = f' style="fill:{colour}"' if colour else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{style}>{escape(text)}</text>'


def _round_up(value: float) -> float:
    """The next number of the form 1, 2 or 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power: float = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value)

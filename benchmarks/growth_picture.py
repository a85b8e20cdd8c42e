"""How cost grows, as a picture: ``python -m benchmarks.growth_picture RESULT.json PICTURE.svg``."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

WIDTH, HEIGHT = 300, 190
LEFT, TOP, GAP_X, GAP_Y = 62, 58, 84, 74
COLOURS = {"streamshard": "#0b6e4f", "mosaicml-streaming": "#d1495b"}
PANELS = {
    "samples": ("seconds to the first batch, 1,000 shards", "seconds"),
    "shards": ("texts a second, one process", "samples_per_s"),
    "columns": ("rows of integers a second, one process", "samples_per_s"),
    "workers": ("texts a second, batches of 32", "samples_per_s"),
}
"""Axis -> title of its panel, and metric."""

Result = Mapping[str, Any]


def draw(results: Sequence[Result]) -> str:
    """Draw a panel for each thing that grows: medians on a logarithmic scale, one line a library."""
    width, height = LEFT + 2 * (WIDTH + GAP_X), TOP + 2 * (HEIGHT + GAP_Y)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="11">',
        "<title>Cost as samples, shards, columns and workers grow</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    x = LEFT
    for name, colour in COLOURS.items():
        parts.append(f'<circle cx="{x}" cy="20" r="4" fill="{colour}"/>' + _text(x + 9, 24, name))
        x += 40 + 7 * len(name)
    for number, (axis, (title, metric)) in enumerate(PANELS.items()):
        points = [result for result in results if result.get("axis", [""])[0] == axis]
        left = LEFT + number % 2 * (WIDTH + GAP_X)
        top = TOP + number // 2 * (HEIGHT + GAP_Y)
        parts += _panel(points, axis, title, metric, left, top)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(
    results: Sequence[Result], axis: str, title: str, metric: str, left: float, top: float
) -> list[str]:
    frame = f'<rect x="{left}" y="{top}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#999999"/>'
    parts = [
        frame,
        _text(left, top - 8, title, weight="bold"),
        _text(left + WIDTH / 2, top + HEIGHT + 32, axis, anchor="middle"),
    ]
    lines = {
        name: [
            (result["axis"][1], result["parties"][name]["median"][metric])
            for result in sorted(results, key=lambda result: float(result["axis"][1]))
            if name in result["parties"]
        ]
        for name in COLOURS
    }
    values = [y for line in lines.values() for _, y in line]
    steps = sorted({x for line in lines.values() for x, _ in line})
    if not values:
        return parts
    lowest, highest = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    highest = max(highest, lowest + 1)

    def across(x: float) -> float:
        return left + WIDTH * (steps.index(x) + 0.5) / len(steps)

    def down(y: float) -> float:
        return top + HEIGHT * (1 - (math.log10(y) - lowest) / (highest - lowest))

    for power in range(lowest, highest + 1):
        y = down(10.0**power)
        parts.append(f'<path d="M{left} {y:.1f}h{WIDTH}" stroke="#e4e4e4"/>')
        parts.append(_text(left - 6, y + 4, f"{10.0**power:,g}", anchor="end"))
    for step in steps:
        parts.append(_text(across(step), top + HEIGHT + 15, f"{step:,g}", anchor="middle"))
    for name, line in lines.items():
        places = [(across(x), down(y)) for x, y in line]
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{drawn}" fill="none" stroke="{COLOURS[name]}" stroke-width="1.5"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{COLOURS[name]}"/>' for x, y in places]
    return parts


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}">{escape(text)}</text>'
    )


def main() -> None:
    """Draw the results in a file to another file."""
    source, picture = map(Path, sys.argv[1:])
    picture.write_text(draw(json.loads(source.read_text())))


if __name__ == "__main__":
    main()

"""The survey of shuffle quality as a picture: ``python -m benchmarks.quality_picture RESULT.json PICTURE.svg``."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.contest import OURS
from benchmarks.quality_table import MOST_LIVE

PANEL_WIDTH, PANEL_HEIGHT = 330, 200
LEFT, TOP, GAP_X, GAP_Y, LEGEND = 56, 62, 64, 62, 36
COLOURS = {
    "sliding": "#0b6e4f",
    "block": "#6a994e",
    "shard": "#a7c957",
    "full": "#76c7b7",
    "py1e": "#d1495b",
    "py1br": "#edae49",
    "py1s": "#8d6a9f",
    "naive": "#444444",
    "index_shuffle": "#2d7dd2",
}
Row = Mapping[str, Any]


def _share_of_ideal(row: Row) -> float:
    return float(row["overall_shards"] / row["ideal_shards"])


def _worse_end(row: Row) -> float:
    return float(min(row["first_to_median"], row["last_to_median"]))


MEASURES: dict[str, Callable[[Row], float]] = {
    "effective shards a batch ÷ uniform permutation": _share_of_ideal,
    "first or last batch ÷ median, the lesser": _worse_end,
}


def draw(rows: Sequence[Row]) -> str:
    """Draw each dataset of equal shards, but the smallest, in a row of panels: quality, and ends of the epoch."""
    shards = [count for count in dict.fromkeys(row["shards"] for row in rows) if count > 4]
    width = LEFT + len(MEASURES) * (PANEL_WIDTH + GAP_X)
    height = TOP + len(shards) * (PANEL_HEIGHT + GAP_Y) + LEGEND
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="11">',
        "<title>Quality of shuffling against the shards that are live at a time</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    x = LEFT
    for order in [order for order in COLOURS if any(row["order"] == order for row in rows)]:
        parts.append(_mark(x, 20, order, default=False) + _text(x + 9, 24, order))
        x += 30 + 7 * len(order)
    parts.append(_mark(x, 20, "sliding", default=True) + _text(x + 12, 24, "our default"))
    for line, count in enumerate(shards):
        here = [row for row in rows if row["shards"] == count and row["sizes"] == "equal"]
        for column, (title, measure) in enumerate(MEASURES.items()):
            left = LEFT + column * (PANEL_WIDTH + GAP_X)
            parts += _panel(
                here, f"{count:,} shards: {title}", measure, left, TOP + line * (PANEL_HEIGHT + GAP_Y)
            )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(
    rows: Sequence[Row], title: str, measure: Callable[[Row], float], left: float, top: float
) -> list[str]:
    most = math.log2(rows[0]["shards"])
    highest = 1.2

    def at(row: Row) -> tuple[float, float]:
        share = min(1.0, max(0.0, math.log2(row[MOST_LIVE]) / most))
        height = min(highest, max(0.0, measure(row))) / highest
        return left + share * PANEL_WIDTH, top + (1 - height) * PANEL_HEIGHT

    parts = [
        f'<rect x="{left}" y="{top}" width="{PANEL_WIDTH}" height="{PANEL_HEIGHT}" fill="none" stroke="#999999"/>',
        _text(left, top - 8, title, weight="bold"),
        _text(
            left + PANEL_WIDTH / 2,
            top + PANEL_HEIGHT + 30,
            "shards live at a time, at most",
            anchor="middle",
        ),
    ]
    for tick in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        y = top + (1 - tick / highest) * PANEL_HEIGHT
        parts.append(f'<path d="M{left} {y:.1f}h{PANEL_WIDTH}" stroke="#e4e4e4"/>')
        parts.append(_text(left - 6, y + 4, f"{tick:.1f}", anchor="end"))
    for power in range(0, int(most) + 1, 2):
        x = left + power / most * PANEL_WIDTH
        parts.append(_text(x, top + PANEL_HEIGHT + 14, f"{2**power:,}", anchor="middle"))
    if measure is _worse_end:
        y = top + (1 - 0.7 / highest) * PANEL_HEIGHT
        parts.append(f'<path d="M{left} {y:.1f}h{PANEL_WIDTH}" stroke="#0b6e4f" stroke-dasharray="5 4"/>')
    for lanes in sorted({row["lanes"] for row in rows if row["order"] == "sliding"}):
        line = sorted(at(row) for row in rows if row["order"] == "sliding" and row["lanes"] == lanes)
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in line)
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{COLOURS["sliding"]}" stroke-opacity="0.5"/>'
        )
    # Ours last, so that it is on top.
    for row in sorted(
        rows, key=lambda row: (row["party"] == OURS, row["order"] == "sliding", row["default"])
    ):
        if row["order"] in COLOURS:
            default = bool(row["default"]) and row["order"] == "sliding"
            parts.append(_mark(*at(row), row["order"], default=default))
    return parts


def _mark(x: float, y: float, order: str, *, default: bool) -> str:
    if default:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6.5" fill="none" stroke="#000000" stroke-width="2"/>'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{COLOURS[order]}" fill-opacity="0.8"/>'


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}">{escape(text)}</text>'
    )


def main() -> None:
    """Draw the result in a file to another file."""
    source, picture = map(Path, sys.argv[1:])
    results = json.loads(source.read_text())
    picture.write_text(draw(next(result["rows"] for result in results if "rows" in result)))


if __name__ == "__main__":
    main()

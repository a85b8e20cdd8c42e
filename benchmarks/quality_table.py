"""The survey of shuffle quality as text: defaults side by side, and everybody at equal working sets."""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.contest import OURS

CARRIED, MOST_LIVE = "carried_shards_max", "live_shards_max"
LIVE, NEEDED = "live_shards_mean", "needed_shards_mean"
MEASURE = "overall_shards"
_EDGE = (
    0.98  # a working set that is 2 % below the least of a curve counts as that: lanes turn in other batches
)
_COLUMNS = {
    "needed, mean": "needed_shards_mean",
    "needed, most": "needed_shards_max",
    "live, most": "live_shards_max",
    "carried, most": "carried_shards_max",
    "effective": "effective_shards",
    "overall": "overall_shards",
    "ideal": "ideal_shards",
    "first": "first_to_median",
    "last": "last_to_median",
    "least": "least_to_median",
    "spread": "shard_spread",
    "shard together": "same_shard_together",
    "shard near": "same_shard_near",
    "neighbours together": "neighbours_together",
    "met again": "met_again",
}


@dataclass(frozen=True)
class Beside:
    """A peer's settings on some datasets beside ``sliding`` with as many shards live.

    Attributes:
        order: the peer's order.
        shards: of the datasets.
        same_lanes: our effective shards ÷ the peer's, with as many lanes as the peer has canonical nodes.
        any_lanes: the same with the number of lanes, of those tried, that mixes best.
    """

    order: str
    shards: int
    same_lanes: Sequence[float]
    any_lanes: Sequence[float]


def beside(
    rows: Sequence[Mapping[str, Any]], working_set: str = MOST_LIVE, measure: str = MEASURE
) -> Iterator[Beside]:
    """Compare each peer's order with ``sliding``, which is interpolated between the windows that were tried."""
    peers = dict.fromkeys((row["order"], row["shards"]) for row in rows if row["party"] != OURS)
    for order, shards in peers:
        same, best = [], []
        for row in rows:
            if (row["order"], row["shards"]) != (order, shards) or row["party"] == OURS:
                continue
            at = {
                lanes: value
                for lanes, curve in _curves(rows, row, working_set, measure).items()
                if (value := _between(curve, row[working_set])) is not None
            }
            if row["lanes"] in at:
                same.append(at[row["lanes"]] / row[measure])
            if at:
                best.append(max(at.values()) / row[measure])
        yield Beside(order, shards, same, best)


def _curves(
    rows: Sequence[Mapping[str, Any]], of: Mapping[str, Any], working_set: str, measure: str
) -> dict[int, list[tuple[float, float]]]:
    """Lanes -> (working set, measure) of our ``sliding`` on the dataset of a row, ascending.

    Of two windows with the same working set the better one counts, as a user would take it.
    """
    curves: dict[int, dict[float, float]] = {}
    for row in rows:
        if (row["party"], row["order"], row["shards"], row["sizes"]) == (
            OURS,
            "sliding",
            of["shards"],
            of["sizes"],
        ):
            points = curves.setdefault(row["lanes"], {})
            points[row[working_set]] = max(row[measure], points.get(row[working_set], 0))
    return {lanes: sorted(points.items()) for lanes, points in curves.items()}


def _between(curve: Sequence[tuple[float, float]], at: float) -> float | None:
    """Interpolate; None below the curve. Above it, where all shards are needed, its end holds."""
    places = [place for place, _ in curve]
    right = bisect_left(places, at)
    if right == len(curve):
        return curve[-1][1]
    if curve[right][0] == at:
        return curve[right][1]
    if right == 0:
        return curve[0][1] if at >= _EDGE * places[0] else None
    (low, below), (high, above) = curve[right - 1], curve[right]
    return below + (above - below) * (at - low) / (high - low)


def render_quality(result: Mapping[str, Any]) -> str:
    """Give both tables."""
    rows = result["rows"]
    lines = [f"### {result['title']}", "", f"{result['date']}; commit {result['commit']}.", ""]
    lines += [_defaults(rows), "", _beside(rows)]
    if result["not_measured"]:
        lines += ["", f"Not measured, no interpreter given: {', '.join(result['not_measured'])}."]
    return "\n".join(lines) + "\n"


def _defaults(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        "| shards | order | lanes | window | " + " | ".join(_COLUMNS) + " |",
        "| ---: | --- | ---: | ---: |" + " ---: |" * len(_COLUMNS),
    ]
    for shards in dict.fromkeys(row["shards"] for row in rows):
        for row in rows:
            if row["shards"] != shards or row["sizes"] != "equal" or not row["default"]:
                continue
            order = (
                f"**{row['order']}**" if (row["party"], row["order"]) == (OURS, "sliding") else row["order"]
            )
            values = [_number(row[key]) for key in _COLUMNS.values()]
            lines.append(
                f"| {shards:,} | {order} | {row['lanes']} | {_window(row)} | " + " | ".join(values) + " |"
            )
    return "\n".join(lines)


def _window(row: Mapping[str, Any]) -> str:
    return "" if row["window"] is None or row["order"] in ("shard", "full") else str(row["window"])


def _beside(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        "| shards | peer's order | settings | carried, any lanes | carried, same lanes | live, any lanes | "
        "live, same lanes | most live, any lanes | most live, same lanes | needed, any lanes | "
        "worse end: theirs | ours |",
        "| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    by = {key: list(beside(rows, key)) for key in (CARRIED, MOST_LIVE, LIVE, NEEDED)}
    order = sorted(range(len(by[NEEDED])), key=lambda number: by[NEEDED][number].shards)
    for n in order:
        carried, most, live, needed = (by[key][n] for key in (CARRIED, MOST_LIVE, LIVE, NEEDED))
        theirs = _ends([r for r in rows if (r["order"], r["shards"]) == (needed.order, needed.shards)])
        ours = _ends(
            [r for r in rows if r["order"] == "sliding" and r["shards"] == needed.shards and r["default"]]
        )
        pairs = [(each.any_lanes, each.same_lanes) for each in (carried, live, most)]
        ratios = [*(ratio for pair in pairs for ratio in pair), needed.any_lanes]
        lines.append(
            f"| {needed.shards:,} | {needed.order} | {len(needed.any_lanes)} | "
            f"{' | '.join(map(_spread, ratios))} | {theirs:.2f} | {ours:.2f} |"
        )
    return "\n".join(lines)


def _ends(rows: Sequence[Mapping[str, Any]]) -> float:
    return min(min(row["first_to_median"], row["last_to_median"]) for row in rows)


def _spread(ratios: Sequence[float]) -> str:
    """Median, least and most."""
    if not ratios:
        return ""
    return f"**{statistics.median(ratios):.2f}** ({min(ratios):.2f} to {max(ratios):.2f})"


def summarize_quality(result: Mapping[str, Any]) -> list[str]:
    """Give rows of the summary table."""
    lines = []
    for found in sorted(beside(result["rows"]), key=lambda each: each.shards):
        lines.append(
            f"| shuffle quality, same shards live at most: {found.shards:,} shards | "
            f"{_spread(found.any_lanes)} | {OURS}, sliding | {found.order} | effective shards/batch |"
        )
    return lines


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

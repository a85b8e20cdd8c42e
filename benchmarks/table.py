"""Results as text for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.quality_table import render_quality


def render(result: Mapping[str, Any]) -> str:
    """Give one result as a Markdown table: ratios first."""
    if "rows" in result:
        return render_quality(result)
    machine = result["machine"]
    if not result["parties"]:
        return f"### {result['title']}\n\n{_left_out(result)}\n"
    first, *_ = result["parties"]
    equal = "products equal" if result["equal_products"] else "products not compared"
    lines = [
        f"### {result['title']}",
        "",
        f"{machine['cores']} cores, {machine['cpu']}, {machine['memory_gib']} GiB, {machine['file_system']}; "
        f"cache {result['cache']}; {equal}; {result['date']}; commit {result['commit']}.",
        "",
    ]
    keys = list(dict.fromkeys(key for party in result["parties"].values() for key in party["median"]))
    lines += [
        f"| | {first} is better by (least to most) | " + " | ".join(keys) + " |",
        "| --- | --- |" + " ---: |" * len(keys),
    ]
    for name, party in result["parties"].items():
        ratio = result["ratios"].get(f"{first} / {name}")
        times = (
            ""
            if ratio is None
            else (f"{number(ratio['median'])} × ({number(ratio['least'])} to {number(ratio['most'])})")
        )
        values = [number(party["median"][key]) if key in party["median"] else "" for key in keys]
        lines.append(f"| {name} | {times} | " + " | ".join(values) + " |")
    return "\n".join([*lines, "", _left_out(result)]).rstrip() + "\n"


def _left_out(result: Mapping[str, Any]) -> str:
    lines = []
    if result["not_measured"]:
        lines.append(f"Not measured, no interpreter given: {', '.join(result['not_measured'])}.")
    for name, reason in {**result.get("unable", {}), **result.get("failed", {})}.items():
        lines.append(f"- {name}: {reason}")
    return "\n".join(lines)


def number(value: float) -> str:
    """Give three digits, or all of a thousand and more."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"

"""Results as text for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.quality_table import render_quality, summarize_quality


def render(result: Mapping[str, Any]) -> str:
    """Give one result as a Markdown table: ratios first."""
    if "rows" in result:
        return render_quality(result)
    machine = result["machine"]
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
            else (f"{_number(ratio['median'])} × ({_number(ratio['least'])} to {_number(ratio['most'])})")
        )
        values = [_number(party["median"][key]) if key in party["median"] else "" for key in keys]
        lines.append(f"| {name} | {times} | " + " | ".join(values) + " |")
    if result["not_measured"]:
        lines += ["", f"Not measured, no interpreter given: {', '.join(result['not_measured'])}."]
    return "\n".join(lines) + "\n"


def summarize(results: Iterable[Mapping[str, Any]]) -> str:
    """Give one Markdown table of all ratios of some results."""
    lines = [
        "| work | times better, median (least to most) | first | other | unit |",
        "| --- | ---: | --- | --- | --- |",
    ]
    for result in results:
        if "rows" in result:
            lines += summarize_quality(result)
            continue
        first, *others = result["parties"]
        for name in others:
            ratio, metric = result["ratios"][f"{first} / {name}"], result["metric"]
            values = [_number(result["parties"][party]["median"][metric]) for party in (first, name)]
            lines.append(
                f"| {result['title']} | **{_number(ratio['median'])}** ({_number(ratio['least'])} to "
                f"{_number(ratio['most'])}) | {first}: {values[0]} | {name}: {values[1]} | "
                f"{metric.replace('_per_', '/')} |"
            )
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"

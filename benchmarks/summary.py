"""All results as the tables of a page: rates of everybody, goals and whether they are reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.contest import OURS
from benchmarks.quality_table import summarize_quality
from benchmarks.table import number

BEGIN, END = "<!-- measured -->", "<!-- /measured -->"
PEERS = ("mosaicml-streaming", "litdata", "webdataset", "zephon")
Result = Mapping[str, Any]


def summarize(results: Sequence[Result]) -> str:
    """Give the tables: what everybody reached, the goals, all other ratios; then what is missing and why."""
    named = [result for result in results if "work" in result]
    rest = [result for result in results if "work" not in result and "axis" not in result]
    parts = []
    if named:
        parts += [_circumstances(named), _rates(named), _goals(named), _products(named)]
    if rest:
        parts.append(_ratios(rest))
    parts.append(_missing(results))
    return "\n\n".join(part for part in parts if part) + "\n"


def between_marks(page: str, text: str, name: str) -> str:
    """Put text between the marks of a page.

    Raises:
        ValueError: the page has no such marks.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{name} has no line {BEGIN}, followed by one {END}")
    return f"{before}{BEGIN}\n{text}{END}{after}"


def _circumstances(results: Sequence[Result]) -> str:
    machines = {
        f"{m['cores']} cores, {m['cpu']}, {m['memory_gib']} GiB, {m['file_system']}"
        for m in (result["machine"] for result in results)
    }
    loads = [result["machine"]["load_before"] for result in results]
    versions: dict[str, dict[str, str]] = {}
    for result in results:
        versions |= result["versions"]
    cold = ", cold where it says cloud" if any(result.get("cache") == "cold" for result in results) else ""
    those = "; ".join(
        f"{name} {each.get(name, '?')} (Python {each['python']}, torch {each.get('torch', 'none')})"
        for name, each in versions.items()
    )
    return (
        f"{'; '.join(sorted(machines))}; {min(r['date'] for r in results)} to {max(r['date'] for r in results)}; "
        f"warm cache{cold}; load before each {min(loads)} to {max(loads)}; "
        f"commit {', '.join(sorted({r['commit'] for r in results}))}. {those}."
    )


def _rates(results: Sequence[Result]) -> str:
    """One line a work: the median of each library, and of the limits."""
    lines = [
        f"| work | unit | {OURS} | {' | '.join(PEERS)} | limit |",
        "| --- | --- | ---: |" + " ---: |" * (len(PEERS) + 1),
    ]
    for result in results:
        metric = result["metric"]
        values = {name: each["median"][metric] for name, each in result["parties"].items()}
        cells = []
        for library in (OURS, *PEERS):
            own = [name for name in values if _belongs(name, library)]
            cells.append("<br>".join(_cell(name, library, values[name]) for name in own) or "–")
        limits = [
            f"{name}: {number(value)}"
            for name, value in values.items()
            if not any(_belongs(name, library) for library in (OURS, *PEERS))
        ]
        lines.append(
            f"| {result['title']} | {unit(metric)} | {' | '.join(cells)} | {'<br>'.join(limits) or '–'} |"
        )
    return "\n".join(lines)


def _goals(results: Sequence[Result]) -> str:
    lines = [
        "| work | against | times better, median (least to most) | goal | |",
        "| --- | --- | ---: | ---: | --- |",
    ]
    for result in results:
        goals = result.get("goals", {})
        for pair, ratio in result["ratios"].items():
            first, _, other = pair.partition(" / ")
            goal = goals.get(other)
            reached = "" if goal is None else ("reached" if ratio["median"] >= goal else "**not reached**")
            shown = "" if goal is None else f"{number(goal)}"
            name = result["work"] if first == OURS else f"{result['work']} ({first})"
            lines.append(f"| {name} | {other} | {_times(ratio)} | {shown} | {reached} |")
        for party, (metric, most) in result.get("bounds", {}).items():
            if party in result["parties"]:
                value = result["parties"][party]["median"][metric]
                reached = "reached" if value <= most else "**not reached**"
                lines.append(
                    f"| {result['work']} | {party}: {metric} | {number(value)} | ≤ {number(most)} | {reached} |"
                )
    return "\n".join(lines)


def _products(results: Sequence[Result]) -> str:
    """What was made, and in what time, where parties have counted it."""
    lines = ["| work | party | samples | bytes | s | CPU s |", "| --- | --- | ---: | ---: | ---: | ---: |"]
    for result in results:
        for name, party in result["parties"].items():
            median = party["median"]
            if median.get("bytes"):
                cpu_s = median["cpu_s_per_million"] * median["samples"] / 1e6
                counts = f"{median['samples']:,.0f} | {median['bytes']:,.0f}"
                times = f"{number(median['seconds'])} | {number(cpu_s)}"
                lines.append(f"| {result['work']} | {name} | {counts} | {times} |")
    return "\n".join(lines) if len(lines) > 2 else ""


def _ratios(results: Sequence[Result]) -> str:
    lines = [
        "| further work | times better, median (least to most) | first | other | unit |",
        "| --- | ---: | --- | --- | --- |",
    ]
    for result in results:
        if "rows" in result:
            lines += summarize_quality(result)
            continue
        metric = result["metric"]
        for pair, ratio in result["ratios"].items():
            names = pair.split(" / ")
            values = [number(result["parties"][party]["median"][metric]) for party in names]
            lines.append(
                f"| {result['title']} | **{number(ratio['median'])}** ({number(ratio['least'])} to "
                f"{number(ratio['most'])}) | {names[0]}: {values[0]} | {names[1]}: {values[1]} | {unit(metric)} |"
            )
    return "\n".join(lines)


def _missing(results: Sequence[Result]) -> str:
    """Who is not in the tables, and why."""
    reasons: dict[str, list[str]] = {}
    for result in results:
        name = result.get("work", result["title"])
        for party, reason in {**result.get("unable", {}), **result.get("failed", {})}.items():
            reasons.setdefault(f"{party}: {reason}", []).append(name)
        for peer in result["not_measured"]:
            reasons.setdefault(f"{peer}: no interpreter was given", []).append(name)
    if not reasons:
        return ""
    return "\n".join(
        ["Not in the tables:", "", *(f"- {why} ({', '.join(works)})" for why, works in reasons.items())]
    )


def unit(metric: str) -> str:
    """The unit that the name of a metric ends in."""
    return {"seconds": "s", "first_batch_s": "s", "milliseconds": "ms", "gap_ms": "ms"}.get(
        metric, metric.replace("_per_", "/")
    )


def _belongs(name: str, library: str) -> bool:
    return name == library or any(word.strip("(),") == library for word in name.split())


def _cell(name: str, library: str, value: float) -> str:
    how = name.replace(library, "", 1).strip(" ,").removesuffix(" of")
    return number(value) if not how else f"{number(value)} ({how})"


def _times(ratio: Mapping[str, float]) -> str:
    return f"**{number(ratio['median'])}** ({number(ratio['least'])} to {number(ratio['most'])})"

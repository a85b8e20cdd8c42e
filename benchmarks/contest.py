"""Several parties do the same work, run by run in turn; what they produced is compared, and their medians."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.machine import ROOT, commit, describe_machine, now

OURS = "streamshard"


@dataclass(frozen=True)
class Party:
    """Who is measured.

    Attributes:
        name: as shown. The first party of a contest is the one that ratios are of.
        function: name of a function in the benchmark's module; it gets the options as keywords and returns a
            flat dict of numbers. With ``check=True`` it returns ``{"digest": …}`` of all it produced instead.
        peer: whose interpreter runs it; None for ours.
        options: further keywords, over those of the contest.
    """

    name: str
    function: str
    peer: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Contest:
    """One table of a result.

    Attributes:
        title: what is measured, with sizes.
        module: where the parties' functions are.
        parties: who.
        metric: the number that ratios are made of.
        higher_is_better: of the metric.
        options: keywords for all functions.
        cache: state of the page cache: ``warm``, ``cold``, or ``none`` where no file is read.
        checked: whether the parties' products are compared.
    """

    title: str
    module: str
    parties: Sequence[Party]
    metric: str
    higher_is_better: bool
    options: Mapping[str, Any] = field(default_factory=dict)
    cache: str = "warm"
    checked: bool = True


@dataclass(frozen=True)
class Setting:
    """How to run: interpreters of the peers by name, number of runs, directory for data, number of samples."""

    interpreters: Mapping[str, str]
    runs: int
    directory: Path
    samples: int | None = None

    def count(self, default: int) -> int:
        """Number of samples asked for, or a benchmark's own."""
        return default if self.samples is None else self.samples


class MismatchError(Exception):
    """Two parties that should have produced the same did not."""


def hold(contest: Contest, setting: Setting) -> dict[str, Any]:
    """Run a contest and return its result, ready for JSON.

    Each party first does the work once unmeasured: that warms the cache and gives the digest that must be the
    same for all. Then come the measured runs; in each one every party has its turn, the first one moving on.

    Raises:
        MismatchError: products differ.
        subprocess.CalledProcessError: a party failed; its messages are on stderr.
    """
    parties = [party for party in contest.parties if party.peer is None or party.peer in setting.interpreters]
    machine = describe_machine(setting.directory)
    if contest.checked:
        digests = {party.name: _measure(contest, party, setting, check=True)["digest"] for party in parties}
        if len(set(digests.values())) > 1:
            raise MismatchError(f"{contest.title}: products differ: {digests}")
    runs: dict[str, list[dict[str, float]]] = {party.name: [] for party in parties}
    for turn in range(setting.runs):
        first = turn % len(parties)
        for party in [*parties[first:], *parties[:first]]:
            runs[party.name].append(_measure(contest, party, setting))
    missing = sorted({p.peer for p in contest.parties if p.peer and p.peer not in setting.interpreters})
    return {
        "title": contest.title,
        "metric": contest.metric,
        "higher_is_better": contest.higher_is_better,
        "cache": contest.cache,
        "equal_products": contest.checked and len(parties) > 1,
        "date": now(),
        "commit": commit(),
        "machine": machine,
        "versions": {
            name: call(python, "benchmarks.machine", "versions", {})
            for name, python in {OURS: sys.executable, **setting.interpreters}.items()
            if name == OURS or name in {party.peer for party in parties}
        },
        "options": _without_paths(contest.options),
        "parties": {name: {"median": _medians(each), "runs": each} for name, each in runs.items()},
        "ratios": _ratios(contest, runs),
        "not_measured": missing,
    }


def _measure(contest: Contest, party: Party, setting: Setting, *, check: bool = False) -> dict[str, Any]:
    python = sys.executable if party.peer is None else setting.interpreters[party.peer]
    options = {**contest.options, **party.options}
    if contest.checked:
        options["check"] = check
    return call(python, contest.module, party.function, options)


def call(python: str, module: str, function: str, options: Mapping[str, Any]) -> Any:
    """Call ``module.function(**options)`` in an interpreter's own process and give what it returns."""
    with tempfile.TemporaryDirectory() as directory:
        result = Path(directory) / "result.json"
        command = [python, "-m", "benchmarks.child", str(result), module, function, json.dumps(dict(options))]
        subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        return json.loads(result.read_text())


def _medians(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def _ratios(
    contest: Contest, runs: Mapping[str, Sequence[Mapping[str, float]]]
) -> dict[str, dict[str, float]]:
    """How many times the first party is better than each other one: median, least and most over the runs."""
    (first, own), *others = runs.items()
    found = {}
    for name, theirs in others:
        ratios = [a[contest.metric] / b[contest.metric] for a, b in zip(own, theirs, strict=True)]
        if not contest.higher_is_better:
            ratios = [1 / ratio for ratio in ratios]
        found[f"{first} / {name}"] = {
            "median": round(statistics.median(ratios), 3),
            "least": round(min(ratios), 3),
            "most": round(max(ratios), 3),
        }
    return found


def _without_paths(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if not (isinstance(value, str) and "/" in value)}

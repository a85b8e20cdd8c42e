"""Several parties do the same work, run by run in turn; what they produced is compared, and their medians."""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.child import FailedError, call
from benchmarks.machine import commit, describe_machine, now

OURS = "streamshard"


@dataclass(frozen=True)
class Party:
    """Who is measured.

    Attributes:
        name: as shown. The first party of a contest is the one that ratios are of.
        function: name of a function in the benchmark's module; it gets the options as keywords and returns a
            flat dict of numbers. With ``check=True`` it returns digests of all it produced instead, by what they
            are of: ``{"digest": …}``. Parties with digests of the same name must agree.
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
        work: short name of the row of the summary that this is; empty: it has none.
        goals: party -> how many times better the first party is to be.
        bounds: party -> one of its numbers, and what it may be at most.
        unable: peer -> why it cannot do this work.
        most_runs: measured runs of each party, at most; None: as many as are asked for.
        axis: what grows from contest to contest, and how far it has grown here, for the picture of growth.
    """

    title: str
    module: str
    parties: Sequence[Party]
    metric: str
    higher_is_better: bool
    options: Mapping[str, Any] = field(default_factory=dict)
    cache: str = "warm"
    checked: bool = True
    work: str = ""
    goals: Mapping[str, float] = field(default_factory=dict)
    bounds: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    unable: Mapping[str, str] = field(default_factory=dict)
    most_runs: int | None = None
    axis: tuple[str, float] | None = None


@dataclass(frozen=True)
class Setting:
    """How to run.

    Attributes:
        interpreters: of the peers, by name.
        runs: measured runs of each party.
        directory: where data is made and kept.
        samples: in place of each benchmark's own number; None: that number.
        scale: factor on each benchmark's own number.
        limit_s: seconds that one run of a party may take.
        keep_going: a party that fails, takes too long or produces something else is left out, and the result
            says why; else that is an error.
    """

    interpreters: Mapping[str, str]
    runs: int
    directory: Path
    samples: int | None = None
    scale: float = 1.0
    limit_s: float = 900.0
    keep_going: bool = False

    def count(self, default: int) -> int:
        """Number of samples asked for, or a benchmark's own."""
        return max(1, round(default * self.scale)) if self.samples is None else self.samples


class MismatchError(Exception):
    """Two parties that should have produced the same did not."""


def hold(contest: Contest, setting: Setting) -> dict[str, Any]:
    """Run a contest and return its result, ready for JSON.

    Each party first does the work once unmeasured: that warms the cache and gives the digests that must be the
    same for all. Then come the measured runs; in each one every party has its turn, the first one moving on.

    Raises:
        MismatchError: products differ, and ``keep_going`` is not set.
        FailedError: a party failed or took too long, and ``keep_going`` is not set.
    """
    machine = describe_machine(setting.directory)
    begin = time.perf_counter()
    parties = [party for party in contest.parties if party.peer is None or party.peer in setting.interpreters]
    failed: dict[str, str] = {}
    agreed: dict[str, tuple[str, str]] = {}
    for party in parties if contest.checked else ():
        for name, digest in _tried(contest, party, setting, failed, "check").items():
            author, expected = agreed.setdefault(name, (party.name, digest))
            if digest != expected:
                difference = f"products differ: its {name} is {digest}, that of {author} {expected}"
                if not setting.keep_going:
                    raise MismatchError(f"{contest.title}: {party.name}: {difference}")
                _leave_out(failed, party, difference)
    runs: dict[str, list[dict[str, float]]] = {party.name: [] for party in parties}
    num_runs = min(setting.runs, contest.most_runs or setting.runs)
    for turn in range(num_runs):
        first = turn % len(parties)
        for party in [*parties[first:], *parties[:first]]:
            if party.name not in failed:
                runs[party.name].append(
                    _tried(contest, party, setting, failed, f"run {turn + 1} of {num_runs}")
                )
    complete = {name: each for name, each in runs.items() if name not in failed}
    return {
        **({"work": contest.work} if contest.work else {}),
        "title": contest.title,
        "metric": contest.metric,
        "higher_is_better": contest.higher_is_better,
        "cache": contest.cache,
        "equal_products": contest.checked and len(complete) > 1,
        "date": now(),
        "commit": commit(),
        "seconds": round(time.perf_counter() - begin, 1),
        "machine": machine,
        "versions": versions_of({party.peer for party in parties if party.peer}, setting),
        "options": _without_paths(contest.options),
        **({"axis": list(contest.axis)} if contest.axis else {}),
        "parties": {name: {"median": _medians(each), "runs": each} for name, each in complete.items()},
        "ratios": _ratios(contest, complete),
        **({"goals": dict(contest.goals)} if contest.goals else {}),
        **(
            {"bounds": {name: list(bound) for name, bound in contest.bounds.items()}}
            if contest.bounds
            else {}
        ),
        "not_measured": sorted(
            {p.peer for p in contest.parties if p.peer and p.peer not in setting.interpreters}
        ),
        **({"unable": dict(contest.unable)} if contest.unable else {}),
        **({"failed": failed} if failed else {}),
    }


def _tried(
    contest: Contest,
    party: Party,
    setting: Setting,
    failed: dict[str, str],
    purpose: str,
) -> dict[str, Any]:
    """Measure one party, or "check" it; its failure is noted in ``failed`` where the setting allows it."""
    print(
        f"[{time.strftime('%H:%M:%S')}] {contest.title} | {party.name} | {purpose}",
        file=sys.stderr,
        flush=True,
    )
    try:
        return _measure(contest, party, setting, check=purpose == "check")
    except FailedError as error:
        if not setting.keep_going:
            raise
        _leave_out(failed, party, str(error))
        return {}


def versions_of(peers: Iterable[str], setting: Setting) -> dict[str, dict[str, str]]:
    """What is installed for us and for peers whose interpreters run."""
    found = {}
    for name, python in {
        OURS: sys.executable,
        **{each: setting.interpreters[each] for each in peers},
    }.items():
        with contextlib.suppress(FailedError):
            found[name] = call(python, "benchmarks.machine", "versions", {}, limit_s=setting.limit_s)
    return found


def _leave_out(failed: dict[str, str], party: Party, reason: str) -> None:
    failed[party.name] = reason
    print(f"  {party.name} is left out: {reason}", file=sys.stderr, flush=True)


def _measure(contest: Contest, party: Party, setting: Setting, *, check: bool) -> dict[str, Any]:
    python = sys.executable if party.peer is None else setting.interpreters[party.peer]
    options = {**contest.options, **party.options}
    if contest.checked:
        options["check"] = check
    found: dict[str, Any] = call(python, contest.module, party.function, options, limit_s=setting.limit_s)
    return found


def _medians(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def _ratios(
    contest: Contest, runs: Mapping[str, Sequence[Mapping[str, float]]]
) -> dict[str, dict[str, float]]:
    """How many times the first party is better than each other one: median, least and most over the runs."""
    first = contest.parties[0].name
    return {f"{first} / {name}": ratio for name, ratio in _against(contest, runs, first)}


def _against(
    contest: Contest, runs: Mapping[str, Sequence[Mapping[str, float]]], first: str
) -> Iterator[tuple[str, dict[str, float]]]:
    for name, theirs in runs.items():
        if name == first or first not in runs:
            continue
        ratios = [a[contest.metric] / b[contest.metric] for a, b in zip(runs[first], theirs, strict=True)]
        if not contest.higher_is_better:
            ratios = [1 / ratio for ratio in ratios]
        yield (
            name,
            {
                "median": round(statistics.median(ratios), 3),
                "least": round(min(ratios), 3),
                "most": round(max(ratios), 3),
            },
        )


def _without_paths(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if not (isinstance(value, str) and "/" in value)}

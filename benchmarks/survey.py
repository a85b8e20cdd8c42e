"""What is computed and not timed: each party gives its rows once, in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.child import call
from benchmarks.contest import Party, Setting, versions_of
from benchmarks.machine import commit, describe_machine, now


@dataclass(frozen=True)
class Survey:
    """One table of numbers that are the same on every machine.

    Attributes:
        title: what is asked, with sizes.
        module: where the parties' functions are; each returns a list of flat dicts.
        parties: who.
        options: keywords for all functions.
    """

    title: str
    module: str
    parties: Sequence[Party]
    options: Mapping[str, Any] = field(default_factory=dict)


def conduct(survey: Survey, setting: Setting) -> dict[str, Any]:
    """Ask every party whose interpreter is there and return the result, ready for JSON.

    Raises:
        FailedError: a party failed.
    """
    parties = [party for party in survey.parties if party.peer is None or party.peer in setting.interpreters]
    rows = []
    for party in parties:
        python = sys.executable if party.peer is None else setting.interpreters[party.peer]
        found = call(python, survey.module, party.function, {**survey.options, **party.options})
        rows += [{"party": party.name, **row} for row in found]
    return {
        "title": survey.title,
        "date": now(),
        "commit": commit(),
        "machine": describe_machine(setting.directory),
        "versions": versions_of({party.peer for party in parties if party.peer}, setting),
        "options": dict(survey.options),
        "rows": rows,
        "not_measured": sorted(
            {p.peer for p in survey.parties if p.peer and p.peer not in setting.interpreters}
        ),
    }

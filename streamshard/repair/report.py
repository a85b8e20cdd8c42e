"""What a repair found and did, or would do."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from streamshard.read.report import Problem

Done = Literal["fetched", "rewritten", "cut", "dropped", "removed", "side file made", "undecided"]


@dataclass(frozen=True, slots=True)
class Repair:
    """What became of one shard with problems.

    Attributes:
        shard: basename of its file in the index before.
        done: ``"fetched"`` from the origin; ``"rewritten"``: all its samples are good, in a new
            file; ``"cut"`` to its good samples; ``"dropped"``: none is left;
            ``"removed"``: a bad raw file beside a good compressed one; ``"side file made"``: the hashes of its
            samples, which were lost, made anew from the whole shard; ``"undecided"``: left as it was, the message
            says why.
        message: one sentence.
        problems: what was wrong.
        lost: ids, in the dataset before, of the samples that are lost: half-open ranges in ascending order.
        unproven: samples kept of which nothing but that they decode says that they are good.
    """

    shard: str
    done: Done
    message: str
    problems: tuple[Problem, ...] = ()
    lost: tuple[tuple[int, int], ...] = ()
    unproven: int = 0

    @property
    def num_lost(self) -> int:
        """Samples that are lost."""
        return sum(end - begin for begin, end in self.lost)


@dataclass(slots=True)
class RepairReport:
    """The result of ``repair_dataset``.

    ``index``: ``"sound"``, ``"fetched"`` from the origin, or ``"rebuilt"`` from the shards. ``ok``: every problem
    was dealt with. ``changed``: anything was written, or would be without ``dry_run``.
    """

    source: str
    dry_run: bool
    index: Literal["sound", "fetched", "rebuilt"] = "sound"
    num_shards: int = 0
    num_samples: int = 0
    repairs: list[Repair] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not any(repair.done == "undecided" for repair in self.repairs)

    @property
    def changed(self) -> bool:
        return self.index != "sound" or any(repair.done != "undecided" for repair in self.repairs)

    @property
    def num_lost(self) -> int:
        """Samples that are lost, as far as their number is known."""
        return sum(repair.num_lost for repair in self.repairs)

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain lists, dicts, strings and numbers."""
        return {"ok": self.ok, "changed": self.changed, "num_lost": self.num_lost, **asdict(self)}


def gaps(kept: Sequence[int], count: int, first: int) -> tuple[tuple[int, int], ...]:
    """Give the half-open ranges between ascending rows below ``count``, moved up by ``first``."""
    bounds = [-1, *kept, count]
    return tuple((first + a + 1, first + b) for a, b in itertools.pairwise(bounds) if b > a + 1)

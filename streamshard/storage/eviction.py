"""Which cached files to give up first. Pure: names and numbers in, an order out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# How long another job's file that nobody opens is taken for one that is still in use there.
_FRESH_NS = 600 * 10**9


@dataclass(frozen=True, slots=True)
class CachedEntry:
    """One finished file that this package put into a cache directory.

    ``last_used_ns`` is a time of the file system's clock, comparable only with others of the same directory.
    """

    name: str
    nbytes: int
    last_used_ns: int


def plan_eviction(
    entries: Sequence[CachedEntry], next_use: Callable[[str], float | None] | None = None
) -> list[CachedEntry]:
    """Order ``entries`` from the one to delete first to the one to keep longest.

    Args:
        next_use: tells how far away the next use of a name is, in any unit, below 1 for what is in use; inf for
            "not needed again"; None for a file that it does not know, another job's. First goes what is not needed
            again, then what is needed furthest in the future; without it, and among equals, what was not used for
            longest. A file that it does not know is kept like one that is about to be used if it was used within
            ten minutes of the directory's newest use, else it goes first.
    """
    newest = max((entry.last_used_ns for entry in entries), default=0)

    def rank(entry: CachedEntry) -> tuple[float, int, str]:
        distance = 0.0
        if next_use is not None:
            known = next_use(entry.name)
            fresh = newest - entry.last_used_ns <= _FRESH_NS
            distance = known if known is not None else 1.0 if fresh else math.inf
        return (-distance, entry.last_used_ns, entry.name)

    return sorted(entries, key=rank)

"""Which cached files to give up first. Pure: names and numbers in, an order out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass


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
        next_use: tells how far away the next use of a name is, in any unit; None for "not needed again".
            First goes what is not needed again, then what is needed furthest in the future; without it, and
            among equals, what was not used for longest.
    """

    def rank(entry: CachedEntry) -> tuple[float, int, str]:
        distance = None if next_use is None else next_use(entry.name)
        return (-math.inf if distance is None else -distance, entry.last_used_ns, entry.name)

    return sorted(entries, key=rank)

"""The least that a cache of some room can fetch for a known sequence of requests: Belady's rule, computed offline."""

from __future__ import annotations

from collections.abc import Hashable, Sequence


def fewest_fetches(requests: Sequence[Hashable], room: int) -> int:
    """Give the fetches of the best eviction, for files of one size of which ``room`` fit."""
    never = len(requests)
    next_use = [never] * len(requests)
    last: dict[Hashable, int] = {}
    for place in range(len(requests) - 1, -1, -1):
        next_use[place] = last.get(requests[place], never)
        last[requests[place]] = place
    cached: dict[Hashable, int] = {}
    fetches = 0
    for place, name in enumerate(requests):
        if name not in cached:
            fetches += 1
            if len(cached) == room:
                del cached[max(cached, key=cached.__getitem__)]
        cached[name] = next_use[place]
    return fetches


def fetches_of_lru(requests: Sequence[Hashable], room: int) -> int:
    """Give the fetches where what was not used for longest is given up."""
    cached: dict[Hashable, None] = {}
    fetches = 0
    for name in requests:
        if name in cached:
            del cached[name]
        else:
            fetches += 1
            if len(cached) == room:
                del cached[next(iter(cached))]
        cached[name] = None
    return fetches

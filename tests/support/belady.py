"""The least that a cache of some room can fetch for a known sequence of requests: Belady's rule, computed offline."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from streamshard import StreamingDataset


def requests_of(
    dataset: StreamingDataset, epochs: int, global_batch_size: int, samples_per_shard: int
) -> list[int]:
    """The shards of all steps of a job's first epochs, in the order of the first sample of each in its step."""
    order = dataset._states.order
    found: list[int] = []
    for epoch in range(epochs):
        plan = order.plan(epoch, 0, global_batch_size=global_batch_size)
        for batch in range(plan.num_global_batches):
            shards = order.rank_batches(plan, epoch, batch, batch + 1).samples // samples_per_shard
            found += shards[np.sort(np.unique(shards, return_index=True)[1])].tolist()
    return found


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

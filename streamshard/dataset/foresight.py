"""Evicting with knowledge of the future: what the order tells the caches that an iteration fetches through."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from streamshard.order.uses import NextUses, live_nbytes
from streamshard.read.keys import key_in

if TYPE_CHECKING:
    from streamshard.dataset.feed import Share
    from streamshard.dataset.source import OpenStream, Source

logger = logging.getLogger(__name__)

# What other readers of the node may lag behind, in shards of the mean size: those are kept for them.
_SLACK_SHARDS = 2


class Foresight:
    """Tells the caches of a source how far away the next use of each of their files is, as long as it is set.

    Args:
        source: the streams.
        share: the part of an epoch that is read.
    """

    def __init__(self, source: Source, share: Share) -> None:
        self._source = source
        self._share = share
        self._position = share.plan.start
        self._limited = [
            number for number, stream in enumerate(source.streams) if stream.limit_bytes is not None
        ]
        self._is_shared = any(source.streams[number].cache.is_shared for number in self._limited)
        self._uses: NextUses | None = None
        self._names: dict[int, dict[str, int]] = {}
        self._found: tuple[int, list[NDArray[np.float64]]] | None = None
        self._hooks: list[tuple[OpenStream, Callable[[str], float | None]]] = []
        if self._limited:
            slack = _SLACK_SHARDS * max(1, source.num_samples // source.num_shards)
            self._uses = NextUses(
                share.order, part=share.part_of_node if self._is_shared else share.part_of_rank, slack=slack
            )

    def fits(self) -> bool:
        """Whether each limit has room for the shards that the shuffle keeps in use at once.

        If not, one reader of the node says so in the log.
        """
        streams = self._source.streams
        roomy = True
        nodes = self._share.num_nodes if self._is_shared else self._share.plan.ranks
        for place in {streams[number].cache.place for number in self._limited}:
            here = [stream.cache.place == place and stream.limit_bytes is not None for stream in streams]
            means = [
                float(stream.index.table.raw_nbytes.mean()) if counted else 0.0
                for stream, counted in zip(streams, here, strict=True)
            ]
            live = live_nbytes(self._share.order, means, num_nodes=nodes)
            limit = min(
                stream.limit_bytes or 0 for stream, counted in zip(streams, here, strict=True) if counted
            )
            if live <= limit:
                continue
            roomy = False
            if self._share.is_first_here:
                logger.warning(
                    "%s: the shuffle keeps shards of about %s bytes in use at once here, "
                    "cache_limit= is %s bytes: shards are fetched again and again; raise cache_limit=, or lower "
                    "shuffle_block_size= or num_canonical_nodes=",
                    place,
                    f"{live:,}",
                    f"{limit:,}",
                )
        return roomy

    def set(self) -> None:
        """Make the caches with a limit ask here what to give up."""
        for number in self._limited:
            stream = self._source.streams[number]
            hook = partial(self._next_use, number)
            stream.cache.next_use = hook
            self._hooks.append((stream, hook))

    def unset(self) -> None:
        """Leave the caches as they were, but for those that somebody else has set since."""
        for stream, hook in self._hooks:
            if stream.cache.next_use is hook:
                stream.cache.next_use = None
        self._hooks.clear()

    def now_at(self, batch: int) -> None:
        """Note that this reader's batch number ``batch`` is what is read now."""
        share = self._share
        number = share.worker + (share.skip + batch) * share.workers
        plan = share.plan
        self._position = min(plan.start + number * plan.global_batch_size, plan.num_samples)

    def _next_use(self, number: int, name: str) -> float | None:
        names = self._names.get(number)
        if names is None:
            names = self._names[number] = _names_of(self._source.streams[number])
        shard = names.get(name)
        if shard is None:
            return None
        position, found = self._position, self._found
        if found is None or found[0] != position:
            found = self._found = (position, self._distances(position))
        return float(found[1][number][shard])

    def _distances(self, position: int) -> list[NDArray[np.float64]]:
        if self._uses is None:
            return [np.full(len(stream.index.shards), math.inf) for stream in self._source.streams]
        return self._uses.distances(self._share.epoch, self._share.plan.start, position)


def _names_of(stream: OpenStream) -> dict[str, int]:
    """The number of the shard that each file of a stream's cache belongs to."""
    names: dict[str, int] = {}
    for number, info in enumerate(stream.index.shards):
        names[key_in(stream.split, info.raw.basename)] = number
        if info.compressed is not None:
            names[key_in(stream.split, info.compressed.basename)] = number
    return names

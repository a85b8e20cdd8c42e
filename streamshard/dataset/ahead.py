"""The shards that a feed will need soon, fetched before they are needed."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from streamshard.dataset.foresight import Foresight
from streamshard.dataset.tolerance import LostShards
from streamshard.errors import FormatError
from streamshard.storage.cache import Blob, NodeCache
from streamshard.storage.prefetch import Prefetcher

if TYPE_CHECKING:
    from streamshard.dataset.feed import Share
    from streamshard.dataset.source import Source

# Bytes of shards wanted ahead of the trainer by each worker where ``predownload`` says nothing.
AHEAD_NBYTES = 256 << 20
_FETCH_THREADS = 4
# Shares of a limit that all readers of a node together fetch ahead, and whose samples they look ahead: what is fetched
# early takes the room of what a later epoch could use.
_AHEAD_OF_LIMIT = 4
_IN_SIGHT_OF_LIMIT = 16


class _Caches:
    """Fetches each file through the cache of its own stream; streams may have files of one name."""

    def __init__(self) -> None:
        # Holds the blobs, so that no id is used again.
        self._cache_of: dict[int, tuple[Blob, NodeCache, Blob | None]] = {}

    def add(self, blob: Blob, cache: NodeCache, side: Blob | None) -> None:
        self._cache_of[id(blob)] = (blob, cache, side)

    def ensure(self, blob: Blob) -> Path:
        _, cache, side = self._cache_of.pop(id(blob))
        if side is not None:
            # Fetched ahead too. Whoever opens the shard asks for it again, and then says what is wrong.
            with contextlib.suppress(FormatError, OSError):
                cache.ensure(side)
        return cache.ensure(blob)


class Ahead:
    """The shards that the chunks in sight need, fetched by threads in the order of need.

    A shard is on the prefetcher's account only from its first mention until it is first waited for: the many
    shards that a shuffle has live at once are local by then and must not stop the next ones from being fetched.
    """

    def __init__(
        self, source: Source, share: Share, foresight: Foresight, lost: LostShards | None = None
    ) -> None:
        self._source = source
        self._lost = LostShards(tolerated=False) if lost is None else lost
        self._needed: Counter[int] = Counter()
        self._wanted: dict[int, int] = {}
        self._local: set[int] = set()
        self.nbytes = 0
        self.fetches = any(stream.fetches for stream in source.streams)
        self._caches = _Caches()
        self._prefetcher: Prefetcher | None = None
        limits = [
            stream.cache.limit_bytes for stream in source.streams if stream.cache.limit_bytes is not None
        ]
        self._evicts = bool(limits)
        # What is fetched ahead must still be there when its turn comes.
        readers = share.readers_here
        self.most_nbytes = min([AHEAD_NBYTES, *(limit // (_AHEAD_OF_LIMIT * readers) for limit in limits)])
        self.most_samples: int | None = None
        if limits:
            in_sight = min(limits) * source.num_samples // max(1, source.raw_nbytes)
            self.most_samples = max(1, in_sight // (_IN_SIGHT_OF_LIMIT * readers))
            if self.fetches and not foresight.fits() and lost is None:
                # Shards that are in use would be given up for those fetched ahead, and the other way round. Where lost
                # shards are tolerated, they are found out ahead.
                self.fetches = False

    def want(self, samples: NDArray[np.int64]) -> None:
        """Ask for the shards of ``samples``, behind all that was asked for before."""
        if not self.fetches:
            return
        for shard in self._shards_of(samples):
            self._needed[shard] += 1
            if self._needed[shard] > 1 or shard in self._local or shard in self._lost:
                continue
            stream, number = self._source.stream_of(shard)
            blob = stream.blob(number)
            if blob is None:
                self._local.add(shard)
                continue
            if self._prefetcher is None:
                self._prefetcher = Prefetcher(
                    self._caches.ensure, threads=_FETCH_THREADS, ahead_bytes=self.most_nbytes
                )
            self._caches.add(blob, stream.cache, stream.side_blob(number))
            self._wanted[shard] = blob.nbytes
            self.nbytes += blob.nbytes
            self._prefetcher.want(shard, blob)

    def wait(self, samples: NDArray[np.int64]) -> None:
        """Block until the shards of ``samples`` are local, or lost; raises what else kept one from it."""
        if self._prefetcher is None:
            return
        for shard in self._shards_of(samples):
            if shard in self._wanted:
                try:
                    self._prefetcher.wait(shard)
                except (FormatError, OSError) as error:
                    if not self._lost.note(shard, error):
                        raise
                self._prefetcher.done_with(shard)
                self.nbytes -= self._wanted.pop(shard)
                self._local.add(shard)

    def done_with(self, samples: NDArray[np.int64]) -> None:
        """Take back what ``want`` asked for."""
        if not self.fetches:
            return
        for shard in self._shards_of(samples):
            self._needed[shard] -= 1
            if self._needed[shard]:
                continue
            del self._needed[shard]
            if self._evicts:
                self._local.discard(shard)

    def close(self) -> None:
        """End all fetching."""
        if self._prefetcher is not None:
            self._prefetcher.close()

    def _shards_of(self, samples: NDArray[np.int64]) -> list[int]:
        """Shards in the order in which the samples need them."""
        shards, first = np.unique(self._source.locate(samples)[0], return_index=True)
        ordered: list[int] = shards[np.argsort(first)].tolist()
        return ordered

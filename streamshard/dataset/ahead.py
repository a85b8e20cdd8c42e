"""The shards that a feed will need soon, fetched before they are needed."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from streamshard.dataset.early import EarlyReads
from streamshard.dataset.foresight import Foresight
from streamshard.dataset.tolerance import LostShards
from streamshard.errors import FormatError
from streamshard.storage.blob import Blob
from streamshard.storage.prefetch import Prefetcher

if TYPE_CHECKING:
    from streamshard.dataset.feed import Share
    from streamshard.dataset.source import Source
    from streamshard.read.ranged import RangedShard
    from streamshard.storage.cache import NodeCache
    from streamshard.storage.memory_cache import MemoryCache

# Bytes of shards wanted ahead of the trainer by each worker where ``predownload`` says nothing.
AHEAD_NBYTES = 256 << 20
# Fetches at once: more of small shards, so that a request's latency is filled by others.
_FETCH_THREADS = 4
_MOST_THREADS = 16
_THREADS_NBYTES = 16 << 20
# Share of a limit that all readers of a node together fetch ahead.
_AHEAD_OF_LIMIT = 4


class _Caches:
    """Fetches each file through the cache of its own stream; streams may have files of one name."""

    def __init__(self) -> None:
        # Holds the blobs, so that no id is used again.
        self._cache_of: dict[int, tuple[Blob, NodeCache | MemoryCache, Blob | None]] = {}

    def add(self, blob: Blob, cache: NodeCache | MemoryCache, side: Blob | None) -> None:
        self._cache_of[id(blob)] = (blob, cache, side)

    def forget(self, blob: Blob) -> None:
        self._cache_of.pop(id(blob), None)

    def ensure(self, blob: Blob) -> None:
        _, cache, side = self._cache_of[id(blob)]
        if side is not None:
            # Fetched ahead too. Whoever opens the shard asks for it again, and then says what is wrong.
            with contextlib.suppress(FormatError, OSError):
                cache.ensure(side)
        cache.ensure(blob)


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
        self._wanted: dict[int, Blob] = {}
        self._local: set[int] = set()
        self.nbytes = 0
        self.fetches = any(stream.fetches for stream in source.streams)
        self._caches = _Caches()
        self._prefetcher: Prefetcher | None = None
        limits = [stream.limit_bytes for stream in source.streams if stream.limit_bytes is not None]
        self._evicts = bool(limits)
        # What is fetched ahead must still be there when its turn comes.
        readers = share.readers_here if any(stream.cache.is_shared for stream in source.streams) else 1
        self.most_nbytes = min([AHEAD_NBYTES, *(limit // (_AHEAD_OF_LIMIT * readers) for limit in limits)])
        self.most_samples: int | None = None
        self._threads = max(
            _FETCH_THREADS, min(_MOST_THREADS, _THREADS_NBYTES // max(1, _mean_nbytes(source)))
        )
        if limits:
            in_sight = (source.nbytes_in_sight or 0) * source.num_samples // max(1, source.raw_nbytes)
            self.most_samples = max(1, in_sight // readers)
            if self.fetches and not foresight.fits() and lost is None:
                # Shards that are in use would be given up for those fetched ahead, and the other way round. Where lost
                # shards are tolerated, they are found out ahead.
                self.fetches = False
        # What is wanted before the first samples are read by range is held back meanwhile.
        self._held: list[int] = []
        self._early = EarlyReads.of(source, share) if self.fetches and lost is None else None

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
                    self._caches.ensure, threads=self._threads, ahead_bytes=self.most_nbytes
                )
            self._caches.add(blob, stream.cache, stream.side_blob(number))
            self._wanted[shard] = blob
            self.nbytes += blob.nbytes
            if self._early is None or self._early.has_begun:
                self._prefetcher.want(shard, blob)
            else:
                self._held.append(shard)

    def by_range(self, samples: NDArray[np.int64]) -> dict[int, RangedShard] | None:
        """Read the samples of shards that are not here yet by range, at the start of an iteration.

        Whole shards follow once the first ones are read. None where all are here, or are better waited for.
        """
        if self._early is None:
            return None
        found = self._early.read(samples, self._wanted)
        if found is None:
            self._early = None
        self._release()
        return found

    def _release(self) -> None:
        """Let whole shards come, in the order in which they were wanted."""
        held, self._held = self._held, []
        for shard in held:
            if self._prefetcher is not None and shard in self._wanted:
                self._prefetcher.want(shard, self._wanted[shard])

    def wait(self, samples: NDArray[np.int64]) -> None:
        """Block until the shards of ``samples`` are local, or lost; raises what else kept one from it."""
        if self._prefetcher is None:
            return
        if self._held:
            self._early = None
            self._release()
        for shard in self._shards_of(samples):
            if shard in self._wanted:
                try:
                    self._prefetcher.wait(shard)
                except (FormatError, OSError) as error:
                    if not self._lost.note(shard, error):
                        raise
                self._drop(shard)
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
            if shard in self._wanted:
                self._drop(shard)  # its samples were read by range, and it is not needed again soon

    def _drop(self, shard: int) -> None:
        blob = self._wanted.pop(shard)
        self.nbytes -= blob.nbytes
        self._caches.forget(blob)
        if self._prefetcher is not None:
            self._prefetcher.done_with(shard)

    def close(self) -> None:
        """End all fetching."""
        if self._prefetcher is not None:
            self._prefetcher.close()

    def _shards_of(self, samples: NDArray[np.int64]) -> list[int]:
        """Shards in the order in which the samples need them."""
        shards, first = np.unique(self._source.locate(samples)[0], return_index=True)
        ordered: list[int] = shards[np.argsort(first)].tolist()
        return ordered


def _mean_nbytes(source: Source) -> int:
    return source.raw_nbytes // max(1, source.num_shards)

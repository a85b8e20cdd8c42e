"""One worker's part of an epoch: from the order to decoded batches, with the shards fetched ahead."""

from __future__ import annotations

import functools
import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streamshard.dataset.pool import ShardPool
from streamshard.dataset.reading import Reading
from streamshard.dataset.source import Source
from streamshard.dataset.tolerance import LostShards
from streamshard.errors import FormatError
from streamshard.order.batches import BatchPlan
from streamshard.order.epoch import Order, RankBatches
from streamshard.storage.cache import Blob, NodeCache
from streamshard.storage.prefetch import Prefetcher

if TYPE_CHECKING:
    from streamshard.dataset.sieve import Sieve

# Batches are decoded together up to this size: enough to spread the cost of visiting many shards, little enough
# to stay in a cache and not to keep the first batch waiting.
_CHUNK_NBYTES = 4 << 20
_CHUNK_SAMPLES = 8192
# Bytes of shards wanted ahead of the trainer by each worker where ``predownload`` says nothing.
_AHEAD_NBYTES = 256 << 20
_AHEAD_CHUNKS = 64
_FETCH_THREADS = 4
# Samples of each stream that one look into the order is for: some 1 µs a sample remains at a thousand streams.
_LOOKED_UP_PER_STREAM = 64


@dataclass(frozen=True, slots=True)
class Share:
    """Which part of an epoch a worker reads.

    Attributes:
        order, plan, epoch: the epoch's batches.
        rank: data-parallel rank.
        worker, workers: this worker takes the batches ``worker``, ``worker + workers``, ….
        skip: batches of its own that it leaves out at the start.
    """

    order: Order
    plan: BatchPlan
    epoch: int
    rank: int
    worker: int = 0
    workers: int = 1
    skip: int = 0

    @property
    def num_batches(self) -> int:
        """Batches of the share, those skipped included."""
        return len(self._numbers())

    @property
    def num_samples(self) -> int:
        """Samples of the share, padding and those skipped included."""
        return self.samples_before(self.num_batches)

    def samples_before(self, batches: int) -> int:
        """Samples in the first ``batches`` of the share's batches."""
        plan, numbers = self.plan, self._numbers()
        full = min(batches, len(range(self.worker, plan.full_batches, self.workers)))
        begin, end = plan.rank_span(plan.global_batch_size, self.rank)
        rest = sum(plan.rank_batch_size(number, self.rank) for number in numbers[full:batches])
        return full * (end - begin) + rest

    def whole_batches(self, samples: int) -> int:
        """The most batches, from the first one on, that together have at most ``samples``."""
        plan = self.plan
        begin, end = plan.rank_span(plan.global_batch_size, self.rank)
        full = len(range(self.worker, plan.full_batches, self.workers))
        batches = min(full, samples // (end - begin))
        while full <= batches < self.num_batches and self.samples_before(batches + 1) <= samples:
            batches += 1
        return batches

    def _numbers(self) -> range:
        return range(self.worker, self.plan.rank_num_batches(self.rank), self.workers)

    def chunks(self, batches_at_once: int) -> Iterator[RankBatches]:
        """Yield the worker's batches, some at a time: one at first, then ever more up to the number given."""
        last = self.plan.rank_num_batches(self.rank)
        first = self.worker + self.skip * self.workers
        # Each look into the order costs something for every stream, so of many streams more is looked up at once.
        size = max(1, self.plan.global_batch_size // self.plan.ranks)
        most = max(batches_at_once, _LOOKED_UP_PER_STREAM * len(self.order.walks) // size)
        count = 1
        while first < last:
            end = min(last, first + count * self.workers)
            found = self.order.rank_batches(self.plan, self.epoch, first, end, self.workers, self.rank)
            for begin in range(0, len(found.padding), batches_at_once):
                yield found.part(begin, begin + batches_at_once)
            first += count * self.workers
            count = min(2 * count, most)


class Feed:
    """Decoded batches of one share, in order.

    Args:
        source: where samples come from.
        share: which of them, in which order.
        reading: what is made of them.
        is_over: asked before each batch; True ends the feed.
        predownload: samples to fetch ahead; None: bounded in bytes.
        sieve: leaves out or replaces samples; None: every sample must be good. Closed with the iteration.
    """

    def __init__(
        self,
        source: Source,
        share: Share,
        reading: Reading,
        *,
        is_over: Callable[[], bool],
        predownload: int | None = None,
        sieve: Sieve | None = None,
    ) -> None:
        self._source = source
        self._sieve = sieve
        self._share = share
        self._reading = reading
        self._is_over = is_over
        self._predownload = predownload

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        """Yield each batch with its number of samples.

        Raises:
            FormatError, StorageError: a shard that is missing, cut, damaged or cannot be fetched, named. The
                batches before the first one that needs it have been given.
        """
        pool = ShardPool(self._source)
        sieve = self._sieve
        ahead = _Ahead(self._source, self._share.workers, sieve.lost if sieve is not None else None)
        finish = self._reading.finish if sieve is None else functools.partial(sieve.sift, pool)
        chunks = self._share.chunks(self._batches_at_once())
        waiting: deque[RankBatches] = deque()
        try:
            more = True
            while True:
                while more and not self._enough_ahead(waiting, ahead):
                    chunk = next(chunks, None)
                    more = chunk is not None
                    if chunk is not None:
                        ahead.want(chunk.samples)
                        waiting.append(chunk)
                if not waiting:
                    return
                chunk = waiting.popleft()
                batches = (
                    self._decoded(pool, ahead, chunk)
                    if sieve is None
                    else sieve.decoded(pool, ahead.wait, chunk)
                )
                for batch, num_samples in batches:
                    if self._is_over():
                        return
                    yield batch if finish is None else finish(batch), num_samples
                ahead.done_with(chunk.samples)
        finally:
            ahead.close()
            pool.close()
            if sieve is not None:
                sieve.close()

    def _decoded(self, pool: ShardPool, ahead: _Ahead, chunk: RankBatches) -> Iterator[tuple[Any, int]]:
        read, split = self._reading.read, self._reading.split
        bounds = chunk.bounds.tolist()
        if len(bounds) > 2:
            # A chunk that cannot be read as a whole is read again batch by batch, so that the batches before the
            # damage are delivered and the error comes with the batch that it belongs to.
            try:
                ahead.wait(chunk.samples)
                values = read(pool, chunk.samples)
            except (FormatError, OSError):
                pass
            else:
                yield from zip(split(values, bounds), np.diff(chunk.bounds).tolist(), strict=True)
                return
        for begin, end in itertools.pairwise(bounds):
            samples = chunk.samples[begin:end]
            ahead.wait(samples)
            yield split(read(pool, samples), [0, end - begin])[0], end - begin

    def _batches_at_once(self) -> int:
        if self._reading.one_by_one:
            return 1
        plan = self._share.plan
        mean_nbytes = max(1, self._source.raw_nbytes // self._source.num_samples)
        samples = min(_CHUNK_SAMPLES, _CHUNK_NBYTES // mean_nbytes)
        return max(1, samples // max(1, plan.global_batch_size // plan.ranks))

    def _enough_ahead(self, waiting: deque[RankBatches], ahead: _Ahead) -> bool:
        if not waiting:
            return False
        if not ahead.fetches:
            return True
        if self._predownload is not None:
            return sum(len(chunk.samples) for chunk in waiting) >= self._predownload
        return ahead.nbytes >= ahead.most_nbytes or len(waiting) >= _AHEAD_CHUNKS


class _Caches:
    """Fetches each file through the cache of its own stream; streams may have files of one name."""

    def __init__(self) -> None:
        self._cache_of: dict[int, tuple[Blob, NodeCache]] = {}  # holds the blobs, so that no id is used again

    def add(self, blob: Blob, cache: NodeCache) -> None:
        self._cache_of[id(blob)] = (blob, cache)

    def ensure(self, blob: Blob) -> Path:
        return self._cache_of.pop(id(blob))[1].ensure(blob)


class _Ahead:
    """The shards that the chunks in sight need, fetched by threads in the order of need.

    A shard is on the prefetcher's account only from its first mention until it is first waited for: the many
    shards that a shuffle has live at once are local by then and must not stop the next ones from being fetched.
    """

    def __init__(self, source: Source, workers: int, lost: LostShards | None = None) -> None:
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
        self.most_nbytes = min([_AHEAD_NBYTES, *(limit // (4 * workers) for limit in limits)])

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
            self._caches.add(blob, stream.cache)
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

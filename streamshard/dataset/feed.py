"""One worker's part of an epoch: from the order to decoded batches, with the shards fetched ahead."""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from streamshard.dataset.ahead import Ahead
from streamshard.dataset.foresight import Foresight
from streamshard.dataset.heap import keep_freed_memory
from streamshard.dataset.pool import PoolHere, ShardPool
from streamshard.dataset.reading import Reading
from streamshard.dataset.source import Source
from streamshard.errors import FormatError
from streamshard.order.batches import BatchPlan
from streamshard.order.epoch import Order
from streamshard.order.rank_batches import RankBatches
from streamshard.order.uses import live_nbytes, live_shards
from streamshard.storage.memory_limit import memory_nbytes

if TYPE_CHECKING:
    from streamshard.dataset.sieve import Sieve

# Batches are decoded together up to this size: enough to spread the cost of visiting many shards, little enough
# to stay in a cache and not to keep the first batch waiting.
_CHUNK_NBYTES = 4 << 20
_CHUNK_SAMPLES = 8192
# Large samples take longer to copy than a visit to a shard, so fewer of them: they are still in the cache when used.
_LARGE_SAMPLE_NBYTES = 8 << 10
_CHUNK_NBYTES_OF_LARGE = 2 << 20
# They are decoded batch by batch, but looked up and found in their shards so many at a time.
_CHUNK_SAMPLES_IN_TURN = 512
# Where very many shards are live, more are decoded together, so that a visit to a shard still gives some.
_SAMPLES_PER_VISIT = 24
_CHUNK_NBYTES_OF_MANY = 6 << 20
_AHEAD_CHUNKS = 128
# Shards that are live may take so much of the memory for whole pieces of them to be fetched from the disk.
_SHARE_OF_MEMORY = 4
# Samples that one look into the order is for: it costs as much as reading ten blobs.
_LOOKED_UP = 2048
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
        ranks_per_node: data-parallel ranks that share this node's caches; None: all.
    """

    order: Order
    plan: BatchPlan
    epoch: int
    rank: int
    worker: int = 0
    workers: int = 1
    skip: int = 0
    ranks_per_node: int | None = None

    @property
    def num_nodes(self) -> int:
        """Nodes among which the ranks are spread."""
        return -(-self.plan.ranks // self._ranks_here)

    @property
    def readers_here(self) -> int:
        """Workers of all ranks on this node."""
        return self._ranks_here * self.workers

    @property
    def is_first_here(self) -> bool:
        """Whether no other worker of the node comes before this one."""
        return self.worker == 0 and self.rank % self._ranks_here == 0

    @property
    def part_of_node(self) -> tuple[float, float]:
        """Share [begin, end) of each global batch, in lane order, that the node's ranks read."""
        if self.order.batching == "device_per_stream":
            return 0.0, 1.0
        begin = self.rank // self._ranks_here * self._ranks_here
        return begin / self.plan.ranks, min(1.0, (begin + self._ranks_here) / self.plan.ranks)

    @property
    def part_of_rank(self) -> tuple[float, float]:
        """Share [begin, end) of each global batch, in lane order, that this rank reads."""
        if self.order.batching == "device_per_stream":
            return 0.0, 1.0
        return self.rank / self.plan.ranks, (self.rank + 1) / self.plan.ranks

    @property
    def parts(self) -> int:
        """Parts in lane order that each global batch is cut into, of which this rank reads one."""
        return 1 if self.order.batching == "device_per_stream" else self.plan.ranks

    @property
    def _ranks_here(self) -> int:
        return min(self.plan.ranks, self.ranks_per_node or self.plan.ranks)

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
        looked_up = max(_LOOKED_UP, _LOOKED_UP_PER_STREAM * len(self.order.walks))
        most = max(batches_at_once, looked_up // size)
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
        in_batches: whether batches must be whole; else large ones may come in pieces, one after another.
        pools: has the shards that an earlier iteration has left open; None: there was none.
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
        in_batches: bool = True,
        pools: PoolHere | None = None,
    ) -> None:
        self._source = source
        self._pools = PoolHere(source) if pools is None else pools
        self._sieve = sieve
        self._share = share
        self._reading = reading
        self._is_over = is_over
        self._predownload = predownload
        nbytes = source.sample_nbytes
        is_large = nbytes >= _LARGE_SAMPLE_NBYTES
        self._piece = None if in_batches else max(1, _CHUNK_NBYTES_OF_LARGE // nbytes)
        self._in_turn = is_large and sieve is None and reading.gives_samples and not reading.one_by_one

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        """Yield each batch with its number of samples.

        Raises:
            FormatError, StorageError: a shard that is missing, cut, damaged or cannot be fetched, named. The
                batches before the first one that needs it have been given.
        """
        keep_freed_memory(self._source.sample_nbytes)
        live = live_shards(self._share.order, parts=self._share.parts)
        read_through = self._fits_in_memory()
        pool = self._pools.take(live, read_through=read_through)
        sieve = self._sieve
        foresight = Foresight(self._source, self._share)
        ahead = Ahead(self._source, self._share, foresight, sieve.lost if sieve is not None else None)
        finish = self._reading.finish if sieve is None else functools.partial(sieve.sift, pool)
        chunks = self._share.chunks(self._batches_at_once(ahead.most_samples, live))
        waiting: deque[RankBatches] = deque()
        read = 0
        try:
            foresight.set()
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
                foresight.now_at(read)
                read += len(chunk.padding)
                if sieve is not None:
                    batches = sieve.decoded(pool, ahead.wait, chunk)
                else:
                    batches = (self._decoded_in_turn if self._in_turn else self._decoded)(pool, ahead, chunk)
                for batch, num_samples in batches:
                    if self._is_over():
                        return
                    yield batch if finish is None else finish(batch), num_samples
                ahead.done_with(chunk.samples)
        except GeneratorExit:
            # Left, perhaps as garbage that another thread collects at this moment, which closes the files next.
            pool.close()
            raise
        except BaseException:
            pool.close()  # what is open may be what is wrong
            raise
        finally:
            ahead.close()
            foresight.unset()
            self._pools.leave(pool, live, read_through=read_through)
            if sieve is not None:
                sieve.close()

    def _decoded(self, pool: ShardPool, ahead: Ahead, chunk: RankBatches) -> Iterator[tuple[Any, int]]:
        read, split = self._reading.read, self._reading.split
        bounds = chunk.bounds.tolist()
        early = ahead.by_range(chunk.samples) if self._reading.get is None else None
        if early is not None:
            # What is wrong with a sample is told by its shard, as it always is.
            try:
                with pool.using(early):
                    values = read(pool, chunk.samples)
            except (FormatError, OSError):
                pass
            else:
                yield from zip(split(values, bounds), np.diff(chunk.bounds).tolist(), strict=True)
                return
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

    def _decoded_in_turn(
        self, pool: ShardPool, ahead: Ahead, chunk: RankBatches
    ) -> Iterator[tuple[Any, int]]:
        """Do what ``_decoded`` does, bit by bit: large samples are still in the processor's cache when used."""
        shards, rows = pool.located(chunk.samples)
        for begin, end in itertools.pairwise(chunk.bounds.tolist()):
            samples = chunk.samples[begin:end]
            early = ahead.by_range(samples)
            if early is not None:
                # What is wrong with a sample is told by its shard, as it always is.
                try:
                    with pool.using(early):
                        batch = pool.samples(samples)
                except (FormatError, OSError):
                    pass
                else:
                    yield batch, end - begin
                    continue
            ahead.wait(samples)
            step = self._piece or end - begin
            for at in range(begin, end, step) if end > begin else (begin,):
                to = min(at + step, end)
                yield pool.samples_at(shards[at:to], rows[at:to], chunk.samples[at:to]), to - at

    def _fits_in_memory(self) -> bool:
        """Whether the system can keep all of the shards that the node's readers are amid, and much besides."""
        nbytes = self._source.raw_nbytes / max(1, self._source.num_shards)
        means = [nbytes] * len(self._source.streams)
        live = live_nbytes(self._share.order, means, num_nodes=self._share.num_nodes)
        return live <= memory_nbytes() // _SHARE_OF_MEMORY

    def _batches_at_once(self, most_samples: int | None, live: int) -> int:
        if self._reading.one_by_one:
            return 1
        plan, nbytes = self._share.plan, self._source.sample_nbytes
        if self._in_turn:  # a chunk is fetched ahead as a whole
            together = most = min(_CHUNK_SAMPLES_IN_TURN, self._predownload or _CHUNK_SAMPLES_IN_TURN)
        elif nbytes >= _LARGE_SAMPLE_NBYTES:
            together, most = _CHUNK_NBYTES_OF_LARGE // nbytes, _CHUNK_SAMPLES
        else:
            wanted = _SAMPLES_PER_VISIT * live
            together = max(_CHUNK_NBYTES, min(_CHUNK_NBYTES_OF_MANY, wanted * nbytes)) // nbytes
            most = max(_CHUNK_SAMPLES, wanted)
        samples = min(most, together, most_samples or most)
        return max(1, samples // max(1, plan.global_batch_size // plan.ranks))

    def _enough_ahead(self, waiting: deque[RankBatches], ahead: Ahead) -> bool:
        if not waiting:
            return False
        if not ahead.fetches:
            return True
        if self._predownload is not None:
            return sum(len(chunk.samples) for chunk in waiting) >= self._predownload
        if ahead.most_samples is not None and sum(map(_num_samples, waiting)) >= ahead.most_samples:
            return True
        return ahead.nbytes >= ahead.most_nbytes or len(waiting) >= _AHEAD_CHUNKS


def _num_samples(chunk: RankBatches) -> int:
    return len(chunk.samples)

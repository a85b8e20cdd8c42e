"""The walk of a stream of which every epoch takes the same samples: ``sampling_method="fixed"``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamshard.order.keys import SHARD_ORDER, Key
from streamshard.order.permutation import permutation
from streamshard.order.stream_walk import Spots
from streamshard.order.walk import Walk

# Streams are numbered below this; the part of one that is taken once more has a number of its own above.
_PART_STREAM = 1 << 31


@dataclass(frozen=True, slots=True)
class FixedSpots:
    """Where some ascending indices of a fixed walk lie.

    Attributes:
        row: as in :class:`Spots`; shape (n,).
        runs: (whole passes or not, spots, first number, last number + 1) of runs of indices.
    """

    row: NDArray[np.int64]
    runs: list[tuple[bool, Spots, int, int]]


class FixedWalk:
    """Index i is place i mod n of epoch i ÷ n, and every epoch has the same n samples.

    An epoch is ⌊n/N⌋ whole passes, and then one pass over the first n mod N samples in the order in which the run
    has the shards. Those are a shorter stream of their own, walked with the same lanes and window.

    Args:
        samples_per_shard, seed, stream, shuffle, lanes, window, block_size, scattered: as those of :class:`Walk`.
        samples: n, at least 1.
    """

    def __init__(
        self,
        samples_per_shard: NDArray[np.int64],
        samples: int,
        *,
        seed: int,
        stream: int = 0,
        shuffle: str | None = "sliding",
        lanes: int | None = None,
        window: int | None = None,
        block_size: int | None = None,
        scattered: bool = False,
    ) -> None:
        self.whole = Walk(
            samples_per_shard,
            seed=seed,
            stream=stream,
            shuffle=shuffle,
            lanes=lanes,
            window=window,
            block_size=block_size,
            scattered=scattered,
        )
        if samples < 1 or stream >= _PART_STREAM:
            raise ValueError(
                f"samples={samples} of stream {stream}: expected at least 1, and a number below 2**31"
            )
        self.samples_per_epoch = samples
        self.num_samples = self.whole.num_samples
        self.num_shards = self.whole.num_shards
        self.seed = self.whole.seed
        self.stream = self.whole.stream
        self.shuffle = self.whole.shuffle
        self.lanes = self.whole.lanes
        self.window = self.whole.window
        self.scattered = self.whole.scattered
        self._sizes = samples_per_shard
        self._passes, self._rest = divmod(samples, self.num_samples)
        self._part: Walk | None = None
        if self._rest:
            sizes = np.asarray(samples_per_shard, dtype=np.int64)
            taken = _first_samples(
                sizes, self._rest, seed=seed, stream=stream, in_file_order=self.shuffle == "none"
            )
            self._begins = np.cumsum(sizes) - sizes
            self._part_ends = np.cumsum(taken)
            self._part_begins = self._part_ends - taken
            self._part = Walk(
                taken,
                seed=seed,
                stream=stream + _PART_STREAM,
                shuffle=self.shuffle,
                lanes=self.lanes,
                window=self.window,
                scattered=self.scattered,
            )

    @property
    def block_rows(self) -> int:
        """Rows of a lane that a block holds, on the average."""
        return self.whole.block_rows

    @property
    def samples_per_shard(self) -> NDArray[np.int64]:
        """Samples of each shard in file order, shape (shards,)."""
        return self.whole.samples_per_shard

    def inner_pass(self, begin: int) -> tuple[Walk, int]:
        """Give the plain walk over the same shards, and the number of its pass, that makes the pass from ``begin``."""
        epoch, place = divmod(begin, self.samples_per_epoch)
        number = place // self.num_samples
        if number < self._passes or self._part is None:
            return self.whole, epoch * self._passes + number
        return self._part, epoch

    def live_shards(self, num_nodes: int = 1) -> int:
        """As :meth:`Walk.live_shards`."""
        return self.whole.live_shards(num_nodes)

    def spots(self, first: int, offsets: NDArray[np.int64]) -> FixedSpots:
        """Find the indices ``first + offsets``, as :meth:`Walk.spots` does."""
        row = np.empty_like(offsets)
        runs: list[tuple[bool, Spots, int, int]] = []
        begin = 0
        while begin < offsets.size:
            index = first + int(offsets[begin])
            pass_begin, size = self.pass_of(index)
            if self._part is None:
                whole, at, border = True, index, offsets.size
            else:
                epoch, place = divmod(index, self.samples_per_epoch)
                whole = place < self._passes * self.num_samples
                if whole:
                    at = (epoch * self._passes) * self.num_samples + place
                    last = (epoch * self.samples_per_epoch) + self._passes * self.num_samples
                else:
                    at = epoch * self._rest + (index - pass_begin)
                    last = pass_begin + size
                border = int(np.searchsorted(offsets, last - first))
            walk = self.whole if whole or self._part is None else self._part
            spots = walk.spots(at, offsets[begin:border] - offsets[begin])
            row[begin:border] = spots.row
            runs.append((whole, spots, begin, border))
            begin = border
        return FixedSpots(row, runs)

    def sort_keys(self, spots: FixedSpots) -> NDArray[np.uint64]:
        """As :meth:`Walk.sort_keys`."""
        keys = np.empty(spots.row.size, dtype=np.uint64)
        for _, here, begin, end in spots.runs:
            keys[begin:end] = self.whole.sort_keys(here)
        return keys

    def samples(self, spots: FixedSpots, chosen: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """As :meth:`Walk.samples`."""
        numbers = np.arange(spots.row.size) if chosen is None else chosen
        ids = np.empty(numbers.size, dtype=np.int64)
        for whole, here, begin, end in spots.runs:
            mine = np.flatnonzero((numbers >= begin) & (numbers < end))
            if not mine.size:
                continue
            if whole or self._part is None:
                ids[mine] = self.whole.samples(here, numbers[mine] - begin)
            else:
                part = self._part.samples(here, numbers[mine] - begin)
                shards = np.searchsorted(self._part_ends, part, side="right")
                ids[mine] = part - self._part_begins[shards] + self._begins[shards]
        return ids

    def renewed(self, *, stream: int, lanes: int, window: int, scattered: bool = False) -> FixedWalk:
        """Give the same walk with another stream number, lanes and window, scattered or not."""
        if (stream, lanes, window, scattered) == (self.stream, self.lanes, self.window, self.scattered):
            return self
        return FixedWalk(
            self._sizes,
            self.samples_per_epoch,
            seed=self.seed,
            stream=stream,
            shuffle=self.shuffle,
            lanes=lanes,
            window=window,
            scattered=scattered,
        )

    def pass_of(self, index: int) -> tuple[int, int]:
        """Give the first index and the size of the pass that an index lies in."""
        epoch, place = divmod(index, self.samples_per_epoch)
        number = min(place // self.num_samples, self._passes)
        begin = epoch * self.samples_per_epoch + number * self.num_samples
        return begin, self.num_samples if number < self._passes else self._rest

    def pass_number(self, index: int) -> int:
        """Give the number of the pass that an index lies in, from 0; the part of an epoch counts as one."""
        epoch, place = divmod(index, self.samples_per_epoch)
        passes = self._passes + bool(self._rest)
        return epoch * passes + min(place // self.num_samples, passes - 1)


def walk_of(samples_per_shard: NDArray[np.int64], samples: int | None, **settings: Any) -> Walk | FixedWalk:
    """Make the walk of ``samples`` fixed ones an epoch; a plain one where that comes to the same, or for None."""
    if not samples or samples % max(1, int(np.sum(samples_per_shard))) == 0:
        return Walk(samples_per_shard, **settings)
    return FixedWalk(samples_per_shard, samples, **settings)


def _first_samples(
    sizes: NDArray[np.int64], count: int, *, seed: int, stream: int, in_file_order: bool
) -> NDArray[np.int64]:
    """Give how many samples of each shard are among the first ``count`` in run order; shape (shards,)."""
    order: NDArray[np.int64] | Sequence[int] = np.arange(sizes.size)
    if not in_file_order:
        order = permutation(Key(SHARD_ORDER, seed, stream), sizes.size)
    before = np.cumsum(sizes[order]) - sizes[order]
    taken = np.zeros_like(sizes)
    taken[order] = np.clip(count - before, 0, sizes[order])
    return taken

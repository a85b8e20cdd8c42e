"""Labels of a segment: which stream the sample at a position comes from, and which of its samples that is.

Sample by sample, as a :class:`Mixture` says, or by whole batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamshard.order.keys import LABELS, Key
from streamshard.order.mixture import Mixture
from streamshard.order.permutation import permutation

RUN = 4096  # labels are permuted within runs of this many positions
# Of many streams the labels of some runs are found at once: to begin costs a step for each stream.
_MANY, _RUNS_OF_MANY = 64, 16


class SampleLabels:
    """Stream and rank in the stream of any position of a segment, sample by sample.

    The rank is the number of the stream's labels before the position, in the same segment. The labels computed
    last are remembered.

    Args:
        samples: each stream's samples in the segment.
        seed: for the permutations.
        permuted: permute the labels within each run of 4,096 positions.
        place: where the segment begins in its epoch; part of the permutations' keys.
    """

    def __init__(self, samples: Sequence[int], *, seed: int, permuted: bool, place: int = 0) -> None:
        self.mixture = Mixture(samples)
        self._seed = seed
        self._permuted = permuted
        self._place = place
        self._held: tuple[int, int, NDArray[np.int64], NDArray[np.int64]] | None = None

    def at(
        self, epoch: int, position: int, offsets: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Give streams and ranks of ``position + offsets`` (ascending, in the segment), each of shape (n,).

        Perhaps views of what is remembered: not to be changed.
        """
        begin, end = position + int(offsets[0]), position + int(offsets[-1]) + 1
        first = begin // RUN * RUN
        streams, ranks = self._span(epoch, first, min(self.mixture.total, -(-end // RUN) * RUN))
        if end - begin == offsets.size:
            return streams[begin - first : end - first], ranks[begin - first : end - first]
        places = offsets + (position - first)
        return streams[places], ranks[places]

    def before(self, epoch: int, position: int) -> list[int]:
        """Count each stream's samples before a position of the segment (0 to its size)."""
        run = position // RUN * RUN
        counts = self.mixture.before(run)
        if position > run:
            streams, _ = self._span(epoch, run, min(self.mixture.total, run + RUN))
            here = np.bincount(streams[: position - run], minlength=len(counts)).tolist()
            counts = [count + more for count, more in zip(counts, here, strict=True)]
        return counts

    def _span(self, epoch: int, begin: int, end: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Give streams and ranks of whole runs."""
        if self._held is not None and self._held[0] == epoch:
            held_begin, streams, ranks = self._held[1:]
            if held_begin <= begin and end <= held_begin + streams.size:
                here = slice(begin - held_begin, end - held_begin)
                return streams[here], ranks[here]
        if len(self.mixture.samples) >= _MANY:
            end = max(end, min(self.mixture.total, begin + _RUNS_OF_MANY * RUN))
        streams, counts_before = self.mixture.labels_and_counts(begin, end)
        if self._permuted:
            for run in range(begin, end, RUN):
                part = streams[run - begin : run - begin + RUN]
                part[:] = part[
                    permutation(Key(LABELS, self._seed, 0, epoch, self._place, run // RUN), part.size)
                ]
        # A stable sort by stream lists each stream's positions in order: their numbers there are the ranks.
        order = np.argsort(
            streams.astype(np.int16 if len(self.mixture.samples) < 1 << 15 else np.int64), kind="stable"
        )
        counts = np.bincount(streams, minlength=len(self.mixture.samples))
        base = counts_before - (np.cumsum(counts) - counts)
        ranks = np.empty_like(streams)
        ranks[order] = np.arange(streams.size) + np.repeat(base, counts)
        self._held = (epoch, begin, streams, ranks)
        return streams, ranks

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_held": None}


class UnitLabels:
    """The same where whole batches are of one stream each: ``per_stream`` and ``device_per_stream``.

    The streams take turns by units of ``unit`` samples, in their exact shares, as long as every stream's units
    and whole global batches of units last. What is left of each stream then follows in a shorter global batch of its
    own, the larger ones first: nothing is left out here.

    Args:
        samples: each stream's samples in the segment.
        unit: samples that belong together: a global batch, or the batch of one rank.
        units_per_batch: units of a global batch.
    """

    def __init__(self, samples: Sequence[int], *, unit: int, units_per_batch: int) -> None:
        self.samples = tuple(samples)
        self.unit = unit
        self.batch = unit * units_per_batch
        units = [n // unit for n in samples]
        self.full_batches = sum(units) // units_per_batch
        given = [0] * len(units)
        self._labels = None
        if self.full_batches:
            self._labels = SampleLabels(units, seed=0, permuted=False)
            given = [n * unit for n in self._labels.before(0, self.full_batches * units_per_batch)]
        self._given = given
        # Stream, its first rank and first position of each batch after the full ones; then where they end.
        self._rest: list[tuple[int, int, int]] = []
        self._rest_ends: list[int] = []
        position = self.full_batches * self.batch
        left = [
            (stream, rank, min(self.batch, total - rank))
            for stream, (total, begin) in enumerate(zip(self.samples, given, strict=True))
            for rank in range(begin, total, self.batch)
        ]
        for stream, rank, size in sorted(left, key=lambda each: -each[2]):
            self._rest.append((stream, rank, position))
            position += size
            self._rest_ends.append(position)

    def rest(self, position: int) -> tuple[int, ...]:
        """Give the sizes of the batches after the full ones that end beyond a position, of the first what is left."""
        return tuple(
            end - max(begin, position)
            for (_, _, begin), end in zip(self._rest, self._rest_ends, strict=True)
            if end > position
        )

    def is_border(self, position: int) -> bool:
        """Whether a batch begins at a position of the segment (or the last one ends there)."""
        full = self.full_batches * self.batch
        if position <= full:
            return position % self.batch == 0
        return position in self._rest_ends

    def at(
        self, epoch: int, position: int, offsets: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Give streams and ranks of ``position + offsets`` (ascending, in the segment), each of shape (n,)."""
        full = self.full_batches * self.batch
        count = int(np.searchsorted(offsets, full - position)) if position < full else 0
        streams = np.empty(offsets.size, dtype=np.int64)
        ranks = np.empty(offsets.size, dtype=np.int64)
        if count and self._labels is not None:
            unit, inside = divmod(position, self.unit)
            units, within = np.divmod(offsets[:count] + inside, self.unit)
            met, numbers = np.unique(units, return_inverse=True)
            of_unit, rank_of_unit = self._labels.at(epoch, unit, met)
            streams[:count] = of_unit[numbers]
            ranks[:count] = rank_of_unit[numbers] * self.unit + within
        if count < offsets.size:
            places = offsets[count:] + (position - full)
            begins = np.array([begin - full for _, _, begin in self._rest], dtype=np.int64)
            batch = np.searchsorted(begins, places, side="right") - 1
            rows = np.array([(stream, rank) for stream, rank, _ in self._rest], dtype=np.int64)[batch]
            streams[count:] = rows[:, 0]
            ranks[count:] = rows[:, 1] + places - begins[batch]
        return streams, ranks

    def before(self, epoch: int, position: int) -> list[int]:
        """Count each stream's samples before a position of the segment (0 to its size)."""
        full = self.full_batches * self.batch
        if position <= full and self._labels is not None:
            units, inside = divmod(position, self.unit)
            counts = [n * self.unit for n in self._labels.before(epoch, units)]
            if inside:
                of_unit, _ = self._labels.at(epoch, units, np.zeros(1, dtype=np.int64))
                counts[int(of_unit[0])] += inside
            return counts
        counts = list(self._given)
        for stream, _, begin in self._rest:
            if begin < position:
                counts[stream] = min(self.samples[stream], counts[stream] + min(self.batch, position - begin))
        return counts


Labels: TypeAlias = "SampleLabels | UnitLabels"

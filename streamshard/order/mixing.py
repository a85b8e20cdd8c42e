"""Mixing streams: which stream the sample at a position comes from, and which of its samples that is.

Exact and in closed form: a binary tree over the streams, and at each node a rule that gives any run of positions
to the two children in their share. After any prefix of an epoch each stream is within 1.5 samples of its share.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamshard.order.keys import LABELS, Key
from streamshard.order.permutation import permutation

RUN = 4096  # labels are permuted within runs of this many positions
# Of many streams the labels of some runs are found at once: to begin costs a step for each stream.
_MANY, _RUNS_OF_MANY = 64, 16
_SLICE = 1 << 13  # positions followed at once, so that they stay in the processor's cache
# Offset times total below which floats divide exactly enough: 1 / total is then some 8 times the rounding errors.
_EXACT_IN_FLOATS = 1 << 48


class Mixture:
    """The stream labels of one epoch, in which stream s has ``samples[s]`` positions (0 is allowed).

    The tree is kept as arrays over its inner nodes, children after parents. A position is followed from the root
    to its stream together with all others that are asked for.

    Raises:
        ValueError: all numbers are 0, or one is negative.
    """

    def __init__(self, samples: Sequence[int]) -> None:
        if not any(samples) or min(samples) < 0:
            raise ValueError(
                f"samples of streams in an epoch {list(samples)}: expected numbers >= 0, one at least > 0"
            )
        self.samples = tuple(samples)
        self.total = sum(samples)
        # Of each inner node: its children, where ~s is stream s; and of every ``total`` positions the first child's.
        self._children, self._shares, self._totals = _huffman(self.samples)
        self._share = np.array(self._shares, dtype=np.int64)
        self._whole = np.array(self._totals, dtype=np.int64)
        self._child = np.array(self._children, dtype=np.int64).reshape(-1)

    def before(self, position: int) -> list[int]:
        """Count each stream's labels before a position (0 to the total)."""
        return self._begin(position)[0]

    def labels(self, begin: int, end: int) -> NDArray[np.int64]:
        """Give the streams of positions begin … end-1, shape (end - begin,)."""
        return self.labels_and_counts(begin, end)[0]

    def labels_and_counts(self, begin: int, end: int) -> tuple[NDArray[np.int64], list[int]]:
        """Give the streams of positions begin … end-1, and each stream's labels before ``begin``."""
        labels = np.empty(end - begin, dtype=np.int64)
        counts = None
        # A product of an offset and a share must stay below 2**62.
        most = max(1, (1 << 62) // self.total)
        for start in range(begin, end, most) if begin < end else (begin,):
            stop = min(end, start + most)
            here, rests = self._begin(start)
            counts = here if counts is None else counts
            if not self._shares:
                labels[:] = next(stream for stream, n in enumerate(self.samples) if n)
                continue
            follow = self._followed if (stop - start) * self.total < _EXACT_IN_FLOATS else self._followed_wide
            follow(labels[start - begin : stop - begin], np.array(rests, dtype=np.int64))
        return labels, counts or []

    def _begin(self, position: int) -> tuple[list[int], list[int]]:
        """Count each stream's labels before a position; and give (p·share + total // 2) mod total of each node.

        p is the node's count of positions before the position. In Python's integers: the products have up to 106 bits.
        """
        counts = [0] * len(self.samples)
        rests = [0] * len(self._shares)
        below = [0] * len(self._shares)
        if not below:
            counts[next(stream for stream, n in enumerate(self.samples) if n)] = position
            return counts, rests
        below[0] = position
        for node, (children, share, total) in enumerate(
            zip(self._children, self._shares, self._totals, strict=True)
        ):
            p = below[node]
            taken, rests[node] = divmod(p * share + total // 2, total)
            for child, count in zip(children, (taken, p - taken), strict=True):
                if child < 0:
                    counts[~child] = count
                else:
                    below[child] = count
        return counts, rests

    def _followed(self, labels: NDArray[np.int64], rests: NDArray[np.int64]) -> None:
        """Fill in the labels of the positions after a place at which the nodes have ``rests``.

        In floats: half a step more keeps every quotient so far from the next integer that rounding cannot matter.
        """
        slopes, starts = self._share / self._whole, (rests + 0.5) / self._whole
        for begin in range(0, labels.size, _SLICE):
            some = labels[begin : begin + _SLICE]
            offsets = np.arange(begin, begin + some.size, dtype=np.float64)
            nodes = np.zeros(some.size, dtype=np.int64)
            places: NDArray[np.int64] | None = None
            while nodes.size:
                slope = slopes[nodes]
                steps = offsets * slope
                steps += starts[nodes]
                slope += steps
                taken = np.floor(steps, out=steps)
                is_first = np.floor(slope, out=slope) > taken
                np.subtract(offsets, taken, out=offsets)
                np.copyto(offsets, taken, where=is_first)
                nodes *= 2
                nodes += 1
                nodes -= is_first
                nodes = self._child[nodes]
                places, nodes, offsets = _those_below(some, places, nodes, offsets)

    def _followed_wide(self, labels: NDArray[np.int64], rests: NDArray[np.int64]) -> None:
        """The same in integers, for any numbers."""
        offsets = np.arange(labels.size, dtype=np.int64)
        nodes = np.zeros(labels.size, dtype=np.int64)
        places: NDArray[np.int64] | None = None
        while nodes.size:
            share, whole = self._share[nodes], self._whole[nodes]
            taken, rest = np.divmod(offsets * share + rests[nodes], whole)
            is_first = rest + share >= whole
            offsets = np.where(is_first, taken, offsets - taken)
            nodes = self._child[2 * nodes + 1 - is_first]
            places, nodes, offsets = _those_below(labels, places, nodes, offsets)


def _those_below(
    labels: NDArray[np.int64],
    places: NDArray[np.int64] | None,
    nodes: NDArray[np.int64],
    offsets: NDArray[Any],
) -> tuple[NDArray[np.int64] | None, NDArray[np.int64], NDArray[Any]]:
    """Write down the positions that have come to their stream, and give the others; ``places`` None: all of them."""
    arrived = nodes < 0
    if not arrived.any():
        return places, nodes, offsets
    at = np.flatnonzero(arrived)
    labels[at if places is None else places[at]] = ~nodes[at]
    rest = np.flatnonzero(~arrived)
    return (rest if places is None else places[rest]), nodes[rest], offsets[rest]


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
        """Give streams and ranks of ``position + offsets`` (ascending, in the segment), each of shape (n,)."""
        first = (position + int(offsets[0])) // RUN * RUN
        last = min(self.mixture.total, ((position + int(offsets[-1])) // RUN + 1) * RUN)
        streams, ranks = self._span(epoch, first, last)
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
        base = np.array(counts_before, dtype=np.int64) - (np.cumsum(counts) - counts)
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
        """Give the sizes of the batches after the full ones that begin at or after a batch's beginning."""
        return tuple(
            end - begin
            for (_, _, begin), end in zip(self._rest, self._rest_ends, strict=True)
            if begin >= position
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


def _huffman(samples: Sequence[int]) -> tuple[list[tuple[int, int]], list[int], list[int]]:
    """Join the two lightest nodes until one is left; ties by stream number, the heavier child first.

    Gives the children of each inner node, the root first (~s is stream s), the first child's samples, and its own.
    """
    # The first stream below names a node, so no two entries tie.
    heap = [(n, stream, ~stream) for stream, n in enumerate(samples) if n]
    heapq.heapify(heap)
    made: list[tuple[int, int, int, int]] = []
    while len(heap) > 1:
        light, heavy = heapq.heappop(heap), heapq.heappop(heap)
        if light[0] == heavy[0]:
            light, heavy = heavy, light
        total = light[0] + heavy[0]
        made.append((heavy[2], light[2], heavy[0], total))
        heapq.heappush(heap, (total, min(light[1], heavy[1]), len(made) - 1))
    last = len(made) - 1
    children = [(_turned(first, last), _turned(rest, last)) for first, rest, _, _ in reversed(made)]
    return children, [share for _, _, share, _ in reversed(made)], [total for *_, total in reversed(made)]


def _turned(child: int, last: int) -> int:
    """Count inner nodes from the last one made, which is the root."""
    return child if child < 0 else last - child

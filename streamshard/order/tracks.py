"""Tracks: the sequences of pieces that a lane plays side by side, at rates that keep all of them busy to the end.

A lane with a window of k shards has k tracks. Each track plays its pieces one after another; all tracks begin
with the pass and end with it, so k pieces are in use from the first row to the last. Each step takes of every track
its share, evenly interleaved.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

from streamshard.order.keys import Key
from streamshard.order.lane import LanePass
from streamshard.order.permutation import SLICED_FROM, AheadOf, Bijection, permutation

STEP_ROWS = 2048  # rows of a step, or 64 of each track where that is more
_TRACK_ROWS = 64
_MAX_STEPS = (1 << 31) - 1  # the square of a number of steps stays below 2**62

_NUMBER_BITS = 24  # of a row's number in its step, at least; the other bits of a word are for its place


def step_rows(tracks: int) -> int:
    """Give the rows of a step, at most and but for rounding, of a lane that has so many tracks."""
    return max(STEP_ROWS, _TRACK_ROWS * tracks)


def deal(counts: NDArray[np.int64], tracks: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Deal pieces, in the order in which they come, to ``tracks`` tracks of about the same number of samples.

    Each group of as many pieces as there are tracks is dealt in the order of size, ascending and descending in turn;
    of the rest, the largest piece goes to the track with the fewest samples, and so on.

    Returns:
        The pieces, track by track, and where each track begins among them, and their end; shape (tracks + 1,).
    """
    if tracks == 1:
        return np.arange(counts.size), np.array([0, counts.size])
    groups, rest = divmod(counts.size, tracks)
    sizes = counts[: groups * tracks].reshape(groups, tracks)
    table = np.full((groups + 1, tracks), -1, dtype=np.int64)
    dealt = np.argsort(sizes, axis=1, kind="stable")
    dealt[1::2] = dealt[1::2, ::-1]
    table[:groups] = dealt + np.arange(0, groups * tracks, tracks)[:, None]
    if rest:
        totals = counts[table[:groups]].sum(axis=0)
        shortest = np.argsort(totals, kind="stable")[:rest]
        table[groups, shortest] = np.argsort(-counts[groups * tracks :], kind="stable") + groups * tracks
    begins = np.concatenate(([0], np.cumsum((table >= 0).sum(axis=0))))
    flat = table.T.ravel()
    return flat[flat >= 0], begins


def head_starts(even: NDArray[np.int64], most: int, numerator: int, denominator: int) -> NDArray[np.int64]:
    """Give by how many samples each track of a lane runs ahead in the middle of the pass, shape (tracks,).

    Tracks come in pairs, one ahead and one as far behind, by 0 to ``most`` / 2; the odd one joins the last pair. So the
    sum is 0. ``numerator / denominator`` differs from lane to lane: all tracks of all lanes then turn at different
    times. ``even`` is what a track would have played without by the time when it has its head start.
    """
    starts = np.zeros_like(even)
    pairs = even.size // 2
    for pair in range(pairs):
        first, end = 2 * pair, even.size if pair == pairs - 1 else 2 * pair + 2
        ahead = most * (2 * pair * denominator + 2 * numerator + 1) // (4 * pairs * denominator)
        ahead = min(ahead, int(even[first:end].min()) // 2)
        starts[first] = ahead
        starts[first + 1] = -ahead if end - first == 2 else -(ahead // 2)
        starts[end - 1] = -ahead - starts[first + 1] if end - first == 3 else -ahead
    return starts


def _share(rows: NDArray[np.int64], part: int, parts: int) -> NDArray[np.int64]:
    """Give ⌊rows · part / parts⌋ without leaving 64 bits; parts < 2**31."""
    whole, rest = np.divmod(rows, parts)
    found: NDArray[np.int64] = whole * part + rest * part // parts
    return found


class TrackPass(LanePass):
    """One lane's pass in tracks. A block is a step: the same part of all tracks, but for the head starts."""

    def __init__(
        self,
        begins: NDArray[np.int64],
        counts: NDArray[np.int64],
        samples_key: Key,
        block_key: Key,
        tracks: int,
        phase: tuple[int, int],
    ) -> None:
        order, track_pieces = deal(counts, tracks)
        super().__init__(begins[order], counts[order], samples_key, block_key)
        borders = np.concatenate((np.zeros(1, dtype=np.int64), self._ends))[track_pieces]
        self._track_begins = borders[:-1]
        rows = np.diff(borders)
        # Head starts are gained in the first pieces of a pass and lost in the last ones.
        begun = min(4 * tracks, counts.size) if counts.size > tracks else 0
        even = _share(rows, begun, 2 * counts.size)
        ahead = head_starts(even, int(even.sum()) // (2 * tracks), *phase)
        self._at_knots = [np.zeros_like(rows), even + ahead, rows - even + ahead, rows]
        self._knot_rows = [int(played.sum()) for played in self._at_knots]
        self._knots = [0]
        for part in np.diff(self._knot_rows).tolist():
            self._knots.append(self._knots[-1] + min(-(-part // step_rows(tracks)), _MAX_STEPS))
        self._live: dict[int, NDArray[np.uint16] | AheadOf] = {}
        self._next: tuple[int, NDArray[np.int64]] = (0, self._at_knots[0])

    def _played(self, step: int) -> NDArray[np.int64]:
        """Count the samples that each track has played before a step, shape (tracks,)."""
        if self._next[0] != step:
            segment = 0 if step < self._knots[1] else 1 if step < self._knots[2] else 2
            first, last = self._knots[segment], self._knots[segment + 1]
            begin, end = self._at_knots[segment], self._at_knots[segment + 1]
            self._next = (
                step,
                end if first == last else begin + _share(end - begin, step - first, last - first),
            )
        return self._next[1]

    @property
    def num_blocks(self) -> int:
        return self._knots[-1]

    def block_begin(self, block: int) -> int:
        return int(self._played(block).sum())

    def block_of(self, row: int) -> int:
        segment = bisect_right(self._knot_rows, row) - 1
        (begin, end), (first, last) = (
            self._knot_rows[segment : segment + 2],
            self._knots[segment : segment + 2],
        )
        block = first + (row - begin) * (last - first) // (end - begin)
        while self.block_begin(block) > row:
            block -= 1
        while self.block_begin(block + 1) <= row:
            block += 1
        return block

    def block_pieces(self, block: int) -> list[int]:
        begin, end = self._played(block) + self._track_begins, self._played(block + 1) + self._track_begins
        first = np.searchsorted(self._ends, begin, side="right")
        last = np.searchsorted(self._ends, end, side="left")
        spans = zip(first, last, begin, end, strict=True)
        used = [range(low, high + 1) for low, high, row, stop in spans if row < stop]
        return [piece for span in used for piece in span]

    def piece_rows(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        track = np.searchsorted(self._track_begins, self._ends, side="left") - 1
        ends = self._ends - self._track_begins[track]
        # The row of the lane at which so much of a track is played.
        rows = np.empty((2, ends.size))
        for number in range(self._track_begins.size):
            here = slice(*np.searchsorted(track, (number, number + 1)))
            marks = [played[number] for played in self._at_knots]
            rows[:, here] = np.interp((ends[here] - self._counts[here], ends[here]), marks, self._knot_rows)
        # Tracks are rounded to samples where steps begin and inside them, each by less than one.
        slack = 3 * self._track_begins.size if self._track_begins.size > 1 else 0
        first = np.maximum(rows[0].astype(np.int64) - slack, 0)
        last = np.minimum(np.ceil(rows[1]).astype(np.int64) + slack, self.num_samples)
        return self._begins, first, last

    def _samples(self, block: int) -> NDArray[np.int64]:
        begin = self._played(block)
        end = self._played(block + 1)
        parts: list[NDArray[np.int64]] = []
        live: dict[int, NDArray[np.uint16] | AheadOf] = {}
        begins = begin + self._track_begins
        pieces = np.searchsorted(self._ends, begins, side="right")
        for row, stop, piece in zip(
            begins.tolist(), (end + self._track_begins).tolist(), pieces.tolist(), strict=True
        ):
            while row < stop:
                piece_begin, count = self.piece_span(piece)
                piece_end = int(self._ends[piece])
                piece_stop = min(stop, piece_end)
                walk = self._live.get(piece)
                if walk is None:
                    walk = self._piece_walk(piece)
                live[piece] = walk
                low, high = row - piece_end + count, piece_stop - piece_end + count
                part = walk.span(low, high) if isinstance(walk, AheadOf) else walk[low:high].astype(np.int64)
                part += piece_begin
                parts.append(part)
                row, piece = piece_stop, piece + 1
        self._live = live
        if len(begins) == 1:
            return parts[0] if len(parts) == 1 else np.concatenate(parts)
        return np.concatenate(parts)[self._interleaved(block, end - begin)]

    def _interleaved(self, block: int, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Order a step's rows, which are given track by track: row i of x is at (i + a random fraction) / x of it."""
        total = int(counts.sum())
        bits = max(_NUMBER_BITS, total.bit_length())
        number_bits = np.uint64(bits)
        stretch = np.repeat(((1 << 64 - bits) // np.maximum(counts, 1)).astype(np.uint64), counts)
        packed = self._key(self._block_key, block).words(total)
        packed >>= np.uint64(64 - bits)
        packed *= stretch
        packed >>= number_bits
        number = np.arange(total, dtype=np.int64)
        stretch *= (number - np.repeat(np.cumsum(counts) - counts, counts)).view(np.uint64)
        packed += stretch
        packed <<= number_bits
        packed |= number.view(np.uint64)
        packed.sort()
        packed &= np.uint64((1 << bits) - 1)
        return packed.view(np.int64)

    def _piece_walk(self, piece: int) -> NDArray[np.uint16] | AheadOf:
        count = int(self._counts[piece])
        key = self._key(self._samples_key, piece)
        if count >= SLICED_FROM:
            return AheadOf(Bijection(key, count))
        return permutation(key, count).astype(np.uint16)

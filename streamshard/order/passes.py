"""Passes of scattered streams: samples found one by one, from tables of pieces and no block of samples.

A stream of a small share meets a batch with a sample or none. Whole blocks, one for each of very many lanes, would be
most of the work and of the memory of a run that reads a few rows of each. So the permutations of a scattered
stream's blocks and pieces are such as are computed at single places (:func:`scattered`), for the places of many streams
at once. ``sliding`` with a window of k splits each piece into k parts; part j of piece t goes to row block t + j, and
the first k row blocks are one block, and the last k. With a window of 1 a block is a piece, permuted once. ``shard``
is that, permuted twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from streamshard.order.keys import SCATTERED
from streamshard.order.lanes import Lanes, bit_reversed, lane_border, lane_order
from streamshard.order.permutation import mixed_words, scattered

# Lanes of fewer pieces keep their first piece whole: a cut would cost a larger share of what they hold.
STAGGER_FROM = 16


@dataclass(frozen=True, slots=True)
class Scattered:
    """One pass of one stream, as far as its tables depend on it.

    Attributes:
        lanes: the stream's pieces.
        window, seed, stream, turn: as for ``lane_pass``.
        first_id: what is added to the stream's sample ids.
        is_plain: blocks are not permuted: each is a single piece, which is.
    """

    lanes: Lanes
    window: int
    seed: int
    stream: int
    turn: int
    first_id: int = 0
    is_plain: bool = False


@dataclass(frozen=True, slots=True)
class Passes:
    """Some passes, numbered from 0. "Rows" count the samples of all their lanes, one lane after the other.

    Attributes:
        firsts: number of each pass's first row, lane, block, part and piece, and after the last pass how many there
            are of all; shape (passes + 1, 5).
        lane_begins: first row of each lane.
        lane_orders: the lanes of each pass in the order in which its rows visit them, as numbers from 0.
        longer: the same of the last, shorter row; entries that it lacks are 0.
        block_begins, block_sizes: first row and rows of each block.
        block_words: key of each block's permutation.
        plain_blocks: whether a block is not permuted.
        block_parts: number of each block's first part.
        part_ends: row after the last of each part, in a block whose samples are not permuted.
        part_shifts: place in its piece's permutation of row r of a part: r + shift.
        part_pieces: number of each part's piece.
        piece_begins, piece_counts: first sample id and samples of each piece.
        piece_words: key of each piece's permutation.
        last_blocks: the block of each lane in which a row was found last: the next one is there, mostly. Written to.
        most_parts: most parts of a block.
    """

    firsts: NDArray[np.int64]
    lane_begins: NDArray[np.int64]
    lane_orders: NDArray[np.int64]
    longer: NDArray[np.int64]
    block_begins: NDArray[np.int64]
    block_sizes: NDArray[np.int64]
    block_words: NDArray[np.uint64]
    plain_blocks: NDArray[np.bool_]
    block_parts: NDArray[np.int64]
    part_ends: NDArray[np.int64]
    part_shifts: NDArray[np.int64]
    part_pieces: NDArray[np.int64]
    piece_begins: NDArray[np.int64]
    piece_counts: NDArray[np.int64]
    piece_words: NDArray[np.uint64]
    last_blocks: NDArray[np.int64]
    most_parts: int

    @classmethod
    def of(cls, given: Sequence[Scattered]) -> Passes:
        """Lay passes out; at least one."""
        words = _pass_words(given)
        begins, piece_counts, pieces = _pieces_in_turn(given, words[0])
        windows = [each.window for each in given for _ in range(each.lanes.count)]
        orders, longer = [], []
        for each in given:
            order = last = _ONE_LANE
            if each.lanes.count > 1:
                order = lane_order(each.lanes.count, seed=each.seed, stream=each.stream, turn=each.turn)
                last = last_row(each.lanes, order)
            orders.append(order)
            longer.append(last)
        first_lane = firsts_of(np.array([order.size for order in orders], dtype=np.int64))
        first_piece = firsts_of(pieces)
        window = np.minimum(np.array(windows, dtype=np.int64), pieces)
        blocks = np.where(pieces > 0, pieces - window + 1, 0)
        first_block = firsts_of(blocks)
        # One row for each block: its lane, its number there, and the parts that it is made of.
        lane = np.repeat(np.arange(pieces.size), blocks)
        block = np.arange(lane.size) - first_block[lane]
        parts = window[lane]
        first_part = firsts_of(parts)
        of_block = np.repeat(np.arange(lane.size), parts)
        number = np.arange(of_block.size) - first_part[of_block]
        piece = (first_piece[lane] + block)[of_block] + number
        # Part j of k of piece t is in row block t + j. The first k row blocks are one block, and the last k.
        k = parts[of_block]
        begin = np.where((block == 0)[of_block], 0, k - 1 - number)
        end = np.where((block == blocks[lane] - 1)[of_block], k, k - number)
        count = piece_counts[piece]
        begin, end = _share(begin, count, k), _share(end, count, k)
        part_ends = np.cumsum(end - begin)
        part_begins = part_ends - (end - begin)
        rows = firsts_of(piece_counts)
        first_blocks, first_pieces = first_block[first_lane], first_piece[first_lane]
        firsts = (rows[first_pieces], first_lane, first_blocks, first_part[first_blocks], first_pieces)
        return cls(
            firsts=np.stack(firsts, axis=1),
            lane_begins=rows[first_piece[:-1]],
            lane_orders=np.concatenate(orders),
            longer=np.concatenate(longer),
            block_begins=part_begins[first_part[:-1]],
            block_sizes=np.add.reduceat(part_ends - part_begins, first_part[:-1]),
            block_words=_words(words[1], first_blocks),
            plain_blocks=np.repeat([each.is_plain for each in given], np.diff(first_blocks)),
            block_parts=first_part[:-1],
            part_ends=part_ends,
            part_shifts=begin - part_begins,
            part_pieces=piece,
            piece_begins=begins,
            piece_counts=piece_counts,
            piece_words=_words(words[2], first_pieces),
            last_blocks=first_block[:-1],
            most_parts=int(parts.max()),
        )

    def __len__(self) -> int:
        return len(self.firsts) - 1

    def part(self, begin: int, end: int) -> Passes:
        """Give the passes numbered begin … end-1."""
        low, high = self.firsts[begin], self.firsts[end]
        cut = {name: getattr(self, name)[low[kind] : high[kind]] for name, kind in _COUNTED_BY.items()}
        firsts = self.firsts[begin : end + 1]
        return Passes(firsts=firsts, **cut, most_parts=self.most_parts)._moved(-low)

    def find(
        self, numbers: NDArray[np.int64], lane: NDArray[np.int64], row: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Give the sample ids at rows of lanes of the passes ``numbers``; all of shape (n,)."""
        ids = np.empty(row.size, dtype=np.int64)
        for begin in range(0, row.size, _SLICE):
            some = slice(begin, begin + _SLICE)
            ids[some] = self._find(numbers[some], lane[some], row[some])
        return ids

    def _find(
        self, numbers: NDArray[np.int64], lane: NDArray[np.int64], row: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        number = self.firsts[:, _LANE][numbers] + lane
        at = row + self.lane_begins[number]
        block = self.last_blocks[number]
        at -= self.block_begins[block]
        size = self.block_sizes[block]
        elsewhere = np.flatnonzero((at < 0) | (at >= size))
        if elsewhere.size:
            rows = at[elsewhere] + self.block_begins[block[elsewhere]]
            found = np.searchsorted(self.block_begins, rows, side="right") - 1
            block[elsewhere] = found
            at[elsewhere] = rows - self.block_begins[found]
            size[elsewhere] = self.block_sizes[found]
            self.last_blocks[number[elsewhere]] = found
        mixed = np.flatnonzero(~self.plain_blocks[block])
        if mixed.size == at.size:
            at = scattered(at, size, self.block_words[block])
        elif mixed.size:
            at[mixed] = scattered(at[mixed], size[mixed], self.block_words[block[mixed]])
        at += self.block_begins[block]
        part = self.block_parts[block]
        for _ in range(self.most_parts - 1):
            part += at >= self.part_ends[part]
        piece = self.part_pieces[part]
        at += self.part_shifts[part]
        ids = scattered(at, self.piece_counts[piece], self.piece_words[piece])
        ids += self.piece_begins[piece]
        return ids

    def piece_rows(self, lane: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Give for each piece of a lane, in these tables' number: its first sample id, and its rows [begin, end) there.

        As :meth:`LanePass.piece_rows`: those of the blocks that draw from it.
        """
        low = int(self.lane_begins[lane])
        high = int(self.lane_begins[lane + 1]) if lane + 1 < self.lane_begins.size else self.firsts[-1, _ROW]
        block = np.repeat(
            np.arange(self.block_parts.size), np.diff(self.block_parts, append=self.part_ends.size)
        )
        counts = np.diff(self.part_ends, prepend=0)
        here = (counts > 0) & (self.block_begins[block] >= low) & (self.block_begins[block] < high)
        piece, block = self.part_pieces[here], block[here]
        # Parts come block by block, so the first of a piece is in its first block.
        pieces, first = np.unique(piece, return_index=True)
        ends = np.zeros(self.piece_begins.size, dtype=np.int64)
        np.maximum.at(ends, piece, self.block_begins[block] + self.block_sizes[block])
        return self.piece_begins[pieces], self.block_begins[block[first]] - low, ends[pieces] - low

    def _moved(self, by: NDArray[np.int64]) -> Passes:
        """Count rows, lanes, blocks, parts and pieces from other numbers on."""
        return replace(
            self,
            firsts=self.firsts + by,
            lane_begins=self.lane_begins + by[_ROW],
            block_begins=self.block_begins + by[_ROW],
            block_parts=self.block_parts + by[_PART],
            last_blocks=self.last_blocks + by[_BLOCK],
            part_ends=self.part_ends + by[_ROW],
            part_shifts=self.part_shifts - by[_ROW],
            part_pieces=self.part_pieces + by[_PIECE],
        )


def joined(several: Sequence[Passes]) -> Passes:
    """Give all passes of several tables, in their order."""
    if len(several) == 1:
        return several[0]
    moved: list[Passes] = []
    by = np.zeros(5, dtype=np.int64)
    for each in several:
        moved.append(each._moved(by))
        by = by + each.firsts[-1]
    arrays = {name: np.concatenate([getattr(each, name) for each in moved]) for name in _COUNTED_BY}
    firsts = np.concatenate([*(each.firsts[:-1] for each in moved), by[None]])
    return Passes(firsts=firsts, **arrays, most_parts=max(each.most_parts for each in several))


def firsts_of(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Give the number of the first item of each group, and of all items; shape (groups + 1,)."""
    return np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(counts, dtype=np.int64)))


def _pass_words(given: Sequence[Scattered]) -> NDArray[np.uint64]:
    """Draw three words for each pass: for the order of its pieces, for its blocks, for their samples."""
    words = np.full(len(given), SCATTERED, dtype=np.uint64)
    for numbers in zip(*((each.seed, each.stream, each.turn) for each in given), strict=True):
        words = mixed_words(words, np.array(numbers, dtype=np.uint64))
    return np.stack([mixed_words(words, np.full(words.size, use)) for use in range(3)])


def _pieces_in_turn(
    given: Sequence[Scattered], words: NDArray[np.uint64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Give first sample ids and sizes of all pieces in the order in which their lanes turn to them; and pieces a lane.

    The first piece of lane c of long lanes is cut at bitrev(c)/C and its rest comes last: lanes turn one by one.
    """
    begins = np.concatenate([each.lanes.piece_begins + each.first_id for each in given])
    counts = np.concatenate([each.lanes.piece_counts for each in given])
    bounds = np.diff(np.concatenate([each.lanes.lane_pieces for each in given]))
    pieces = np.delete(bounds, np.cumsum([each.lanes.count + 1 for each in given])[:-1] - 1)
    firsts = firsts_of(np.array([each.lanes.piece_counts.size for each in given]))
    keys = _words(words, firsts)
    lane = np.repeat(np.arange(pieces.size), pieces)
    order = np.lexsort((keys, lane))
    begins, counts = begins[order], counts[order]
    if all(each.lanes.count == 1 for each in given):
        return begins, counts, pieces
    cuts = np.array(
        [bit_reversed(lane, each.lanes.count) for each in given for lane in range(each.lanes.count)],
        dtype=np.int64,
    )
    first_piece = firsts_of(pieces)[:-1]
    has_first = pieces >= STAGGER_FROM
    heads = np.zeros(pieces.size, dtype=np.int64)
    heads[has_first] = _share(cuts[has_first, 0], counts[first_piece[has_first]], cuts[has_first, 1])
    is_cut = heads > 0
    # The second part of a piece that is cut follows the last piece of its lane.
    more = pieces + is_cut
    lane = np.repeat(np.arange(pieces.size), more)
    number = np.arange(lane.size) - firsts_of(more)[lane]
    is_rest = number == pieces[lane]
    source = first_piece[lane] + np.where(is_rest, 0, number)
    begins, counts = begins[source], counts[source]
    is_head = (number == 0) & is_cut[lane]
    head = heads[lane]
    begins += np.where(is_rest, head, 0)
    counts = np.where(is_rest, counts - head, np.where(is_head, head, counts))
    return begins, counts, more


def last_row(lanes: Lanes, order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Give the lanes that the last, shorter row of a pass visits, in their order, filled up to all lanes with 0."""
    found = np.zeros(lanes.count, dtype=np.int64)
    if lanes.extra:
        borders = np.array(
            [lane_border(lanes.num_samples, lanes.count, lane) for lane in range(lanes.count + 1)]
        )
        found[: lanes.extra] = order[(np.diff(borders) > lanes.full_rows)[order]]
    return found


def _share(
    numbers: NDArray[np.int64], counts: NDArray[np.int64], total: NDArray[np.int64]
) -> NDArray[np.int64]:
    """⌊number · count / total⌋, without the product where it may pass 2**63."""
    whole, rest = np.divmod(counts, total)
    share: NDArray[np.int64] = numbers * whole + numbers * rest // total
    return share


def _words(words: NDArray[np.uint64], firsts: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Make a word of each pass's word for each of its items, by their numbers in it."""
    counts = np.diff(firsts)
    numbers = np.arange(firsts[-1]) - np.repeat(firsts[:-1], counts)
    return mixed_words(np.repeat(words, counts), numbers)


_SLICE = 1 << 13  # places found at once, so that the temporaries stay in the processor's cache
_ONE_LANE = np.zeros(1, dtype=np.int64)
_ROW, _LANE, _BLOCK, _PART, _PIECE = range(5)
# What each table has an entry for.
_COUNTED_BY = {
    "lane_begins": _LANE,
    "lane_orders": _LANE,
    "longer": _LANE,
    "last_blocks": _LANE,
    "block_begins": _BLOCK,
    "block_sizes": _BLOCK,
    "block_words": _BLOCK,
    "plain_blocks": _BLOCK,
    "block_parts": _BLOCK,
    "part_ends": _PART,
    "part_shifts": _PART,
    "part_pieces": _PART,
    "piece_begins": _PIECE,
    "piece_counts": _PIECE,
    "piece_words": _PIECE,
}

"""Shuffles within one lane of one pass: which samples make up a block, and in which order they come.

    sliding   block t mixes one part of each of ``window`` pieces; each block brings in one piece, retires one
    block     ``window`` whole pieces are mixed, then the next ones
    shard     one piece after another, each shuffled in itself

``full`` and ``none`` have no lanes to speak of and live in :mod:`streamshard.order.walk`.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from streamshard.order.keys import BLOCK_SAMPLES, PIECE_ORDER, PIECE_SAMPLES, Key
from streamshard.order.lanes import Lanes, bit_reversed
from streamshard.order.permutation import SLICED_FROM, Bijection, permutation

SHUFFLES = ("sliding", "block", "shard", "full", "none")
_ALIASES = {
    "py1e": "sliding",
    "py1br": "block",
    "py1b": "block",
    "py1s": "shard",
    "py2s": "shard",
    "naive": "full",
}

# Lanes of fewer pieces keep their first piece whole: a cut would cost a larger share of what they hold.
STAGGER_FROM = 16


def parse_shuffle(name: str | None) -> str:
    """Give our name of a shuffle; mosaicml-streaming's names are known too, and None means ``"none"``.

    Raises:
        ValueError: another name; the message lists the known ones.
    """
    if name is None:
        return "none"
    found = _ALIASES.get(name, name) if isinstance(name, str) else None
    if found not in SHUFFLES:
        known = ", ".join((*SHUFFLES, *_ALIASES))
        raise ValueError(f"shuffle={name!r}: expected one of {known}")
    return str(found)


def lane_pass(
    lanes: Lanes, lane: int, *, shuffle: str, window: int, seed: int, stream: int, turn: int
) -> LanePass:
    """Lay out one lane for one pass: permute its pieces, stagger the first, and form blocks."""
    begin, end = int(lanes.lane_pieces[lane]), int(lanes.lane_pieces[lane + 1])
    order = permutation(Key(PIECE_ORDER, seed, stream, turn, lane), end - begin) + begin
    begins, counts = lanes.piece_begins[order], lanes.piece_counts[order]
    if order.size >= STAGGER_FROM:
        begins, counts = _stagger(begins, counts, *bit_reversed(lane, lanes.count))
    samples_key = Key(PIECE_SAMPLES, seed, stream, turn, lane)
    block_key = Key(BLOCK_SAMPLES, seed, stream, turn, lane)
    if shuffle == "shard":
        return _ShardPass(begins, counts, samples_key, block_key)
    if shuffle == "block" or begins.size <= window:
        edges = _block_edges(begins.size, window, *bit_reversed(lane, lanes.count))
        return _BlockPass(begins, counts, samples_key, block_key, edges)
    return _SlidingPass(begins, counts, samples_key, block_key, window)


def _stagger(
    begins: NDArray[np.int64], counts: NDArray[np.int64], numerator: int, denominator: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Cut the first piece and move its second part to the end: lanes then turn to new shards one by one."""
    head = int(counts[0]) * numerator // denominator
    rest_begin, rest_count = begins[0] + head, counts[0] - head
    skip = 0 if head else 1
    begins = np.append(begins[skip:], rest_begin)
    counts = np.append(counts[skip:], rest_count)
    if head:
        counts[0] = head
    return begins, counts


def _block_edges(num_pieces: int, window: int, numerator: int, denominator: int) -> list[int]:
    """Give the piece numbers at which blocks begin and, last, end; lanes are staggered against each other.

    A first or last block of less than half a window is joined to its neighbour.
    """
    if num_pieces <= window:
        return [0, num_pieces]
    least = -(-window // 2)
    offset = window * numerator // denominator
    inner = range(offset if offset >= least else offset + window, num_pieces - least + 1, window)
    return [0, *inner, num_pieces]


class LanePass(abc.ABC):
    """The samples of one lane in one pass, as a sequence of blocks. Rows count the lane's samples from 0.

    One block is held at a time, with what the next one needs of its predecessor.
    """

    def __init__(
        self, begins: NDArray[np.int64], counts: NDArray[np.int64], samples_key: Key, block_key: Key
    ) -> None:
        self._begins = begins
        self._counts = counts
        self._ends = np.cumsum(counts)
        self._samples_key = samples_key
        self._block_key = block_key
        self._block = -1
        self._begin = 0
        self._held: NDArray[np.int64] = np.empty(0, dtype=np.int64)

    @property
    def num_samples(self) -> int:
        """Samples of the lane."""
        return int(self._ends[-1]) if self._ends.size else 0

    @property
    @abc.abstractmethod
    def num_blocks(self) -> int:
        """Blocks of the lane, empty ones included."""

    @abc.abstractmethod
    def block_begin(self, block: int) -> int:
        """Give the row at which a block begins; for ``num_blocks``, the number of rows."""

    @abc.abstractmethod
    def block_of(self, row: int) -> int:
        """Give the block that holds a row."""

    @abc.abstractmethod
    def block_pieces(self, block: int) -> range:
        """Give the pieces, numbered in this pass's order, that a block draws from."""

    @abc.abstractmethod
    def _samples(self, block: int) -> NDArray[np.int64]:
        """Compute a block's sample ids in their order."""

    def rows(self, begin: int, end: int) -> list[NDArray[np.int64]]:
        """Give the sample ids of rows begin … end-1 (0 <= begin < end <= num_samples) to be joined."""
        parts: list[NDArray[np.int64]] = []
        while begin < end:
            held_end = self._begin + self._held.size
            if begin == held_end:  # going on to the next block needs no search
                self._hold(self._block + 1, held_end)
            elif not self._begin <= begin < held_end:
                block = self.block_of(begin)
                self._hold(block, self.block_begin(block))
            else:
                stop = min(end, held_end)
                parts.append(self._held[begin - self._begin : stop - self._begin])
                begin = stop
        return parts

    def _hold(self, block: int, begin: int) -> None:
        self._held = self._samples(block)
        self._block, self._begin = block, begin

    def piece_rows(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Give each piece's first sample id and the rows [first, last) of the blocks that draw from it, in this
        pass's order; shape (pieces,)."""
        borders = np.array([self.block_begin(block) for block in range(self.num_blocks + 1)], dtype=np.int64)
        first = np.full(self._counts.size, self.num_samples, dtype=np.int64)
        last = np.zeros(self._counts.size, dtype=np.int64)
        for block in range(self.num_blocks):
            pieces = self.block_pieces(block)
            here = slice(pieces.start, pieces.stop)
            first[here] = np.minimum(first[here], borders[block])
            last[here] = borders[block + 1]
        return self._begins, first, last

    def piece_span(self, piece: int) -> tuple[int, int]:
        """Give the first sample id and the number of samples of a piece, numbered in this pass's order."""
        return int(self._begins[piece]), int(self._counts[piece])

    def _key(self, key: Key, item: int) -> Key:
        return Key(key.use, key.seed, key.stream, key.turn, key.place, item)


class _ShardPass(LanePass):
    @property
    def num_blocks(self) -> int:
        return self._counts.size

    def block_begin(self, block: int) -> int:
        return int(self._ends[block - 1]) if block else 0

    def block_of(self, row: int) -> int:
        return int(np.searchsorted(self._ends, row, side="right"))

    def block_pieces(self, block: int) -> range:
        return range(block, block + 1)

    def _samples(self, block: int) -> NDArray[np.int64]:
        begin, count = self.piece_span(block)
        return permutation(self._key(self._samples_key, block), count) + begin


class _BlockPass(LanePass):
    def __init__(
        self,
        begins: NDArray[np.int64],
        counts: NDArray[np.int64],
        samples_key: Key,
        block_key: Key,
        edges: Sequence[int],
    ) -> None:
        super().__init__(begins, counts, samples_key, block_key)
        self._edges = edges
        ends = np.concatenate((np.zeros(1, dtype=np.int64), self._ends))
        self._block_begins = ends[np.asarray(edges)]

    @property
    def num_blocks(self) -> int:
        return len(self._edges) - 1

    def block_begin(self, block: int) -> int:
        return int(self._block_begins[block])

    def block_of(self, row: int) -> int:
        return int(np.searchsorted(self._block_begins, row, side="right")) - 1

    def block_pieces(self, block: int) -> range:
        return range(self._edges[block], self._edges[block + 1])

    def _samples(self, block: int) -> NDArray[np.int64]:
        pieces = self.block_pieces(block)
        counts = self._counts[pieces.start : pieces.stop]
        begins = self._begins[pieces.start : pieces.stop]
        # Row i of the joined pieces is sample begin + (i - rows before the piece).
        shift = np.repeat(begins - (np.cumsum(counts) - counts), counts)
        chosen = permutation(self._key(self._block_key, block), shift.size)
        samples: NDArray[np.int64] = chosen + shift[chosen]
        return samples


class _SlidingPass(LanePass):
    """Part j of piece t is in row block t+j; the first ``window`` row blocks are one block, and the last."""

    def __init__(
        self,
        begins: NDArray[np.int64],
        counts: NDArray[np.int64],
        samples_key: Key,
        block_key: Key,
        window: int,
    ) -> None:
        super().__init__(begins, counts, samples_key, block_key)
        self._window = window
        # floor(j·m/k) = j·(m÷k) + floor(j·(m mod k)/k): exact, and far from the end of 64 bits.
        self._quotients, self._remainders = np.divmod(counts, window)
        self._live: dict[int, NDArray[np.uint16] | Bijection] = {}

    @property
    def num_blocks(self) -> int:
        return self._counts.size - self._window + 1

    def block_begin(self, block: int) -> int:
        if block <= 0:
            return 0
        if block >= self.num_blocks:
            return self.num_samples
        return self._before(block + self._window - 1)

    def block_of(self, row: int) -> int:
        # A row block b begins no later than piece b does and no earlier than piece b-k+1.
        low = int(np.searchsorted(self._ends, row, side="right"))
        high = low + self._window - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self._before(middle) <= row:
                low = middle
            else:
                high = middle - 1
        return min(max(low - self._window + 1, 0), self.num_blocks - 1)

    def block_pieces(self, block: int) -> range:
        return range(block, block + self._window)

    def _before(self, row_block: int) -> int:
        """Count the samples of all row blocks before one."""
        begin, end = max(0, row_block - self._window + 1), min(self._counts.size, row_block)
        parts = row_block - np.arange(begin, end, dtype=np.int64)
        whole = int(self._ends[begin - 1]) if begin else 0
        return whole + int(self._part_begins(parts, begin, end).sum())

    def _part_begins(self, parts: NDArray[np.int64], begin: int, end: int) -> NDArray[np.int64]:
        begins: NDArray[np.int64] = (
            parts * self._quotients[begin:end] + parts * self._remainders[begin:end] // self._window
        )
        return begins

    def _samples(self, block: int) -> NDArray[np.int64]:
        pieces = self.block_pieces(block)
        first = 0 if block == 0 else block + self._window - 1
        last = self._counts.size + self._window - 1 if block == self.num_blocks - 1 else block + self._window
        live: dict[int, NDArray[np.uint16] | Bijection] = {}
        parts = []
        for piece in pieces:
            piece_begin, count = self.piece_span(piece)
            begin = max(first - piece, 0) * count // self._window
            end = min(last - piece, self._window) * count // self._window
            walk = self._live.get(piece)
            if walk is None:
                walk = self._piece_walk(piece)
            live[piece] = walk
            part = walk.span(begin, end) if isinstance(walk, Bijection) else walk[begin:end].astype(np.int64)
            parts.append(part + piece_begin)
        self._live = live
        samples = np.concatenate(parts)
        return samples[permutation(self._key(self._block_key, block), samples.size)]

    def _piece_walk(self, piece: int) -> NDArray[np.uint16] | Bijection:
        count = int(self._counts[piece])
        key = self._key(self._samples_key, piece)
        return Bijection(key, count) if count >= SLICED_FROM else permutation(key, count).astype(np.uint16)

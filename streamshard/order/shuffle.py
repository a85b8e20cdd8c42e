"""Shuffles within one lane of one pass: which samples make up a block, and in which order they come.

    sliding   ``window`` tracks of pieces side by side, which turn to their next pieces at different times
    block     ``window`` whole pieces are mixed, then the next ones
    shard     one piece after another, each shuffled in itself

``full`` and ``none`` have no lanes to speak of and live in :mod:`streamshard.order.walk`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from streamshard.order.keys import BLOCK_SAMPLES, BORDER_TIME, PIECE_ORDER, PIECE_SAMPLES, Key
from streamshard.order.lane import LanePass
from streamshard.order.lanes import Lanes, bit_reversed
from streamshard.order.permutation import permutation
from streamshard.order.tracks import TrackPass

SHUFFLES = ("sliding", "block", "shard", "full", "none")
_ALIASES = {
    "py1e": "sliding",
    "py1br": "block",
    "py1b": "block",
    "py1s": "shard",
    "py2s": "shard",
    "naive": "full",
}


_CIRCLE = 1 << 32
_GOLDEN = 0x9E3779B9  # 2**32 / golden ratio: its multiples spread evenly over the circle


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
        raise ValueError(f"shuffle algorithm {name!r}: expected one of {known}")
    return str(found)


def lane_pass(
    lanes: Lanes, lane: int, *, shuffle: str, window: int, seed: int, stream: int, turn: int
) -> LanePass:
    """Lay out one lane for one pass: order its pieces, and form tracks or blocks of them."""
    most = 1 if shuffle == "shard" else window
    order = _piece_order(lanes, lane, most, seed, stream, turn, alike=shuffle == "block")
    begins, counts = lanes.piece_begins[order], lanes.piece_counts[order]
    samples_key = Key(PIECE_SAMPLES, seed, stream, turn, lane)
    block_key = Key(BLOCK_SAMPLES, seed, stream, turn, lane)
    phase = bit_reversed(lane, lanes.count)
    if shuffle == "block" or not order.size:
        blocks = -(-order.size // window)
        edges = [block_edge(block, order.size, window, *phase) for block in range(blocks + 1)]
        return _BlockPass(begins, counts, samples_key, block_key, edges)
    return TrackPass(begins, counts, samples_key, block_key, min(most, order.size), phase)


def _piece_order(
    lanes: Lanes, lane: int, window: int, seed: int, stream: int, turn: int, *, alike: bool
) -> NDArray[np.int64]:
    """Permute a lane's pieces; the two parts of a shard that lies across a border come at about the same time."""
    begin, end = int(lanes.lane_pieces[lane]), int(lanes.lane_pieces[lane + 1])
    order = permutation(Key(PIECE_ORDER, seed, stream, turn, lane), end - begin) + begin
    sides = (begin, end - 1) if end - begin > 1 else ()
    cut = [(piece, lane + side) for side, piece in enumerate(sides) if lanes.border_cuts[lane + side]]
    whole = order
    for piece, _ in cut:
        whole = whole[whole != piece]
    if alike:
        whole = whole[_alike(lanes.piece_counts[whole], window, descending=(lane + turn) % 2 == 1)]
    if not cut:
        return whole
    first = _first_time(seed, stream, turn)
    ends = np.cumsum(lanes.piece_counts[whole])
    placed: list[tuple[int, int, int]] = []
    for piece, border in cut:
        if whole.size < 2 * window:  # there is no place between: last in one lane, first in the other
            placed.append((whole.size if border > lane else 0, border - lane, piece))
            continue
        # Not among the first and last ones, where a batch would have one shard of two lanes.
        time = (first + border * _GOLDEN) % _CIRCLE
        low, high = int(ends[window - 1]), int(ends[whole.size - window])
        row = low + ((high - low) * time >> 32)
        placed.append((int(np.searchsorted(ends, row, side="right")), time, piece))
    placed.sort()
    for place, _, piece in reversed(placed):
        whole = np.concatenate((whole[:place], (piece,), whole[place:]))
    return whole


@lru_cache(maxsize=16)
def _first_time(seed: int, stream: int, turn: int) -> int:
    return int(Key(BORDER_TIME, seed, stream, turn).words(1)[0]) >> 32


def _alike(counts: NDArray[np.int64], window: int, *, descending: bool) -> NDArray[np.int64]:
    """Sort the pieces of each two blocks by size, up and down in turn: a block of very unlike ones mixes badly.

    A lane of only two blocks stays as it is, as each pass should divide it in another way.
    """
    order = np.arange(counts.size)
    if counts.size <= 2 * window:
        return order
    run = order // (2 * window)
    down = (run % 2 == 1) ^ descending
    return np.lexsort((np.where(down, -counts, counts), run))


def block_edge(block: int, num_pieces: int, window: int, numerator: int, denominator: int) -> int:
    """Give the piece number at which a block begins; for the number of blocks, that of pieces.

    A lane of n pieces has ⌈n / window⌉ blocks of nearly the same size, but for the first and the last one: together
    as large as two, they have 1/2 to 3/2 of a block each, which differs from lane to lane.
    """
    blocks = -(-num_pieces // window)
    if not 0 < block < blocks:
        return 0 if block <= 0 else num_pieces
    place = 2 * denominator * block + 2 * numerator + 1 - denominator
    return (num_pieces * place + denominator * blocks) // (2 * denominator * blocks)


def live_blocks(lanes: Lanes, window: int) -> NDArray[np.int64]:
    """Give the pieces of which some samples may be read and some not, in each lane's first, last, and other blocks.

    Where a lane's first block is a small one, others are still in theirs when it turns to the next: so the larger
    of both counts. Lanes of two blocks have no others: in the midst of a pass each may be in its
    larger one. Shape (3, C).
    """
    live = np.empty((3, lanes.count), dtype=np.int64)
    for lane, pieces in enumerate(np.diff(lanes.lane_pieces).tolist()):
        blocks = -(-pieces // window)
        edges = [block_edge(at, pieces, window, *bit_reversed(lane, lanes.count)) for at in (1, blocks - 1)]
        usual = -(-pieces // max(1, blocks))
        first, last = max(edges[0], usual), max(pieces - edges[1], usual)
        live[:, lane] = first, last, max(first, last) if blocks <= 2 else usual
    return live


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

    def piece_rows(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        pieces = np.diff(self._edges)
        first, last = np.repeat(self._block_begins[:-1], pieces), np.repeat(self._block_begins[1:], pieces)
        return self._begins, first, last

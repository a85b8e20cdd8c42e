"""One lane of one pass: a sequence of blocks, each of which can be computed by itself."""

from __future__ import annotations

import abc
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from streamshard.order.keys import Key


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
    def block_pieces(self, block: int) -> Sequence[int]:
        """Give the pieces, as this pass numbers them, that a block draws from, ascending."""

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

    @abc.abstractmethod
    def piece_rows(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Give each piece's first sample id, and the rows [first, last) outside which none of its samples is.

        Pieces as this pass numbers them; shape (pieces,).
        """

    def piece_span(self, piece: int) -> tuple[int, int]:
        """Give the first sample id and the number of samples of a piece, as this pass numbers them."""
        return int(self._begins[piece]), int(self._counts[piece])

    def _key(self, key: Key, item: int) -> Key:
        return Key(key.use, key.seed, key.stream, key.turn, key.place, item)

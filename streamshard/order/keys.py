"""Keyed random words: the only source of chance in the package.

A key is a tuple of six integers, the first a constant per use. ``numpy.random.SeedSequence`` takes [7],
[7, 0] and [7, 0, 0] for the same, therefore the length is fixed, and each integer is two 32-bit words. Bit
generators are stable between NumPy releases (NEP 19), ``Generator`` methods are not; so ``Philox.random_raw``
is all we call.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# One constant per use. They are part of the order for ever: add, never change.
SHARD_ORDER = 1  # shards of a stream, once per run
LANE_ORDER = 2  # which lane is visited when, per pass
PIECE_ORDER = 3  # pieces of a lane, per pass
PIECE_SAMPLES = 4  # samples of a piece, per pass
BLOCK_SAMPLES = 5  # samples of a block, per pass
WHOLE_PASS = 6  # shuffle="full"
LABELS = 7  # batching_method="random"
SCATTERED = 8  # blocks and pieces of a pass of a scattered stream
BORDER_TIME = 9  # when in a pass the shards that borders of lanes cut are played


@dataclass(frozen=True, slots=True)
class Key:
    """What a run of random words depends on. All numbers are in [0, 2**64).

    Attributes:
        use: one of the constants above.
        seed: the user's seed.
        stream: ordinal of the stream.
        turn: the pass, or 0 for what is drawn once per run.
        place: lane, or another number that the use needs.
        item: piece or block within the lane.
    """

    use: int
    seed: int
    stream: int = 0
    turn: int = 0
    place: int = 0
    item: int = 0

    def words(self, count: int) -> NDArray[np.uint64]:
        """Give the first ``count`` 64-bit random words of this key, shape (count,)."""
        parts = (self.use, self.seed, self.stream, self.turn, self.place, self.item)
        # As little-endian bytes a 64-bit integer is its low word, then its high word.
        entropy = np.array(parts, dtype="<u8").view("<u4")
        words: NDArray[np.uint64] = np.random.Philox(entropy).random_raw(count)
        return words

"""Keyed random words: the only source of chance in the package.

A key is a tuple of six integers, the first a constant per use. ``numpy.random.SeedSequence`` takes [7],
[7, 0] and [7, 0, 0] for the same, therefore the length is fixed, and each integer is two 32-bit words. Bit
generators are stable between NumPy releases (NEP 19), ``Generator`` methods are not; so ``Philox.random_raw``
is all we call. Where a thousand keys are due at once, their words are computed side by side, to the same result.
"""

from __future__ import annotations

from collections.abc import Sequence
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
        # As little-endian bytes a 64-bit integer is its low word, then its high word.
        entropy = np.array(self._parts, dtype="<u8").view("<u4")
        words: NDArray[np.uint64] = np.random.Philox(entropy).random_raw(count)
        return words

    @property
    def _parts(self) -> tuple[int, ...]:
        return self.use, self.seed, self.stream, self.turn, self.place, self.item


# NumPy's seed sequence: M. E. O'Neill, "Developing a seed_seq alternative", 2015, with these constants.
_POOL = 4
_HASH_A, _MULTIPLY_A = 0x43B0D7E5, 0x931E8875
_HASH_B, _MULTIPLY_B = 0x8B51F9DD, 0x58F38DED
_MIX_LEFT, _MIX_RIGHT = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)
_HALF_WORD = np.uint32(16)
# Philox 4x64-10: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.
_ROUNDS = 10
_MULTIPLIERS = np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157)
_WEYL = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBB67AE8584CAA73B)
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)


def words_of_each(keys: Sequence[Key], count: int) -> NDArray[np.uint64]:
    """Give the first ``count`` words of each key, shape (keys, count): what ``Key.words`` gives.

    For a thousand keys it takes a tenth of the time with a few words each, a third with sixty, and more from two
    hundred on.
    """
    parts = np.array([key._parts for key in keys], dtype="<u8").reshape(len(keys), 6)
    halves = parts.view("<u4").T.copy()
    first, second = _seeded(list(halves))
    blocks = -(-count // 4)
    counters = np.arange(1, blocks + 1, dtype=np.uint64)
    found = _philox(counters[None, :], first[:, None], second[:, None])
    return found.reshape(len(keys), 4 * blocks)[:, :count]


def _seeded(entropy: list[NDArray[np.uint32]]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Give the two words that NumPy's seed sequence makes of some words of entropy, at least four; shape (n,) each."""
    constant = _HASH_A

    def hashed(value: NDArray[np.uint32]) -> NDArray[np.uint32]:
        nonlocal constant
        value = value ^ np.uint32(constant)
        constant = constant * _MULTIPLY_A & 0xFFFFFFFF
        value *= np.uint32(constant)
        value ^= value >> _HALF_WORD
        return value

    def mixed(left: NDArray[np.uint32], right: NDArray[np.uint32]) -> NDArray[np.uint32]:
        value: NDArray[np.uint32] = left * _MIX_LEFT
        value -= right * _MIX_RIGHT
        value ^= value >> _HALF_WORD
        return value

    pool = [hashed(word) for word in entropy[:_POOL]]
    for source in range(_POOL):
        for target in range(_POOL):
            if source != target:
                pool[target] = mixed(pool[target], hashed(pool[source]))
    for word in entropy[_POOL:]:
        for target in range(_POOL):
            pool[target] = mixed(pool[target], hashed(word))
    constant = _HASH_B
    made: list[NDArray[np.uint64]] = []
    for value in pool:
        value = value ^ np.uint32(constant)
        constant = constant * _MULTIPLY_B & 0xFFFFFFFF
        value *= np.uint32(constant)
        made.append((value ^ (value >> _HALF_WORD)).astype(np.uint64))
    return made[0] | made[1] << _HALF, made[2] | made[3] << _HALF


def _philox(
    counter: NDArray[np.uint64], key0: NDArray[np.uint64], key1: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """Give the four words of each block, of broadcast counters below 2**64 and keys; shape (…, 4)."""
    counter, key0, key1 = np.broadcast_arrays(counter, key0, key1)
    words = [counter, *[np.zeros_like(counter)] * 3]
    for turn in range(_ROUNDS):
        if turn:
            key0, key1 = key0 + _WEYL[0], key1 + _WEYL[1]
        high0, low0 = _product(words[0], _MULTIPLIERS[0])
        high1, low1 = _product(words[2], _MULTIPLIERS[1])
        words = [high1 ^ words[1] ^ key0, low1, high0 ^ words[3] ^ key1, low0]
    return np.stack(words, axis=-1)


def _product(value: NDArray[np.uint64], factor: np.uint64) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Give the high and the low word of 128-bit products."""
    low, high = value & _LOW, value >> _HALF
    factor_low, factor_high = factor & _LOW, factor >> _HALF
    middle = high * factor_low + (low * factor_low >> _HALF)
    other = low * factor_high + (middle & _LOW)
    return high * factor_high + (middle >> _HALF) + (other >> _HALF), value * factor

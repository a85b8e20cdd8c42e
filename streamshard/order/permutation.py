"""Keyed permutations: whole ones by sorting random words, single places of huge ones by a Feistel network.

Places of very many permutations at once, each with a key and a size of its own, by another (:func:`scattered`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamshard.order.keys import Key, words_of_each

# From here on only the slice that is needed is computed, by a bijection, instead of the whole permutation.
SLICED_FROM = 1 << 16

# Up to so many words of each of several keys are made side by side.
_FEW = 64
_ROUNDS = 12
_SCATTERED_ROUNDS = 8
_SCATTERED_SLICE = 1 << 13  # some ten temporaries of it stay in the processor's cache
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio
_HASH = np.uint64(
    0xD6E8FEB86659FD93
)  # the multiplier of Pelle Evensen's and Rob Murphy's "rrxmrrxmsx" mixers
_HALF = np.uint64(32)
_AHEAD = 1 << 14
_SLICE = 1 << 14  # elements evaluated at once, so that the temporaries stay in the processor's cache


def permutation(key: Key, n: int) -> NDArray[np.int64]:
    """Give a permutation of 0 … n-1, shape (n,).

    Random words that carry the numbers in their low bits are sorted: several times faster than an argsort.
    Where the random parts of two words are equal (for n < 2**16 less than one pair in 2**48) the smaller
    number comes first.
    """
    if n <= 1:
        return np.zeros(max(n, 0), dtype=np.int64)
    return _sorted_words(key.words(n))


def permutations(keys: Sequence[Key], n: int) -> NDArray[np.int64]:
    """Give the ``permutation`` of each key, shape (keys, n); many of a few numbers in a tenth of the time."""
    if n <= 1 or n > _FEW or not keys:
        return np.array([permutation(key, n) for key in keys], dtype=np.int64).reshape(len(keys), n)
    return _sorted_words(words_of_each(keys, n))


def _sorted_words(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Permute 0 … n-1 by the high bits of words, shape (…, n), along the last axis."""
    n = words.shape[-1]
    low = np.uint64((1 << (n - 1).bit_length()) - 1)
    packed: NDArray[np.uint64] = words & ~low
    packed |= np.arange(n, dtype=np.uint64)
    packed.sort(axis=-1)
    packed &= low
    return packed.view(np.int64)


class Bijection:
    """A keyed permutation of 0 … n-1 that is evaluated only where it is asked; 2 <= n <= 2**62.

    An alternating Feistel network on the bits of n-1 (halves differ by at most one bit), walked on where it
    leaves the range (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002). The round function is
    a multiply-xorshift-multiply hash with keyed odd multipliers. Made for shuffling, not for secrecy.
    """

    def __init__(self, key: Key, n: int) -> None:
        self.n = n
        bits = max(2, (n - 1).bit_length())
        self._low_bits = bits // 2
        self._high_bits = bits - self._low_bits
        words = key.words(3 * _ROUNDS)
        self._adders = words[0::3].copy()
        self._multipliers = words[1::3] | np.uint64(1)
        self._finishers = words[2::3] | np.uint64(1)

    def at(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give the images of ``places`` (each in [0, n)), of the same shape (1-d)."""
        images = np.empty(places.size, dtype=np.uint64)
        for begin in range(0, places.size, _SLICE):
            part = places[begin : begin + _SLICE].astype(np.uint64)
            images[begin : begin + _SLICE] = self._walk(part)
        return images.view(np.int64)

    def span(self, begin: int, end: int) -> NDArray[np.int64]:
        """Give the images of begin … end-1, shape (end - begin,)."""
        return self.at(np.arange(begin, end, dtype=np.int64))

    def _walk(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        limit = np.uint64(self.n)
        values = self._rounds(values)
        outside = np.flatnonzero(values >= limit)
        while outside.size:
            again = self._rounds(values[outside])
            values[outside] = again
            outside = outside[again >= limit]
        return values

    def _rounds(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        low_bits, high_bits = self._low_bits, self._high_bits
        low = values & np.uint64((1 << low_bits) - 1)
        high = values >> np.uint64(low_bits)
        for turn in range(_ROUNDS):
            if turn % 2 == 0:
                low ^= self._hash(high, turn, low_bits)
            else:
                high ^= self._hash(low, turn, high_bits)
        joined: NDArray[np.uint64] = (high << np.uint64(low_bits)) | low
        return joined

    def _hash(self, half: NDArray[np.uint64], turn: int, bits: int) -> NDArray[np.uint64]:
        mixed: NDArray[np.uint64] = half + self._adders[turn]
        mixed *= self._multipliers[turn]
        mixed ^= mixed >> np.uint64(32)
        mixed *= self._finishers[turn]
        mixed >>= np.uint64(64 - bits)
        return mixed


class AheadOf:
    """Spans of a :class:`Bijection` that are asked for one after another.

    More and more places are evaluated at once, up to some thousand, since evaluating many costs little more than a few:
    most of it is calls. Whoever asks only once pays for no more than that.
    """

    def __init__(self, bijection: Bijection) -> None:
        self._bijection = bijection
        self._begin = 0
        self._images = np.zeros(0, dtype=np.int64)

    def span(self, begin: int, end: int) -> NDArray[np.int64]:
        """Give the images of begin … end-1, shape (end - begin,)."""
        known_end = self._begin + self._images.size
        if not self._begin <= begin <= end <= known_end:
            goes_on = (
                self._begin < begin <= known_end
            )  # steps differ by a row, so what is known may end amid one
            ahead = min(2 * self._images.size, _AHEAD) if goes_on else 0
            stop = min(max(end, begin + ahead), self._bijection.n)
            self._begin, self._images = begin, self._bijection.span(begin, stop)
        found: NDArray[np.int64] = self._images[begin - self._begin : end - self._begin].copy()
        return found


def scattered(
    places: NDArray[np.int64], sizes: NDArray[np.int64], words: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """Give the image of each place under a permutation of 0 … size-1 of its own.

    An alternating Feistel network on Z_a x Z_b with a·b just above the size, walked on where it leaves the range (as
    :class:`Bijection`): the numeric form of "FE1" (Bellare et al., "Format-preserving encryption", 2009). The round
    function is a multiply-xorshift-multiply hash of the other half, the word and the round. Made for shuffling.

    Args:
        places: each in [0, size), shape (n,).
        sizes: from 1 to 2**53, shape (n,).
        words: the permutations' keys, shape (n,).
    """
    images = np.empty(places.size, dtype=np.int64)
    for begin in range(0, places.size, _SCATTERED_SLICE):
        part = slice(begin, begin + _SCATTERED_SLICE)
        images[part] = _scattered_once(places[part], sizes[part], words[part])
    outside = np.flatnonzero(images >= sizes)
    while outside.size:
        again = _scattered_once(images[outside], sizes[outside], words[outside])
        images[outside] = again
        outside = outside[again >= sizes[outside]]
    return images


def _scattered_once(
    places: NDArray[np.int64], sizes: NDArray[np.int64], words: NDArray[np.uint64]
) -> NDArray[np.int64]:
    # Quotients of whole numbers up to 2**53 by ones up to 2**27 are far enough from the next integer for floats.
    size = sizes.astype(np.float64)
    rows = np.maximum(2.0, np.floor(np.sqrt(size)))
    columns = np.ceil(size / rows)
    high = np.floor(places / columns)
    low = places - high * columns
    moduli = (rows.astype(np.uint64), columns.astype(np.uint64))
    halves = (high.astype(np.uint64), low.astype(np.uint64))
    word = words.copy()
    mixed, shifted = np.empty_like(word), np.empty_like(word)
    for turn in range(_SCATTERED_ROUNDS):
        mine, modulus = halves[turn % 2], moduli[turn % 2]
        np.multiply(halves[1 - turn % 2], _GOLDEN, out=mixed)
        mixed += word
        np.right_shift(mixed, _HALF, out=shifted)
        mixed ^= shifted
        mixed *= _HASH
        mixed >>= _HALF
        mixed *= modulus  # below 2**60: a number below 2**32 times one below 2**28
        mixed >>= _HALF
        mine += mixed
        # Without a branch: a number below the modulus wraps round when it is taken off.
        np.subtract(mine, modulus, out=shifted)
        np.minimum(mine, shifted, out=mine)
        word += _HASH
    joined: NDArray[np.uint64] = halves[0] * moduli[1]
    joined += halves[1]
    return joined.view(np.int64)


def mixed_words(words: NDArray[np.uint64], numbers: NDArray[Any]) -> NDArray[np.uint64]:
    """Make a word of each word and number: the finaliser of SplitMix64 (Steele, Lea and Flood, 2014)."""
    mixed: NDArray[np.uint64] = (numbers.astype(np.uint64) + np.uint64(1)) * _GOLDEN
    mixed += words
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed

"""A random order of the records that depends on the seed alone, in memory that does not follow their number.

Records are sorted by 64 keyed random bits each, those with equal bits by their place. ``random_raw`` is stable between
releases of NumPy. Where there are many records, the bits are made again for each part of the order that is wanted: 100
million of them in some 0.3 s.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

_SORTED_AT_ONCE = 1 << 21
_MADE_AT_ONCE = 1 << 20
# Records with equal bits at the top are counted together to find the one of some rank.
_TOP_BITS = 16


def permutation_in_parts(num_records: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Yield the numbers of all records in the random order: int64 arrays, some millions at a time."""
    parts = max(1, -(-num_records // _SORTED_AT_ONCE))
    for part in range(parts):
        low, most = (
            np.uint64(-(-(each << 64) // parts) - below) for each, below in ((part, 0), (part + 1, 1))
        )
        places, keys = [np.empty(0, np.int64)], [np.empty(0, np.uint64)]
        for begin, made in _keys(num_records, seed):
            mine = np.flatnonzero((made >= low) & (made <= most))
            places.append(mine + begin)
            keys.append(made[mine])
        order = np.argsort(np.concatenate(keys), kind="stable")
        del keys
        yield np.concatenate(places)[order]


def ranked(num_records: int, seed: int, first: int, last: int) -> Iterator[NDArray[np.int64]]:
    """Yield the numbers of those records, ascending, that have the places ``[first, last)`` in the random order."""
    low, high = (_at_rank(num_records, seed, rank) for rank in (first, last))
    for begin, keys in _keys(num_records, seed):
        yield np.flatnonzero(~_are_before(keys, begin, low) & _are_before(keys, begin, high)) + begin


def _are_before(keys: NDArray[np.uint64], begin: int, at: tuple[int, int] | None) -> NDArray[np.bool_]:
    """Which records come before the one of these bits and this number; None is behind all."""
    if at is None:
        return np.ones(len(keys), bool)
    key, number = at
    before: NDArray[np.bool_] = keys < np.uint64(key)
    equal = np.flatnonzero(keys == np.uint64(key))
    before[equal] = equal + begin < number
    return before


def _at_rank(num_records: int, seed: int, rank: int) -> tuple[int, int] | None:
    """Bits and number of the record that has a place in the random order; None behind the last."""
    if rank >= num_records:
        return None
    shift = np.uint64(64 - _TOP_BITS)
    counts = np.zeros(1 << _TOP_BITS, np.int64)
    for _, keys in _keys(num_records, seed):
        counts += np.bincount((keys >> shift).astype(np.int64), minlength=len(counts))
    ends = np.cumsum(counts)
    top = int(np.searchsorted(ends, rank, side="right"))
    found: list[tuple[int, int]] = []
    for begin, keys in _keys(num_records, seed):
        mine = np.flatnonzero(keys >> shift == np.uint64(top))
        found += zip(keys[mine].tolist(), (mine + begin).tolist(), strict=True)
    return sorted(found)[rank - int(ends[top] - counts[top])]


def _keys(num_records: int, seed: int) -> Iterator[tuple[int, NDArray[np.uint64]]]:
    """The bits of all records in their own order, with the number of the first one: uint64 arrays."""
    bits = np.random.Philox(np.random.SeedSequence([0x636F6E76, seed & 0xFFFFFFFF, seed >> 32]))
    for begin in range(0, num_records, _MADE_AT_ONCE):
        yield begin, bits.random_raw(min(_MADE_AT_ONCE, num_records - begin))

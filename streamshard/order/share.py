"""One rank's share of sorted batches, found without looking at the other ranks' samples.

Inside a batch, positions are sorted by lane first (see :meth:`Walk.sort_keys`), and how often a batch visits
a lane is a closed formula. So the lanes in which a rank's part begins and ends are known without enumerating
the batch: a rank pays for its own samples and the rest of two lanes' visits, not for the global batch.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streamshard.order.stream_walk import Spots
from streamshard.order.walk import Walk

_HASH_BITS = 32


def has_shortcut(walk: Walk, size: int, low: int, high: int) -> bool:
    """Say whether :func:`share` is right and worth it for parts ``low … high`` of batches of ``size``.

    Lanes must be a power of two: otherwise a rounded key may be the same in two lanes.
    """
    return (
        walk.lanes > 1
        and not walk.lanes & (walk.lanes - 1)
        and size >= 2 * walk.lanes
        and 3 * (high - low) <= size
    )


def batches_at_once(walk: Walk, size: int, low: int, high: int, limit: int) -> int:
    """Give how many batches to ask :func:`share` for, so that it handles about ``limit`` numbers at once."""
    visited = (high - low) + 2 * (size // walk.lanes + 2)
    return max(1, limit // (visited + walk.lanes))


def share(
    walk: Walk, turn: int, begins: NDArray[np.int64], size: int, low: int, high: int
) -> tuple[Spots, NDArray[np.int64]]:
    """Find the sorted positions low … high-1 of each batch of places begin … begin + size-1 of pass ``turn``.

    ``begins`` ascend by at least ``size``, shape (batches,); every batch lies in the pass whole.

    Returns:
        Spots of all visits to the lanes concerned, and the numbers of those chosen, batch after batch in
        sorted order, shape (batches · (high - low),).
    """
    first = walk.visits(turn, begins)
    counts = walk.visits(turn, begins + size) - first
    ends = np.cumsum(counts, axis=1)
    batch, lane = np.nonzero((ends > low) & (ends - counts < high) & (counts > 0))
    # One "visit" below is one lane in one batch; its rows follow each other.
    count = counts[batch, lane]
    slot = ends[batch, lane] - count
    starts = np.cumsum(count) - count
    number = np.repeat(np.arange(count.size), count)
    within = np.arange(number.size) - starts[number]
    spots = Spots(lane[number], within + first[batch, lane][number], [(turn, 0, number.size)])
    order = _sorted_visits(walk, spots, number, within)
    # The sort moves rows only inside their visit, so place i of the order has slot ``slot + within``.
    slots = slot[number] + within
    return spots, order[(slots >= low) & (slots < high)]


def _sorted_visits(
    walk: Walk, spots: Spots, number: NDArray[np.int64], within: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Sort rows by key inside each visit, ties by position; give their numbers."""
    total = number.size
    key_bits = _HASH_BITS - (walk.lanes.bit_length() - 1)
    index_bits = int(total).bit_length()
    if int(number[-1]).bit_length() + key_bits + index_bits <= 64:
        packed = walk.sort_keys(spots)
        packed &= np.uint64((1 << key_bits) - 1)  # the lane is the same in a whole visit
        packed |= number.astype(np.uint64) << np.uint64(key_bits)
        packed <<= np.uint64(index_bits)
        packed |= np.arange(total, dtype=np.uint64)
        packed.sort()
        packed &= np.uint64((1 << index_bits) - 1)
        return packed.view(np.int64)
    return np.lexsort((within, walk.sort_keys(spots), number))

"""Several maps as one buffer, so that rows of many files are decoded by one call, in any order.

What is cut out of the buffer is bytes of its own, as from a map. Between the maps lies what must not be touched, so
nothing may be taken of it but from rows that were checked to be within their map. A decoder sees to it that values are
within their row.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from streamshard.format.column import gather_bytes

if TYPE_CHECKING:
    from streamshard.format.column import Buffer, Ids

_HEAD_NBYTES = 12  # the number of samples, and two offsets


class Memory(ctypes.Array[ctypes.c_char]):
    """What is in memory from an address on. Of one length for all: ctypes forgets no type."""

    _type_ = ctypes.c_char
    _length_ = sys.maxsize >> 7
    maps: Sequence[NDArray[np.uint8]]  # a map that somebody closes stays as long as they do


def side_by_side(
    maps: Sequence[NDArray[np.uint8]], addresses: Sequence[int], bounds: Ids, rows: Ids
) -> tuple[Buffer, Ids, Ids]:
    """Give a buffer in which the maps of shards lie as they lie in memory, and where rows begin and end in it.

    Where they do stands in front of each shard's samples, in two words for each row.

    Args:
        maps: raw shard files, one or more.
        addresses: where each begins in memory.
        bounds: rows bounds[i] to bounds[i + 1] are in map i; shape (len(maps) + 1,).
        rows: numbers of rows in their shard; shape (n,).

    Raises:
        IndexError: a row that is not within its map.
    """
    lowest = min(addresses)
    memory = Memory.from_address(lowest)
    memory.maps = maps
    buffer = cast("mmap.mmap", memory)
    counts = np.diff(bounds)
    first = np.repeat(np.array(addresses) - lowest, counts)
    nbytes = np.repeat(np.fromiter(map(len, maps), np.int64, len(maps)), counts)
    _refuse((rows < 0) | (rows > (nbytes - _HEAD_NBYTES) // 4))
    words = gather_bytes(buffer, first + 4 * rows + 4, 8).view("<u4")
    begins, ends = words[::2].astype(np.int64), words[1::2].astype(np.int64)
    _refuse((begins > ends) | (ends > nbytes))
    return buffer, first + begins, first + ends


def _refuse(outside: NDArray[np.bool_]) -> None:
    if outside.any():
        raise IndexError(f"row {outside.argmax()} of {len(outside)} is not within its map")

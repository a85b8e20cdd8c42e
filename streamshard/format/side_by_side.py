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

if TYPE_CHECKING:
    from streamshard.format.column import Buffer, Ids


class Memory(ctypes.Array[ctypes.c_char]):
    """What is in memory from an address on. Of one length for all: ctypes forgets no type."""

    _type_ = ctypes.c_char
    _length_ = sys.maxsize >> 7
    maps: list[np.ndarray]  # views of them: a map that somebody closes stays as long as they do


def side_by_side(maps: Sequence[mmap.mmap], bounds: Ids, begins: Ids, ends: Ids) -> tuple[Buffer, Ids, Ids]:
    """Give a buffer in which all maps lie as they lie in memory, and where rows begin and end in it.

    Args:
        maps: one or more.
        bounds: rows bounds[i] to bounds[i + 1] are in map i; shape (len(maps) + 1,).
        begins, ends: of each row in its map; shape (n,).

    Raises:
        IndexError: a row that is not within its map.
    """
    views = [np.frombuffer(each, np.uint8) for each in maps]
    rows = np.diff(bounds)
    outside = (begins < 0) | (begins > ends) | (ends > np.repeat([view.size for view in views], rows))
    if outside.any():
        raise IndexError(f"row {outside.argmax()} of {len(begins)} is not within its map")
    addresses = [view.__array_interface__["data"][0] for view in views]
    lowest = min(addresses)
    places = np.repeat(np.array(addresses) - lowest, rows)
    memory = Memory.from_address(lowest)
    memory.maps = views
    return cast("mmap.mmap", memory), begins + places, ends + places

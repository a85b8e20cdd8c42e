"""How the values of one column come out of a buffer: one row, many rows as a list, many rows as a column."""

from __future__ import annotations

import functools
import mmap
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamshard.errors import FormatError
from streamshard.format.encodings import BytesEncoding, Encoding, JsonEncoding, ScalarEncoding, StrEncoding
from streamshard.format.ndarray import NdarrayEncoding
from streamshard.format.row_code import BYTES, INT, TEXT
from streamshard.format.warmth import warmed

Buffer = bytes | mmap.mmap
"""What gives bytes of its own when it is sliced."""
Ids = NDArray[np.int64]

# Arrays up to this size are cut out of one block per call; larger ones would keep the whole block alive.
_BLOCK_NBYTES = 4096


class Column:
    """How one wanted column comes out of a buffer: a row, many rows as a list, many rows as a column."""

    def __init__(self, name: str, size: int | None, before: int, variable_before: int) -> None:
        self.name = name
        self.size = size
        self.before = before  # bytes of fixed-size values in front of it
        self.variable_before = variable_before  # variable columns in front of it
        self.kind = ""  # as in ``row_code``
        self.row: Callable[[Buffer, int, int], Any]
        self.rows: Callable[[Buffer, Ids, Ids], list[Any]]
        self.column: Callable[[Buffer, Ids, Ids], Any]
        self.join: Callable[[list[Any]], Any] = _as_they_are  # from decoded values to a column


@functools.lru_cache(maxsize=256)
def _void(size: int) -> np.dtype[np.void]:
    return np.dtype((np.void, size))


def gather_bytes(buffer: Buffer, begins: Ids, size: int) -> NDArray[np.void]:
    """Copy ``size`` bytes from each place; the places have been checked."""
    # A view of the buffer at every byte: void elements need no alignment, so that nothing else is copied.
    if not len(begins):
        return np.empty(0, _void(size))
    every = np.ndarray((len(buffer) - size + 1,), _void(size), buffer, strides=(1,))
    found: NDArray[np.void] = every[begins]
    return found


def bind(column: Column, encoding: Encoding, *, decode_images: bool, writeable: bool) -> None:
    """Give a column the functions that its encoding needs.

    Args:
        column: changed in place.
        encoding: checked against the index before.
        decode_images: give pictures, not the stored bytes.
        writeable: give arrays that may be changed in place.
    """
    if isinstance(encoding, ScalarEncoding):
        _bind_scalar(column, encoding.dtype, as_int=encoding.name == "int")
    elif isinstance(encoding, NdarrayEncoding) and encoding.shape is not None:
        _bind_static_array(column, encoding, writeable=writeable)
    elif isinstance(encoding, StrEncoding):
        column.kind = TEXT
        _bind_cut(column, lambda b, i, j: b[i:j].decode(), _str_rows)
    elif isinstance(encoding, BytesEncoding):
        column.kind = BYTES
        _bind_cut(column, lambda b, i, j: b[i:j], _bytes_rows)
    elif isinstance(encoding, NdarrayEncoding) and writeable:
        _bind_decode(column, encoding.decode_writeable)
    elif isinstance(encoding, JsonEncoding) or decode_images:
        _bind_decode(column, encoding.decode)
    else:
        _bind_decode(column, encoding.stored)


def _bind_cut(
    column: Column,
    row: Callable[[Buffer, int, int], Any],
    rows: Callable[[Buffer, Ids, Ids], list[Any]],
) -> None:
    column.row, column.rows, column.column = row, rows, rows


def _bind_decode(column: Column, decode: Callable[[bytes], Any]) -> None:
    def rows(buffer: Buffer, begins: Ids, ends: Ids) -> list[Any]:
        # All are copied out before the first is decoded: that may take long, and a map's file be cut meanwhile.
        pieces = [buffer[a:b] for a, b in zip(begins.tolist(), ends.tolist(), strict=True)]
        return [decode(piece) for piece in pieces]

    def fixed_rows(buffer: Buffer, begins: Ids, _: Ids) -> list[Any]:
        size = column.size or 0
        pieces = [buffer[a : a + size] for a in begins.tolist()]
        return [decode(piece) for piece in pieces]

    _bind_cut(column, lambda b, i, j: decode(b[i:j]), rows if column.size is None else fixed_rows)


def _as_they_are(values: list[Any]) -> list[Any]:
    return values


def _str_rows(buffer: Buffer, begins: Ids, ends: Ids) -> list[Any]:
    values: list[Any] = []
    for part in warmed(buffer, begins, ends):
        values += [
            buffer[a:b].decode() for a, b in zip(begins[part].tolist(), ends[part].tolist(), strict=True)
        ]
    return values


def _bytes_rows(buffer: Buffer, begins: Ids, ends: Ids) -> list[Any]:
    return [buffer[a:b] for a, b in zip(begins.tolist(), ends.tolist(), strict=True)]


def _bind_scalar(column: Column, dtype: np.dtype[Any], *, as_int: bool) -> None:
    def gather(buffer: Buffer, begins: Ids, _: Ids) -> NDArray[Any]:
        return gather_bytes(buffer, begins, dtype.itemsize).view(dtype)

    column.column = gather
    column.join = functools.partial(np.array, dtype=dtype)
    if as_int:
        column.kind = INT
        unpack = struct.Struct("<q").unpack_from
        column.row = lambda buffer, begin, _: unpack(buffer, begin)[0]
        column.rows = lambda buffer, begins, ends: gather(buffer, begins, ends).tolist()
    else:
        column.row = lambda buffer, begin, _: np.frombuffer(buffer, dtype, 1, begin)[0]
        column.rows = lambda buffer, begins, ends: list(gather(buffer, begins, ends))


def _bind_static_array(column: Column, encoding: NdarrayEncoding, *, writeable: bool) -> None:
    dtype, shape, size = encoding.dtype, encoding.shape, encoding.size
    if dtype is None or shape is None or size is None:
        raise FormatError(f"encoding {encoding.name!r}: a fixed shape needs a fixed dtype")
    decode = encoding.decode_writeable if writeable else encoding.decode

    def gather(buffer: Buffer, begins: Ids, _: Ids) -> NDArray[Any]:
        block: NDArray[Any] = gather_bytes(buffer, begins, size).view(dtype).reshape(-1, *shape)
        return block

    def block_rows(buffer: Buffer, begins: Ids, ends: Ids) -> list[Any]:
        block = gather(buffer, begins, ends)
        block.flags.writeable = writeable
        return list(block)

    _bind_decode(column, decode)
    column.column = gather
    column.join = lambda values: np.array(values, dtype).reshape(-1, *shape)
    if size <= _BLOCK_NBYTES:
        column.rows = block_rows

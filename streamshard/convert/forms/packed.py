"""Packed records: a spool of rows that were decoded once, from which any row can be read again.

    record    u32 n, n bytes of JSON [row, [[path, type, size], …]], then the binary values one after another
    file      records, then u64 offsets[count + 1], then u64 count

``path`` is the way to the place in the row where the value belongs (keys and list places), ``type`` ``"b"`` for bytes
or a NumPy type for an array, with its shape behind it unless that is one number (``"<f4:2,3"``).
Numbers are little-endian.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamshard.convert.forms.items import ItemsForm
from streamshard.convert.jsonl import read_span
from streamshard.convert.rows import sync_file
from streamshard.errors import FormatError

COLUMNS_SUFFIX = ".columns"
"""Of the file beside a spool of :mod:`streamshard.convert.records` that has its columns as JSON."""

_HEAD = struct.Struct("<I")
_COUNT = struct.Struct("<Q")
_BUFFER = 1 << 20


def pack(row: Mapping[str, Any]) -> bytes:
    """Pack one row of plain values, bytes and arrays of numbers.

    Raises:
        TypeError: a value of another class.
        ValueError: a list or dict that holds itself.
    """
    blobs: list[bytes] = []
    places: list[list[Any]] = []

    def taken_out(value: Any, path: list[Any]) -> Any:
        kind = type(value)
        if kind is str or kind is int or kind is float or kind is bool or value is None:
            return value
        if isinstance(value, (bytes, bytearray, memoryview)):
            blobs.append(bytes(value))
            places.append([path, "b", len(blobs[-1])])
            return None
        if isinstance(value, np.ndarray) and value.ndim and value.dtype.kind in "iuf":
            dtype = value.dtype.newbyteorder("<")
            blobs.append(np.ascontiguousarray(value, dtype).tobytes())
            shape = "" if value.ndim == 1 else ":" + ",".join(map(str, value.shape))
            places.append([path, f"{dtype.str}{shape}", len(blobs[-1])])
            return None
        if isinstance(value, np.generic | np.ndarray):
            return taken_out(value.tolist(), path)
        if isinstance(value, Mapping):
            return {str(key): taken_out(item, [*path, str(key)]) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [taken_out(item, [*path, place]) for place, item in enumerate(value)]
        if isinstance(value, (str, int, float)):
            return value
        raise TypeError(f"a value of type {kind.__name__} cannot be stored")

    plain = {key: taken_out(value, [key]) for key, value in row.items()}
    head = json.dumps([plain, places], separators=(",", ":")).encode()
    return b"".join((_HEAD.pack(len(head)), head, *blobs))


def unpack(text: bytes) -> dict[str, Any]:
    """The row that :func:`pack` was given; arrays are read-only."""
    (size,) = _HEAD.unpack_from(text)
    at = _HEAD.size + size
    row: dict[str, Any]
    row, places = json.loads(text[_HEAD.size : at])
    for path, kind, nbytes in places:
        blob = text[at : at + nbytes]
        at += nbytes
        holder: Any = row
        for step in path[:-1]:
            holder = holder[step]
        if kind == "b":
            holder[path[-1]] = blob
            continue
        dtype, _, shape = kind.partition(":")
        array = np.frombuffer(blob, dtype)
        holder[path[-1]] = array.reshape(tuple(map(int, shape.split(",")))) if shape else array
    return row


class Spool:
    """Writes a file of packed rows; complete when left without an error."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = path.with_name(f"{path.name}.part")
        self._file = self._part.open("wb", buffering=_BUFFER)
        self._ends: list[NDArray[np.uint64]] = []

    def __enter__(self) -> Spool:
        return self

    def add(self, rows: Iterable[Mapping[str, Any]]) -> int:
        """Add rows; gives the bytes that they take."""
        sizes = []
        for row in rows:
            text = pack(row)
            self._file.write(text)
            sizes.append(len(text))
        if sizes:
            self._ends.append(np.array(sizes, np.uint64))
        return sum(sizes)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                offsets = np.zeros(sum(map(len, self._ends)) + 1, "<u8")
                np.cumsum(np.concatenate([np.zeros(0, np.uint64), *self._ends]), out=offsets[1:])
                self._file.write(offsets.tobytes())
                self._file.write(_COUNT.pack(len(offsets) - 1))
                sync_file(self._file)
        finally:
            self._file.close()
        if kind is None:
            self._part.replace(self._path)
        else:
            self._part.unlink()


class PackedForm(ItemsForm):
    """A spool, read."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            nbytes = file.seek(0, 2)
            tail = read_span(file.fileno(), max(0, nbytes - _COUNT.size), _COUNT.size)
            count = _COUNT.unpack(tail)[0] if len(tail) == _COUNT.size else nbytes
            size = 8 * (count + 1)
            if size + _COUNT.size > nbytes:
                raise FormatError(f"{path}: not a complete spool; run again with --no-resume")
            offsets = read_span(file.fileno(), nbytes - _COUNT.size - size, size)
        super().__init__(path, np.frombuffer(offsets, "<u8").astype(np.int64))

    @property
    def nbytes(self) -> int:
        """The bytes of all records."""
        return int(self._offsets[-1])

    def parse(self, text: bytes, *, checked: bool) -> dict[str, Any]:
        return unpack(text)

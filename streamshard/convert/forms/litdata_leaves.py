"""The leaves of LitData items: from the name of a format to what reads its bytes. Every length is checked first."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Leaf = Callable[[bytes], Any]

FILES = ("video", "audio", "file", "pdf", "tifffile")
"""Formats that are a file as it is."""

_TORCH = {
    0: "float32", 1: "float32", 2: "float64", 3: "float64", 8: "float16", 9: "float16", 11: "uint8", 12: "int8",
    13: "int16", 14: "int16", 15: "int32", 16: "int32", 17: "int64", 18: "int64", 20: "uint16",
}  # fmt: skip
_NUMPY = dict(
    enumerate(
        ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64")
    )
)  # fmt: skip
_MOST_DIMENSIONS = 32


def own_encoding(name: str) -> str | None:
    """The MDS encoding of a leaf that has more to it than its values tell: arrays, and raw pixels."""
    kind, _, parameter = name.partition(":")
    if kind in ("no_header_tensor", "no_header_numpy"):
        dtype = _dtype(_TORCH if kind == "no_header_tensor" else _NUMPY, parameter)
        return None if dtype is None else f"ndarray:{dtype}"
    return {"tensor": "ndarray", "numpy": "ndarray", "pil": "pil"}.get(kind)


def parse_leaf(name: str) -> Leaf | None:
    """What reads a leaf of this format; ``None`` for one that is not read. Readers raise ValueError."""
    kind, _, parameter = name.partition(":")
    if kind in ("no_header_tensor", "no_header_numpy"):
        dtype = _dtype(_TORCH if kind == "no_header_tensor" else _NUMPY, parameter)
        return (
            None
            if dtype is None
            else lambda content: np.frombuffer(content, np.dtype(dtype).newbyteorder("<"))
        )
    return _LEAVES.get(kind)


def _dtype(known: dict[int, str], parameter: str) -> str | None:
    return known.get(int(parameter)) if parameter.isdecimal() else None


def _bool(content: bytes) -> bool:
    if len(content) != 1:
        raise ValueError(f"a bool of {len(content)} bytes")
    return content != b"\0"


def _int(content: bytes) -> int:
    if len(content) != 8:
        raise ValueError(f"an int of {len(content)} bytes")
    return int.from_bytes(content, "little", signed=True)


def _float(content: bytes) -> float:
    if len(content) != 8:
        raise ValueError(f"a float of {len(content)} bytes")
    found: float = struct.unpack("<d", content)[0]
    return found


def _array(known: dict[int, str], order: str) -> Leaf:
    """An array with type, number of dimensions and shape in front, as u32 of this byte order."""

    def read(content: bytes) -> NDArray[Any]:
        code, rank = struct.unpack_from(f"{order}II", content)
        if code not in known or rank > _MOST_DIMENSIONS:
            raise ValueError(f"an array of type {code} with {rank} dimensions")
        shape = struct.unpack_from(f"{order}{rank}I", content, 8)
        dtype = np.dtype(known[code]).newbyteorder("<")
        begin = 8 + 4 * rank
        if len(content) - begin != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"an array of shape {shape} in {len(content) - begin} bytes")
        return np.frombuffer(content, dtype, offset=begin).reshape(shape)

    return read


def _jpeg_array(content: bytes) -> list[bytes]:
    (count,) = struct.unpack_from("<I", content)
    begin = 4 + 4 * count
    if begin > len(content):
        raise ValueError(f"{count} images in {len(content)} bytes")
    sizes = struct.unpack_from(f"<{count}I", content, 4)
    if begin + sum(sizes) != len(content):
        raise ValueError("images whose sizes do not add up")
    images = []
    for size in sizes:
        images.append(content[begin : begin + size])
        begin += size
    return images


class _Nested:
    """JSON values in LitData's own binary form: a tag, then a count or length, then what it announces."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def value(self) -> Any:
        tag = self._take(1)[0]
        if tag in (1, 4, 5, 0, 2, 3, 6):
            count = self._u32()
            if count > len(self._content):
                raise ValueError(f"{count} members in {len(self._content)} bytes")
            if tag == 0:
                return json.loads(self._take(count))
            if tag == 1:
                return [self._text() for _ in range(count)]
            if tag in (2, 3):
                return np.frombuffer(self._take(8 * count), "<i8" if tag == 2 else "<f8").tolist()
            if tag == 4:
                return [byte != 0 for byte in self._take(count)]
            if tag == 5:
                return {self._text(): self.value() for _ in range(count)}
            return self._rows(count)
        return self._single(tag - 7, (3, 0, 1, 2, 4))

    def _rows(self, count: int) -> list[dict[str, Any]]:
        num_keys = self._u32()
        if num_keys > len(self._content):
            raise ValueError(f"{num_keys} keys in {len(self._content)} bytes")
        keys = [self._text() for _ in range(num_keys)]
        if not keys:
            raise ValueError("rows without keys")
        return [
            {key: self._single(self._take(1)[0] - 16, (4, 3, 0, 1, 2)) for key in keys} for _ in range(count)
        ]

    def _single(self, place: int, order: tuple[int, ...]) -> Any:
        """One plain value; ``order`` maps the tag to: 0 integer, 1 float, 2 bool, 3 text, 4 null."""
        kind = order[place] if 0 <= place < len(order) else -1
        if kind == 0:
            return _int(self._take(8))
        if kind == 1:
            return _float(self._take(8))
        if kind == 2:
            return _bool(self._take(1))
        if kind == 3:
            return self._text()
        if kind == 4:
            return None
        raise ValueError("an unknown tag in a json leaf")

    def _text(self) -> str:
        return self._take(self._u32()).decode("utf-8")

    def _u32(self) -> int:
        return int.from_bytes(self._take(4), "little")

    def _take(self, nbytes: int) -> bytes:
        part = self._content[self._at : self._at + nbytes]
        if len(part) != nbytes:
            raise ValueError("a json leaf that ends too soon")
        self._at += nbytes
        return part


def _json(content: bytes) -> Any:
    # Plain JSON of older versions begins with a letter, quote or bracket; tags are smaller.
    return _Nested(content).value() if content[:1] <= b"\x20" else json.loads(content)


def _same(content: bytes) -> bytes:
    return content


_LEAVES: dict[str, Leaf] = {
    "str": lambda content: content.decode("utf-8"),
    "text": lambda content: content.decode("utf-8"),
    "bool": _bool,
    "int": _int,
    "float": _float,
    "bytes": _same,
    "jpeg": _same,
    "image": _same,
    "pil": _same,
    "jpeg_array": _jpeg_array,
    "tensor": _array(_TORCH, ">"),
    "numpy": _array(_NUMPY, "<"),
    "json": _json,
    **dict.fromkeys(FILES, _same),
}

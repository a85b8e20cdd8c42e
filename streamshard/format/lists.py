"""Several values in one, in order.

    list[jpeg|png|pil|bytes]       u32 0, u32 n, u32 size[n], values         n >= 0
    jpeg_array (or jpegarray)      u32 n, u32 size[n], files                 n >= 1

``list[bytes]`` is not one of MDS: mosaicml-streaming refuses it by name.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from streamshard.errors import FormatError, SampleError
from streamshard.format.encodings import Encoding, type_name


class ListEncoding(Encoding):
    """A list of values of another encoding.

    Args:
        name: of this encoding.
        item: of each value.
        noun: what a value is, for messages.
        reserved: a u32 0 comes first, and the list may be empty.
    """

    def __init__(self, name: str, item: Encoding, noun: str, *, reserved: bool = True) -> None:
        self.name = name
        self._item = item
        self._noun = noun
        self._reserved = reserved

    def encode(self, value: Any) -> bytes:
        if (
            isinstance(value, (str, bytes, bytearray, memoryview))
            or not hasattr(value, "__len__")
            or not hasattr(value, "__iter__")
        ):
            raise SampleError(f"expected a list of {self._noun}s, found {type_name(value)}")
        if not len(value) and not self._reserved:
            raise SampleError(
                f"an empty list: mosaicml-streaming can write it as {self.name} but not read it; use "
                "list[jpeg]"
            )
        parts = []
        for place, item in enumerate(value):
            try:
                parts.append(self._item.encode(item))
            except SampleError as error:
                raise SampleError(f"{self._noun} {place} of {len(value)}: {error}") from error
        sizes = np.fromiter(map(len, parts), np.int64, len(parts))
        if sizes.size and sizes.max() >= 2**32:
            raise SampleError(f"a {self._noun} of 4 GiB or more cannot be stored")
        words = ([0] if self._reserved else []) + [len(parts)]
        return b"".join([np.array(words, "<u4").tobytes(), sizes.astype("<u4").tobytes(), *parts])

    def decode(self, payload: bytes | memoryview) -> list[Any]:
        return [self._item.decode(part) for part in self._parts(payload)]

    def stored(self, payload: bytes | memoryview) -> list[bytes]:
        return [bytes(part) for part in self._parts(payload)]

    def _parts(self, payload: bytes | memoryview) -> list[memoryview]:
        view = memoryview(payload)
        head = 8 if self._reserved else 4
        if len(view) < head:
            raise FormatError(f"{self.name} of {len(view)} bytes: its header takes {head}")
        if self._reserved and any(view[:4]):
            raise FormatError(f"{self.name} whose reserved word is {bytes(view[:4])!r}, expected zeros")
        count = int(np.frombuffer(view, "<u4", 1, head - 4)[0])
        begin = head + 4 * count
        if begin > len(view):
            raise FormatError(f"{self.name} of {len(view)} bytes says it holds {count} {self._noun}s")
        ends = begin + np.frombuffer(view, "<u4", count, head).cumsum(dtype=np.int64)
        total = int(ends[-1]) if count else begin
        if total != len(view):
            raise FormatError(f"{self.name} of {len(view)} bytes whose {count} {self._noun}s end at {total}")
        begins = [begin, *ends[:-1].tolist()] if count else []
        return [view[a:b] for a, b in zip(begins, ends.tolist(), strict=True)]

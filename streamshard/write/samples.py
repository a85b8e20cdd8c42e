"""The encoded samples of a shard that is being filled: a list of small ones, memory that is used again for large ones.

Large values are copied once, from where the user has them to their place in the shard. Fresh memory for each of them
would cost as much as that copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from streamshard.format.schema import Schema

_BLOCK_NBYTES = 1 << 20
# From this size on NumPy asks for huge pages, which are there sooner.
_LARGEST_BLOCK = 1 << 24
# What stays for the next shards: two of the default size.
_KEPT_NBYTES = 1 << 27
_LARGE = frozenset(
    (
        *("bytes", "jpeg", "png", "pil", "pkl", "ndarray", "jpeg_array", "jpegarray"),
        *("list[jpeg]", "list[png]", "list[pil]", "list[bytes]"),
    )
)


class Samples(Protocol):
    """Encoded samples in order."""

    def __len__(self) -> int: ...

    def sizes(self) -> NDArray[np.int64]:
        """Bytes of each, int64[num_samples]."""

    def buffers(self) -> Iterator[bytes | memoryview]:
        """All of their bytes, in buffers of about a megabyte: a call for each sample would hold the lock."""

    def each(self) -> Iterable[bytes | memoryview]:
        """One by one."""

    def release(self) -> None:
        """Give the memory back; they are not asked for again."""


class SampleList(list[bytes]):
    """Samples that are bytes."""

    def sizes(self) -> NDArray[np.int64]:
        return np.fromiter(map(len, self), np.int64, len(self))

    def buffers(self) -> Iterator[bytes | memoryview]:
        return in_blocks(self)

    def each(self) -> Iterable[bytes | memoryview]:
        return self

    def release(self) -> None:
        self.clear()


class BlockPool:
    """Blocks of memory that are used again, by any thread.

    Args:
        shard_nbytes: size of a shard; a block is no more than a quarter of that, 4 KiB to 16 MiB.
    """

    def __init__(self, shard_nbytes: int) -> None:
        self.block_nbytes = max(1 << 12, min(_LARGEST_BLOCK, shard_nbytes // 4))
        self._free: list[memoryview] = []

    def take(self) -> memoryview:
        """A block; what it holds is old."""
        try:
            return self._free.pop()
        except IndexError:
            return np.empty(self.block_nbytes, np.uint8).data

    def give_back(self, blocks: Sequence[memoryview]) -> None:
        """Take blocks back that nobody uses any more."""
        room = _KEPT_NBYTES // self.block_nbytes - len(self._free)
        self._free += blocks[: max(0, room)]

    def clear(self) -> None:
        """Let go of all memory."""
        self._free = []


class SampleMemory:
    """Samples that come in parts, laid one after another into blocks."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._block_nbytes = pool.block_nbytes
        self._blocks: list[memoryview] = []
        self._sizes: list[int] = []
        self._last = memoryview(bytearray())
        self._begin = self._block_nbytes  # of the free part of the last block

    def __len__(self) -> int:
        return len(self._sizes)

    def append(self, parts: tuple[bytes, ...]) -> None:
        """Add a sample."""
        last, begin = self._last, self._begin
        nbytes = 0
        for part in parts:
            nbytes += len(part)
            end = begin + len(part)
            if end > self._block_nbytes:
                begin = self._lay_across(part, begin)
                last = self._last
            else:
                last[begin:end] = part
                begin = end
        self._begin = begin
        self._sizes.append(nbytes)

    def _lay_across(self, part: bytes, begin: int) -> int:
        """Lay a part that reaches into further blocks; gives the end of it in the last one."""
        rest = memoryview(part)
        while len(rest):
            if begin == self._block_nbytes:
                self._last, begin = self._pool.take(), 0
                self._blocks.append(self._last)
            count = min(len(rest), self._block_nbytes - begin)
            self._last[begin : begin + count] = rest[:count]
            rest, begin = rest[count:], begin + count
        return begin

    def sizes(self) -> NDArray[np.int64]:
        return np.array(self._sizes, np.int64)

    def buffers(self) -> Iterator[bytes | memoryview]:
        yield from self._blocks[:-1]
        if self._blocks:
            yield self._blocks[-1][: self._begin]

    def each(self) -> Iterator[bytes | memoryview]:
        begin = 0
        for nbytes in self._sizes:
            pieces = []
            end = begin + nbytes
            while begin < end:
                number, at = divmod(begin, self._block_nbytes)
                count = min(end - begin, self._block_nbytes - at)
                pieces.append(self._blocks[number][at : at + count])
                begin += count
            yield pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def release(self) -> None:
        self._pool.give_back(self._blocks)
        self._blocks, self._sizes = [], []
        self._last, self._begin = memoryview(bytearray()), self._block_nbytes


def holds_large_values(schema: Schema) -> bool:
    """Whether samples have columns of files, arrays or binary, as against numbers, text and JSON alone."""
    return any(
        size is None and encoding.partition(":")[0] in _LARGE
        for encoding, size in zip(schema.encodings, schema.sizes, strict=True)
    )


def in_blocks(buffers: Sequence[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """Join small buffers into blocks of about 1 MiB, one at a time: a call per sample would hold the GIL."""
    step = max(1, len(buffers) * _BLOCK_NBYTES // max(1, sum(map(len, buffers))))
    for begin in range(0, len(buffers), step):
        yield b"".join(buffers[begin : begin + step])

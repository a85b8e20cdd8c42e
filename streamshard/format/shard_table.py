"""The shards of an index as columns: a few arrays for all, in place of some objects for each.

What many shards have in common (columns, compression, names of hashes) is a *kind*, kept once. What differs are
numbers, in arrays, and strings (names and hash values), in one text with the places where each begins.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from streamshard.errors import FormatError
from streamshard.format.entries import FileInfo, ShardInfo, is_safe_path
from streamshard.format.schema import Schema

NO_FILE = -1
"""The size of a compressed file that there is not."""
_AT_ONCE = 1 << 16
UTF8 = ("utf-8", "surrogatepass")
"""How strings are encoded: JSON can name a lone surrogate."""


class Kind(NamedTuple):
    """What shards have in common.

    Attributes:
        schema, compression, hashes, size_limit: as in ``ShardInfo``.
        raw_hashes: names of the hashes that the raw file has.
        compressed_hashes: names of those that the compressed file has; None where there is no such file.
    """

    schema: Schema
    compression: str | None
    hashes: tuple[str, ...]
    size_limit: int | None
    raw_hashes: tuple[str, ...]
    compressed_hashes: tuple[str, ...] | None

    @classmethod
    def of(cls, info: ShardInfo) -> Kind:
        """Give the kind of a shard."""
        return cls(
            info.schema,
            info.compression,
            info.hashes,
            info.size_limit,
            tuple(info.raw.hashes),
            None if info.compressed is None else tuple(info.compressed.hashes),
        )

    @property
    def num_strings(self) -> int:
        """Strings of each shard: the raw file's name and hashes, then those of the compressed file."""
        compressed = 0 if self.compressed_hashes is None else 1 + len(self.compressed_hashes)
        return 1 + len(self.raw_hashes) + compressed

    @property
    def stored_name(self) -> int:
        """Which of them names the file that is there: the compressed one if there is one, else the raw one."""
        return 0 if self.compressed_hashes is None else 1 + len(self.raw_hashes)


@dataclass(frozen=True, eq=False)
class ShardTable:
    """All shards of an index; S shards, T strings in a text of M bytes. Arrays are not to be changed.

    Attributes:
        kinds: what shards have in common.
        kind: number of each shard's kind, int32, shape (S,).
        num_samples: int64, shape (S,).
        begins: number of each shard's first sample, then of all samples; int64, shape (S + 1,).
        raw_nbytes: size of each raw file, int64, shape (S,).
        compressed_nbytes: size of each compressed file, -1 where there is none; int64, shape (S,).
        first_string: number of each shard's first string, int64, shape (S,).
        string_begins: where each string begins in ``text``, then its length; int64, shape (T + 1,).
        text: all strings, UTF-8; uint8, shape (M,).
    """

    kinds: tuple[Kind, ...]
    kind: NDArray[np.int32]
    num_samples: NDArray[np.int64]
    begins: NDArray[np.int64]
    raw_nbytes: NDArray[np.int64]
    compressed_nbytes: NDArray[np.int64]
    first_string: NDArray[np.int64]
    string_begins: NDArray[np.int64]
    text: NDArray[np.uint8]

    @property
    def num_shards(self) -> int:
        """S."""
        return int(self.kind.size)

    def info(self, shard: int) -> ShardInfo:
        """Make the entry of shard ``shard`` (0 <= shard < S).

        Raises:
            FormatError: the table was damaged.
        """
        kind = self.kinds[self.kind.item(shard)]
        first = self.first_string.item(shard)
        strings = self._strings(first, first + kind.num_strings)
        raw = _file(strings, self.raw_nbytes.item(shard), kind.raw_hashes)
        compressed = None
        if kind.compressed_hashes is not None:
            rest = strings[1 + len(kind.raw_hashes) :]
            compressed = _file(rest, self.compressed_nbytes.item(shard), kind.compressed_hashes)
        return ShardInfo(
            kind.schema,
            kind.compression,
            kind.hashes,
            raw,
            compressed,
            self.num_samples.item(shard),
            kind.size_limit,
        )

    def first_of_kinds(self) -> list[int]:
        """Give the first shard of each kind that occurs, in ascending order."""
        if len(self.kinds) == 1:
            return [0][: self.num_shards]
        return sorted(np.unique(self.kind, return_index=True)[1].tolist())

    def counts_of_kinds(self) -> list[tuple[Kind, int]]:
        """Give each kind that occurs with its number of shards, in the order of their first shards."""
        if len(self.kinds) == 1:
            return [(self.kinds[0], self.num_shards)][: self.num_shards]
        counts = np.bincount(self.kind, minlength=len(self.kinds))
        numbers = self.kind[self.first_of_kinds()].tolist()
        return [(self.kinds[number], int(counts[number])) for number in numbers]

    def strings(self, offsets: Sequence[int]) -> Iterator[bytes]:
        """Give one string of each shard, as UTF-8: of a shard of kind k, that ``offsets[k]`` behind its first."""
        ahead = np.array([*offsets, 0], dtype=np.int64)
        text = self.text.data
        for begin in range(0, self.num_shards, _AT_ONCE):
            here = slice(begin, begin + _AT_ONCE)
            numbers = self.first_string[here] + ahead[self.kind[here]]
            bounds = zip(
                self.string_begins[numbers].tolist(), self.string_begins[numbers + 1].tolist(), strict=True
            )
            for low, high in bounds:
                yield bytes(text[low:high])

    def basenames(self) -> Iterator[str]:
        """Name the raw file of each shard, then the compressed file of each shard that has one."""
        yield from self.raw_basenames()
        for name, nbytes in zip(self.stored_basenames(), self.compressed_nbytes, strict=True):
            if nbytes != NO_FILE:
                yield name

    def raw_basenames(self) -> Iterator[str]:
        """Name the raw file of each shard."""
        return (name.decode(*UTF8) for name in self.strings([0] * len(self.kinds)))

    def raw_hashes(self, algorithm: str) -> Iterator[bytes]:
        """Give the hash of each raw file in lower case, some shards' at once, joined.

        Every kind of shard has the algorithm. What is not ASCII, and so no hash, reads ``?``.
        """
        ahead = np.array([1 + kind.raw_hashes.index(algorithm) for kind in self.kinds] or [0], dtype=np.int64)
        for begin in range(0, self.num_shards, _AT_ONCE):
            here = slice(begin, begin + _AT_ONCE)
            numbers = self.first_string[here] + ahead[self.kind[here]]
            begins, ends = self.string_begins[numbers], self.string_begins[numbers + 1]
            length = int(ends[0] - begins[0])
            if (ends - begins == length).all():
                values = self.text[begins[:, None] + np.arange(length)]
                if (values < 128).all():
                    yield values.tobytes().lower()
                    continue
            for low, high in zip(begins.tolist(), ends.tolist(), strict=True):
                value = self.text[low:high].tobytes().decode(*UTF8)
                yield value.lower().encode("ascii", "replace")

    def stored_basenames(self) -> Iterator[str]:
        """Name the file of each shard that is there: the compressed one if there is one, else the raw one."""
        return (name.decode(*UTF8) for name in self.stored_names())

    def stored_names(self) -> Iterator[bytes]:
        """The same as UTF-8."""
        return self.strings([kind.stored_name for kind in self.kinds])

    def _strings(self, first: int, last: int) -> list[str]:
        bounds = self.string_begins[first : last + 1].tolist()
        here = self.text[bounds[0] : bounds[-1]].tobytes()
        try:
            return [
                here[begin - bounds[0] : end - bounds[0]].decode(*UTF8)
                for begin, end in itertools.pairwise(bounds)
            ]
        except UnicodeDecodeError as error:
            raise FormatError(f"a string in the table of shards is no UTF-8 ({error})") from error


def _file(strings: list[str], nbytes: int, hashes: tuple[str, ...]) -> FileInfo:
    basename = strings[0]
    if not is_safe_path(basename):  # a table may come from a file
        raise FormatError(f"the table of shards names a file {basename!r:.120} outside of its directory")
    return FileInfo(basename, nbytes, dict(zip(hashes, strings[1:], strict=False)))


class Shards(Sequence[ShardInfo]):
    """The entries of a table, made when asked for. Equal to any sequence of equal entries."""

    def __init__(self, table: ShardTable) -> None:
        self._table = table

    def __len__(self) -> int:
        return self._table.num_shards

    @overload
    def __getitem__(self, at: int) -> ShardInfo: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[ShardInfo, ...]: ...

    def __getitem__(self, at: int | slice) -> ShardInfo | tuple[ShardInfo, ...]:
        """Return an entry, or a tuple of entries; IndexError beyond the last one."""
        numbers = range(len(self))[at]
        if isinstance(numbers, range):
            return tuple(map(self._table.info, numbers))
        return self._table.info(numbers)

    def __iter__(self) -> Iterator[ShardInfo]:
        return map(self._table.info, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (tuple, list, Shards)):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment] # equal to lists, which have none

    def __repr__(self) -> str:
        return f"<{len(self):,} shards>"


def first_strings(kinds: Sequence[Kind], kind: NDArray[np.int32]) -> NDArray[np.int64]:
    """Give the number of each shard's first string, shape (S,)."""
    counts = np.array([each.num_strings for each in kinds] or [0], dtype=np.int64)[kind]
    return np.cumsum(counts) - counts

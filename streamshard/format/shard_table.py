"""The shards of an index as columns: a few arrays for all, in place of some objects for each.

What many shards have in common (columns, compression, names of hashes) is a *kind*, kept once. What differs are
numbers, in arrays, and strings (names and hash values), in one text with the places where each begins.
"""

from __future__ import annotations

import itertools
import operator
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from streamshard.errors import FormatError
from streamshard.format.entries import FileInfo, ShardInfo, is_safe_path
from streamshard.format.schema import Schema

_NO_FILE = -1
_AT_ONCE = 1 << 16
_UTF8 = ("utf-8", "surrogatepass")  # JSON can name a lone surrogate


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
            if nbytes != _NO_FILE:
                yield name

    def raw_basenames(self) -> Iterator[str]:
        """Name the raw file of each shard."""
        return (name.decode(*_UTF8) for name in self.strings([0] * len(self.kinds)))

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
                value = self.text[low:high].tobytes().decode(*_UTF8)
                yield value.lower().encode("ascii", "replace")

    def stored_basenames(self) -> Iterator[str]:
        """Name the file of each shard that is there: the compressed one if there is one, else the raw one."""
        return (name.decode(*_UTF8) for name in self.stored_names())

    def stored_names(self) -> Iterator[bytes]:
        """The same as UTF-8."""
        return self.strings([kind.stored_name for kind in self.kinds])

    def _strings(self, first: int, last: int) -> list[str]:
        bounds = self.string_begins[first : last + 1].tolist()
        here = self.text[bounds[0] : bounds[-1]].tobytes()
        try:
            return [
                here[begin - bounds[0] : end - bounds[0]].decode(*_UTF8)
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


class TableBuilder:
    """Collects shards, one by one or many alike at once."""

    def __init__(self) -> None:
        self._kinds: dict[Kind, int] = {}
        self._kind = array("i")
        self._num_samples = array("q")
        self._raw_nbytes = array("q")
        self._compressed_nbytes = array("q")
        self._lengths = array("q")
        self._text = bytearray()
        # Name of the last shard's file; and the shards whose name is not above that of the one before.
        self._last: str | None = None
        self._steps_back: list[int] = []

    @property
    def num_shards(self) -> int:
        """Shards so far."""
        return len(self._kind)

    def names_ascend(self, begin: int, end: int) -> bool:
        """Whether each of the shards [begin, end) has a file whose name is above the one before: no two are equal."""
        return bisect_right(self._steps_back, begin) == bisect_left(self._steps_back, end)

    def add(self, info: ShardInfo) -> None:
        """Append one shard."""
        kind = Kind.of(info)
        self._name([info.stored.basename])
        self._kind.append(self._kinds.setdefault(kind, len(self._kinds)))
        self._num_samples.append(info.num_samples)
        self._raw_nbytes.append(info.raw.nbytes)
        strings = [info.raw.basename, *info.raw.hashes.values()]
        if info.compressed is None:
            self._compressed_nbytes.append(_NO_FILE)
        else:
            self._compressed_nbytes.append(info.compressed.nbytes)
            strings += [info.compressed.basename, *info.compressed.hashes.values()]
        for string in strings:
            encoded = string.encode(*_UTF8)
            self._lengths.append(len(encoded))
            self._text += encoded

    def add_alike(
        self,
        kind: Kind,
        num_samples: Sequence[int],
        raw_nbytes: Sequence[int],
        compressed_nbytes: Iterable[int] | None,
        strings: Sequence[str],
    ) -> None:
        """Append shards of one kind, their strings (ASCII) one shard after another."""
        number = self._kinds.setdefault(kind, len(self._kinds))
        self._name(strings[kind.stored_name :: kind.num_strings])
        self._kind.extend(array("i", [number]) * len(num_samples))
        self._num_samples.extend(num_samples)
        self._raw_nbytes.extend(raw_nbytes)
        if compressed_nbytes is None:
            self._compressed_nbytes.extend(array("q", [_NO_FILE]) * len(num_samples))
        else:
            self._compressed_nbytes.extend(compressed_nbytes)
        self._lengths.extend(map(len, strings))
        self._text += "".join(strings).encode("ascii")

    def _name(self, names: Sequence[str]) -> None:
        """Note where the names of the next shards' files do not ascend; before these are counted."""
        begin, last = len(self._kind), self._last
        if last is None or names[0] <= last:
            self._steps_back.append(begin)
        if any(map(operator.ge, names, itertools.islice(names, 1, None))):
            pairs = enumerate(itertools.pairwise(names), begin + 1)
            self._steps_back += [number for number, (before, name) in pairs if name <= before]
        self._last = names[-1]

    def shorten(self, num_shards: int) -> None:
        """Take back all shards but the first ones."""
        kinds = list(self._kinds)
        strings = sum(kinds[kind].num_strings for kind in self._kind[num_shards:])
        kept = len(self._lengths) - strings
        text = sum(self._lengths[kept:])
        for column in (self._kind, self._num_samples, self._raw_nbytes, self._compressed_nbytes):
            del column[num_shards:]
        self._last = None
        del self._steps_back[bisect_left(self._steps_back, num_shards) :]
        del self._lengths[kept:]
        del self._text[len(self._text) - text :]

    def table(self) -> ShardTable:
        """Give the table of all shards added."""
        return self.tables([0, self.num_shards])[0]

    def tables(self, ends: Sequence[int]) -> list[ShardTable]:
        """Give a table for each run of shards [ends[i], ends[i + 1]), from 0 to all that were added."""
        whole = self._whole()
        if len(ends) == 2:
            return [whole]
        strings = np.append(whole.first_string, whole.string_begins.size - 1)[list(ends)]
        first_string = _fixed(whole.first_string - np.repeat(strings[:-1], np.diff(ends)))
        of_strings = strings.tolist()
        texts = whole.string_begins[strings].tolist()
        begins = _runs_from_zero(whole.begins, ends)
        string_begins = _runs_from_zero(whole.string_begins, of_strings)
        tables = []
        for run, (begin, end) in enumerate(itertools.pairwise(ends)):
            here = slice(begin, end)
            kinds, kind = whole.kinds, whole.kind[here]
            if len(kinds) > 1:
                met, numbers = np.unique(kind, return_inverse=True)
                kinds, kind = (
                    tuple(kinds[number] for number in met.tolist()),
                    _fixed(numbers.astype(np.int32)),
                )
            tables.append(
                ShardTable(
                    kinds=kinds,
                    kind=kind,
                    num_samples=whole.num_samples[here],
                    begins=begins[run],
                    raw_nbytes=whole.raw_nbytes[here],
                    compressed_nbytes=whole.compressed_nbytes[here],
                    first_string=first_string[here],
                    string_begins=string_begins[run],
                    text=whole.text[texts[run] : texts[run + 1]],
                )
            )
        return tables

    def _whole(self) -> ShardTable:
        kinds = tuple(self._kinds)
        kind = np.frombuffer(self._kind, dtype=np.int32)
        num_samples = np.frombuffer(self._num_samples, dtype=np.int64)
        return ShardTable(
            kinds=kinds,
            kind=_fixed(kind),
            num_samples=_fixed(num_samples),
            begins=_fixed(ends_from_zero(num_samples)),
            raw_nbytes=_fixed(np.frombuffer(self._raw_nbytes, dtype=np.int64)),
            compressed_nbytes=_fixed(np.frombuffer(self._compressed_nbytes, dtype=np.int64)),
            first_string=_fixed(first_strings(kinds, kind)),
            string_begins=_fixed(ends_from_zero(np.frombuffer(self._lengths, dtype=np.int64))),
            text=_fixed(np.frombuffer(self._text, dtype=np.uint8)),
        )


def ends_from_zero(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Give 0 and the running sums of some counts, shape (n + 1,)."""
    ends = np.zeros(counts.size + 1, dtype=np.int64)
    np.cumsum(counts, out=ends[1:])
    return ends


def _runs_from_zero(bounds: NDArray[np.int64], ends: Sequence[int]) -> list[NDArray[np.int64]]:
    """Give ``bounds[a : b + 1] - bounds[a]`` of each run [a, b) between two ``ends``."""
    counts = np.diff(ends) + 1
    # A border of two runs is in both of them.
    places = np.arange(bounds.size + len(counts) - 1) - np.repeat(np.arange(len(counts)), counts)
    found = _fixed(bounds[places] - np.repeat(bounds[list(ends[:-1])], counts))
    return [found[a + run : b + run + 1] for run, (a, b) in enumerate(itertools.pairwise(ends))]


def first_strings(kinds: Sequence[Kind], kind: NDArray[np.int32]) -> NDArray[np.int64]:
    """Give the number of each shard's first string, shape (S,)."""
    counts = np.array([each.num_strings for each in kinds] or [0], dtype=np.int64)[kind]
    return np.cumsum(counts) - counts


def _fixed(values: NDArray[Any]) -> NDArray[Any]:
    values.flags.writeable = False
    return values

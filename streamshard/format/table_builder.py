"""Making the tables of shards, entry by entry or many alike at once; those of several indexes share their arrays."""

from __future__ import annotations

import itertools
import operator
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamshard.format.entries import ShardInfo
from streamshard.format.shard_table import NO_FILE, UTF8, Kind, ShardTable, first_strings


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
            self._compressed_nbytes.append(NO_FILE)
        else:
            self._compressed_nbytes.append(info.compressed.nbytes)
            strings += [info.compressed.basename, *info.compressed.hashes.values()]
        for string in strings:
            encoded = string.encode(*UTF8)
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
            self._compressed_nbytes.extend(array("q", [NO_FILE]) * len(num_samples))
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


def _fixed(values: NDArray[Any]) -> NDArray[Any]:
    values.flags.writeable = False
    return values

"""``index.json``: the list of shards with their columns, sizes and hashes.

Keys and their order are MDS's. What MDS has no room for stands under one more top-level key,
``"streamshard"``, which mosaicml-streaming reads past.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamshard.errors import FormatError
from streamshard.format.costs import COSTS_KEY, costs_entry, parse_costs
from streamshard.format.entries import (
    EntryParser,
    FileInfo,
    ShardInfo,
    is_safe_path,
    shard_entry,
    unique_keys,
)
from streamshard.format.index_scan import Scanned, scan_indexes
from streamshard.format.sample_hashes import (
    SAMPLE_HASHES_KEY,
    SampleHashes,
    parse_sample_hashes,
    side_basename,
)
from streamshard.format.schema import Schema
from streamshard.format.shard_table import Shards, ShardTable
from streamshard.format.table_builder import TableBuilder

__all__ = [
    "EXTRA_KEY",
    "INDEX_BASENAME",
    "MAX_INDEX_NBYTES",
    "FileInfo",
    "Index",
    "ShardInfo",
    "index_text",
    "is_safe_path",
    "parse_index",
    "shard_entry",
    "side_basenames",
]

INDEX_BASENAME = "index.json"
EXTRA_KEY = "streamshard"
MAX_INDEX_NBYTES = 1 << 30
"""A million shards of twenty columns take some 1,000 MB of JSON; a file beyond this is no index."""


class Index:
    """The shards of a dataset in order. Sample ids count from 0 over all shards.

    Attributes:
        table: the shards as arrays.
        samples_per_shard: int64[S].
        begins: int64[S + 1]; shard s holds the sample ids [begins[s], begins[s + 1]).
        costs: name -> sum of each shard, int64[S]: what the samples cost in units that the writer has named.
        sample_hashes: what vouches for single samples; None where the dataset has none.

    Raises:
        FormatError: costs or hashes of samples in ``extra`` that are malformed or are those of other shards.
    """

    def __init__(self, shards: Sequence[ShardInfo], extra: Mapping[str, Any] | None = None) -> None:
        builder = TableBuilder()
        for shard in shards:
            builder.add(shard)
        self._hold(builder.table(), extra)

    @classmethod
    def of_table(
        cls,
        table: ShardTable,
        extra: Mapping[str, Any] | None = None,
        costs: Mapping[str, NDArray[np.int64]] | None = None,
        sample_hashes: SampleHashes | None = None,
    ) -> Index:
        """Make the index of shards that stand in a table.

        ``extra`` may hold costs and hashes of samples, or they come as arrays.
        """
        index = cls.__new__(cls)
        index._hold(table, extra, costs, sample_hashes)
        return index

    def _hold(
        self,
        table: ShardTable,
        extra: Mapping[str, Any] | None,
        costs: Mapping[str, NDArray[np.int64]] | None = None,
        sample_hashes: SampleHashes | None = None,
    ) -> None:
        self.table = table
        self.samples_per_shard: NDArray[np.int64] = table.num_samples
        self.begins: NDArray[np.int64] = table.begins
        # Lists of a number for each shard are not kept beside the arrays.
        self._facts = dict(extra or {})
        stated = self._facts.pop(COSTS_KEY, {})
        self.costs = parse_costs(stated, table.num_shards) if costs is None else dict(costs)
        vouched = parse_sample_hashes(self._facts.pop(SAMPLE_HASHES_KEY, None), table.num_shards)
        self.sample_hashes = vouched if sample_hashes is None else sample_hashes

    def __reduce__(self) -> tuple[Any, ...]:
        return Index.of_table, (self.table, self._facts, self.costs, self.sample_hashes)

    @property
    def shards(self) -> Shards:
        """One entry per shard, made when asked for."""
        return Shards(self.table)

    @property
    def facts(self) -> dict[str, Any]:
        """What stood under the key ``"streamshard"``, without the costs and the hashes of samples."""
        return dict(self._facts)

    @property
    def extra(self) -> dict[str, Any]:
        """What stood under the key ``"streamshard"``, made anew each time."""
        extra = dict(self._facts)
        if self.costs:
            extra[COSTS_KEY] = costs_entry({name: sums.tolist() for name, sums in self.costs.items()})
        if self.sample_hashes is not None:
            extra[SAMPLE_HASHES_KEY] = self.sample_hashes.entry()
        return extra

    @property
    def num_samples(self) -> int:
        """Samples in all shards."""
        return int(self.begins[-1])

    @property
    def num_shards(self) -> int:
        """Number of shards, empty ones of other writers included."""
        return self.table.num_shards

    @property
    def schemas(self) -> tuple[Schema, ...]:
        """The different schemas of the shards, in the order of the first shard that has each."""
        return tuple(dict.fromkeys(kind.schema for kind, _ in self.table.counts_of_kinds()))

    @property
    def is_compressed(self) -> bool:
        """Whether any shard has a compressed file."""
        return any(kind.compressed_hashes is not None for kind, _ in self.table.counts_of_kinds())

    def locate(self, sample_ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Give shard and row in shard of each sample id.

        Raises:
            IndexError: an id outside of [0, num_samples).
        """
        ids = np.asarray(sample_ids, np.int64)
        if ids.size and (int(ids.min()) < 0 or int(ids.max()) >= self.num_samples):
            raise IndexError(
                f"sample ids {ids.min()} to {ids.max()} of a dataset of {self.num_samples} samples"
            )
        # side="right" passes over empty shards, which begin where the next one does.
        shards = np.searchsorted(self.begins, ids, side="right").astype(np.int64) - 1
        return shards, ids - self.begins[shards]


def side_basenames(index: Index) -> Iterator[str]:
    """Name the side files with hashes of samples, one for each shard; none where the dataset has none."""
    if index.sample_hashes is not None:
        yield from map(side_basename, index.table.raw_basenames())


def index_text(shards: Sequence[ShardInfo], extra: Mapping[str, Any] | None = None) -> bytes:
    """Write an index; without ``extra`` byte for byte as mosaicml-streaming does."""
    document: dict[str, Any] = {"shards": [shard_entry(shard) for shard in shards], "version": 2}
    if extra:
        document[EXTRA_KEY] = dict(extra)
    return json.dumps(document, sort_keys=True).encode()


def parse_index(text: bytes, *, source: str) -> Index:
    """Parse and check an index.

    Equal columns share one :class:`Schema`. A shard may have columns of an unknown encoding: reading those
    is what fails. Keys that MDS does not know are passed over.

    Raises:
        FormatError: not an index of MDS version 2; the message names ``source``, the shard and the key.
    """
    (index,) = parse_indexes([text], [source])
    return index


def parse_indexes(texts: Sequence[bytes], sources: Sequence[str]) -> list[Index]:
    """Parse and check several indexes, which costs less than one by one. Raises as ``parse_index``, for the first."""
    return [
        _checked(text, source, scanned)
        for text, source, scanned in zip(texts, sources, scan_indexes(texts), strict=True)
    ]


def _checked(text: bytes, source: str, scanned: Scanned | None) -> Index:
    document: Any
    if scanned is None:
        document = _parsed_as_a_whole(text, source)
        if not isinstance(document, dict) or not isinstance(document.get("shards"), list):
            raise FormatError(f"{source}: expected an object with a list 'shards'")
    else:
        document = scanned.rest
    if document.get("version") != 2:
        raise FormatError(f"{source}: version {document.get('version')!r:.40}, expected 2")
    extra = document.get(EXTRA_KEY, {})
    if not isinstance(extra, dict):
        raise FormatError(f"{source}: {EXTRA_KEY!r} is a {type(extra).__name__}, expected an object")
    table = _table_of(document["shards"], source) if scanned is None else scanned.table
    if scanned is None or not scanned.names_ascend:
        _refuse_equal_names(table, source)
    try:
        return Index.of_table(table, extra)
    except FormatError as error:
        raise FormatError(f"{source}: {error}") from error


def _parsed_as_a_whole(text: bytes, source: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=unique_keys)
    except FormatError as error:
        raise FormatError(f"{source}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{source}: not JSON ({error}); {len(text)} bytes found") from error


def _table_of(entries: list[Any], source: str) -> ShardTable:
    parser, builder = EntryParser(), TableBuilder()
    for place, entry in enumerate(entries):
        try:
            builder.add(parser.entry(entry))
        except FormatError as error:
            raise FormatError(f"{source}: shard {place}: {error}") from error
    return builder.table()


def _refuse_equal_names(table: ShardTable, source: str) -> None:
    # Eight bytes a name in place of a set of all names; equal names have equal hashes.
    marks = np.sort(np.fromiter(map(hash, table.stored_names()), np.int64, table.num_shards))
    if not (marks[1:] == marks[:-1]).any():
        return
    for name, count in Counter(table.stored_basenames()).items():
        if count > 1:
            raise FormatError(f"{source}: two shards have the file {name!r}")

"""``index.json``: the list of shards with their columns, sizes and hashes.

Keys and their order are MDS's. What MDS has no room for stands under one more top-level key,
``"streamshard"``, which mosaicml-streaming reads past.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamshard.errors import FormatError
from streamshard.format.compression import parse_compression
from streamshard.format.costs import COSTS_KEY, parse_costs
from streamshard.format.encodings import parse_encoding
from streamshard.format.schema import Schema

INDEX_BASENAME = "index.json"
EXTRA_KEY = "streamshard"


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One file: path below the index's directory, size in bytes, hash name -> hex digest of all of it."""

    basename: str
    nbytes: int
    hashes: dict[str, str]


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """One shard's entry. ``raw`` describes the uncompressed file even where only ``compressed`` is stored."""

    schema: Schema
    compression: str | None
    hashes: tuple[str, ...]
    raw: FileInfo
    compressed: FileInfo | None
    num_samples: int
    size_limit: int | None

    @property
    def stored(self) -> FileInfo:
        """The file that is there: the compressed one if there is one, else the raw one."""
        return self.compressed or self.raw


class Index:
    """The shards of a dataset in order. Sample ids count from 0 over all shards.

    Attributes:
        shards: one entry per shard.
        extra: what stood under the key ``"streamshard"``.
        samples_per_shard: int64[S].
        begins: int64[S + 1]; shard s holds the sample ids [begins[s], begins[s + 1]).
        costs: name -> sum of each shard, int64[S]: what the samples cost in units that the writer has named.

    Raises:
        FormatError: costs in ``extra`` that are malformed or are those of other shards.
    """

    def __init__(self, shards: Sequence[ShardInfo], extra: Mapping[str, Any] | None = None) -> None:
        self.shards = tuple(shards)
        self.extra = dict(extra or {})
        self.costs = parse_costs(self.extra.get(COSTS_KEY, {}), len(self.shards))
        self.samples_per_shard: NDArray[np.int64] = np.fromiter(
            (shard.num_samples for shard in self.shards), np.int64, len(self.shards)
        )
        self.begins: NDArray[np.int64] = np.zeros(len(self.shards) + 1, np.int64)
        np.cumsum(self.samples_per_shard, out=self.begins[1:])

    @property
    def num_samples(self) -> int:
        """Samples in all shards."""
        return int(self.begins[-1])

    @property
    def num_shards(self) -> int:
        """Number of shards, empty ones of other writers included."""
        return len(self.shards)

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


def index_text(shards: Sequence[ShardInfo], extra: Mapping[str, Any] | None = None) -> bytes:
    """Write an index; without ``extra`` byte for byte as mosaicml-streaming does."""
    document: dict[str, Any] = {"shards": [shard_entry(shard) for shard in shards], "version": 2}
    if extra:
        document[EXTRA_KEY] = dict(extra)
    return json.dumps(document, sort_keys=True).encode()


def shard_entry(shard: ShardInfo) -> dict[str, Any]:
    """Give a shard's entry as the JSON object of the index."""
    return {
        "column_encodings": list(shard.schema.encodings),
        "column_names": list(shard.schema.names),
        "column_sizes": list(shard.schema.sizes),
        "compression": shard.compression,
        "format": "mds",
        "hashes": list(shard.hashes),
        "raw_data": _file_entry(shard.raw),
        "samples": shard.num_samples,
        "size_limit": shard.size_limit,
        "version": 2,
        "zip_data": None if shard.compressed is None else _file_entry(shard.compressed),
    }


def _file_entry(file: FileInfo) -> dict[str, Any]:
    return {"basename": file.basename, "bytes": file.nbytes, "hashes": file.hashes}


def parse_index(text: bytes, *, source: str) -> Index:
    """Parse and check an index.

    Equal columns share one :class:`Schema`. A shard may have columns of an unknown encoding: reading those
    is what fails. Keys that MDS does not know are passed over.

    Raises:
        FormatError: not an index of MDS version 2; the message names ``source``, the shard and the key.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{source}: not JSON ({error}); {len(text)} bytes found") from error
    if not isinstance(document, dict) or not isinstance(document.get("shards"), list):
        raise FormatError(f"{source}: expected an object with a list 'shards'")
    if document.get("version") != 2:
        raise FormatError(f"{source}: version {document.get('version')!r:.40}, expected 2")
    extra = document.get(EXTRA_KEY, {})
    if not isinstance(extra, dict):
        raise FormatError(f"{source}: {EXTRA_KEY!r} is a {type(extra).__name__}, expected an object")
    parse = _EntryParser()
    shards = []
    for place, entry in enumerate(document["shards"]):
        try:
            shards.append(parse.entry(entry))
        except FormatError as error:
            raise FormatError(f"{source}: shard {place}: {error}") from error
    names = {shard.stored.basename for shard in shards}
    if len(names) != len(shards):
        seen: set[str] = set()
        twice = next(n for n in (s.stored.basename for s in shards) if n in seen or seen.add(n))  # type: ignore[func-returns-value]
        raise FormatError(f"{source}: two shards have the file {twice!r}")
    try:
        return Index(shards, extra)
    except FormatError as error:
        raise FormatError(f"{source}: {error}") from error


class _EntryParser:
    """Parses entries, remembering what most of them have in common."""

    def __init__(self) -> None:
        self._schemas: dict[tuple[Any, ...], Schema] = {}
        self._compressions: dict[str, str] = {}
        self._hashes: dict[tuple[Any, ...], tuple[str, ...]] = {}

    def entry(self, entry: Any) -> ShardInfo:
        if not isinstance(entry, dict):
            raise FormatError(f"{entry!r:.80} is not an object")
        if entry.get("format") != "mds" or entry.get("version") != 2:
            raise FormatError(
                f"format {entry.get('format')!r:.40} version {entry.get('version')!r:.40}, expected "
                "'mds' version 2"
            )
        raw = _parse_file(entry.get("raw_data"), "raw_data")
        zipped = entry.get("zip_data")
        compressed = None if zipped is None else _parse_file(zipped, "zip_data")
        num_samples = _count(entry.get("samples"), "samples")
        if not 8 + 4 * num_samples <= raw.nbytes < 2**32:
            raise FormatError(
                f"raw_data has {raw.nbytes} bytes for {num_samples} samples; expected "
                f"{8 + 4 * num_samples} to 2**32 - 1"
            )
        size_limit = entry.get("size_limit")
        if isinstance(size_limit, bool) or not isinstance(size_limit, (int, str, type(None))):
            raise FormatError(f"size_limit is {size_limit!r:.40}, expected an integer or null")
        compression = self._compression(entry.get("compression"), zipped is not None)
        return ShardInfo(
            self._schema(entry),
            compression,
            self._hash_names(entry.get("hashes")),
            raw,
            compressed,
            num_samples,
            size_limit if isinstance(size_limit, int) else None,
        )

    def _schema(self, entry: dict[str, Any]) -> Schema:
        parts = []
        for key, kinds in (
            ("column_names", str),
            ("column_encodings", str),
            ("column_sizes", (int, type(None))),
        ):
            values = entry.get(key)
            if not isinstance(values, list) or not all(
                isinstance(v, kinds) and v is not True for v in values
            ):
                raise FormatError(f"{key} is {values!r:.80}, expected a list of one per column")
            parts.append(tuple(values))
        key3 = tuple(parts)
        schema = self._schemas.get(key3)
        if schema is None:
            schema = _checked_schema(*parts)
            self._schemas[key3] = schema
        return schema

    def _compression(self, name: Any, has_file: bool) -> str | None:
        if name is None and not has_file:
            return None
        known = self._compressions.get(name) if isinstance(name, str) else None
        if known is None:
            try:
                parsed = parse_compression(name)
            except ValueError as error:
                raise FormatError(str(error)) from error
            if parsed is None:
                raise FormatError(f"compression is {name!r}, although zip_data is given")
            known = self._compressions[parsed.name] = parsed.name
        return known

    def _hash_names(self, names: Any) -> tuple[str, ...]:
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise FormatError(f"hashes is {names!r:.80}, expected a list of names")
        found = tuple(names)
        return self._hashes.setdefault(found, found)


def _checked_schema(
    names: tuple[str, ...], encodings: tuple[str, ...], sizes: tuple[int | None, ...]
) -> Schema:
    schema = Schema(names, encodings, sizes)
    for name, encoding, size in zip(names, encodings, sizes, strict=True):
        if size is not None and not 0 < size < 2**32:
            raise FormatError(f"column {name!r} has size {size}, expected 1 to 2**32 - 1, or null")
        try:
            wanted = parse_encoding(encoding).size
        except FormatError:
            continue  # reported by name when the column is read
        if wanted != size:
            raise FormatError(f"column {name!r}: encoding {encoding!r:.80} has size {wanted}, found {size}")
    return schema


def _count(value: Any, key: str) -> int:
    if type(value) is not int or value < 0:
        raise FormatError(f"{key} is {value!r:.40}, expected a count")
    return value


def _parse_file(entry: Any, key: str) -> FileInfo:
    if not isinstance(entry, dict):
        raise FormatError(f"{key} is {entry!r:.80}, expected an object")
    basename = entry.get("basename")
    hashes = entry.get("hashes")
    if not isinstance(basename, str) or not is_safe_path(basename):
        raise FormatError(
            f"{key}.basename is {basename!r:.120}, expected a path below the index's directory, without '..'"
        )
    if not isinstance(hashes, dict) or not all(type(digest) is str for digest in hashes.values()):
        raise FormatError(f"{key}.hashes is {hashes!r:.80}, expected an object of name: hex digest")
    return FileInfo(basename, _count(entry.get("bytes"), f"{key}.bytes"), hashes)


def is_safe_path(path: str) -> bool:
    """Say whether a path from an index stays below its directory on every system."""
    if "\0" in path or "\\" in path or (path[1:2] == ":" and path[0].isalpha()):
        return False
    return all(part not in ("", ".", "..") for part in path.split("/"))

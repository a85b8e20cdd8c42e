"""One shard's entry in ``index.json``: what it holds, how it is written, and every check on reading it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from streamshard.errors import FormatError
from streamshard.format.compression import parse_compression
from streamshard.format.encodings import parse_encoding
from streamshard.format.schema import Schema

MOST_PATH_LENGTH = 4096
"""Most characters of a file's path in an index, as of a path on Linux."""
_SURROGATE = re.compile("[\ud800-\udfff]")  # JSON can name them, no file system can
MOST_NBYTES = (1 << 63) - 1
"""Most bytes that an entry may claim for a compressed file, so that sizes fit 64-bit arrays."""


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


class EntryParser:
    """Parses entries, remembering what most of them have in common."""

    def __init__(self) -> None:
        self._schemas: dict[tuple[Any, ...], Schema] = {}
        self._compressions: dict[str, str] = {}
        self._hashes: dict[tuple[Any, ...], tuple[str, ...]] = {}

    def entry(self, entry: Any) -> ShardInfo:
        """Check one entry of the list ``shards``. Raises FormatError saying what is wrong with it."""
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
        if compressed is not None and compressed.nbytes > MOST_NBYTES:
            raise FormatError(f"zip_data.bytes is {compressed.nbytes!r:.40}, expected less than 2**63")
        num_samples = _count(entry.get("samples"), "samples")
        check_counts(num_samples, raw.nbytes)
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


def check_counts(num_samples: int, raw_nbytes: int) -> None:
    """Raise FormatError for a raw file that could not have so many samples, or not be a shard."""
    if not 8 + 4 * num_samples <= raw_nbytes < 2**32:
        raise FormatError(
            f"raw_data has {raw_nbytes} bytes for {num_samples} samples; expected "
            f"{8 + 4 * num_samples} to 2**32 - 1"
        )


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


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a JSON object; for ``object_pairs_hook``.

    Raises:
        FormatError: a key that is there twice: readers differ in which one they take.
    """
    made = dict(pairs)
    if len(made) != len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise FormatError(f"the key {twice!r:.80} is there twice in one object")
    return made


def is_safe_path(path: str) -> bool:
    """Say whether a path from an index stays below its directory on every system."""
    if len(path) > MOST_PATH_LENGTH or "\0" in path or "\\" in path:
        return False
    if (path[1:2] == ":" and path[0].isalpha()) or _SURROGATE.search(path):
        return False
    return all(part not in ("", ".", "..") for part in path.split("/"))

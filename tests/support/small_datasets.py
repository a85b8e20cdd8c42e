"""Datasets written by the format floor alone, so that tests of reading do not depend on the writer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from streamshard.format.compression import parse_compression
from streamshard.format.hashing import hash_bytes
from streamshard.format.index import FileInfo, ShardInfo, index_text
from streamshard.format.schema import Schema
from streamshard.format.shard import config_text, pack_shard

COLUMNS = {"id": "str", "number": "int", "text": "str"}


def text_samples(count: int) -> list[dict[str, Any]]:
    """Samples for ``COLUMNS`` that can be told apart."""
    return [{"id": f"a{i}", "number": i, "text": f"text of {i} " * (1 + i % 3)} for i in range(count)]


def write_dataset(
    directory: Path,
    samples: Sequence[Mapping[str, Any]],
    columns: Mapping[str, str] = COLUMNS,
    *,
    samples_per_shard: int = 10,
    compression: str | None = None,
    hashes: Sequence[str] = ("xxh64",),
    keep_raw: bool = False,
    extra: Mapping[str, Any] | None = None,
) -> list[ShardInfo]:
    """Write shards and index.json; return the entries."""
    schema = Schema.from_columns(columns)
    encoded = [schema.encode_sample(sample) for sample in samples]
    shards = [
        write_shard(
            directory,
            number,
            schema,
            encoded[begin : begin + samples_per_shard],
            compression,
            hashes,
            keep_raw,
        )
        for number, begin in enumerate(range(0, len(encoded), samples_per_shard))
    ]
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "index.json").write_bytes(index_text(shards, extra))
    return shards


def write_shard(
    directory: Path,
    number: int,
    schema: Schema,
    encoded: Sequence[bytes],
    compression: str | None = None,
    hashes: Sequence[str] = ("xxh64",),
    keep_raw: bool = False,
) -> ShardInfo:
    """Write one shard from encoded samples and return its entry."""
    directory.mkdir(parents=True, exist_ok=True)
    config = config_text(schema, compression=compression, hashes=list(hashes), size_limit=1 << 26)
    raw = b"".join(pack_shard(encoded, config))
    name = f"shard.{number:05d}.mds"
    how = parse_compression(compression)
    compressed = None
    if how is not None:
        packed = how.compress(raw)
        (directory / (name + how.suffix)).write_bytes(packed)
        compressed = _describe(name + how.suffix, packed, hashes)
    if how is None or keep_raw:
        (directory / name).write_bytes(raw)
    return ShardInfo(
        schema, compression, tuple(hashes), _describe(name, raw, hashes), compressed, len(encoded), 1 << 26
    )


def edit_index(directory: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    """Apply ``change`` to the list of shard entries in index.json."""
    path = directory / "index.json"
    document = json.loads(path.read_text())
    change(document["shards"])
    path.write_text(json.dumps(document, sort_keys=True))


def _describe(name: str, payload: bytes, hashes: Sequence[str]) -> FileInfo:
    return FileInfo(name, len(payload), {algorithm: hash_bytes(algorithm, payload) for algorithm in hashes})

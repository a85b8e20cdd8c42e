"""Reads whole datasets with the format floor alone, so that tests of writing do not depend on the readers."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

from streamshard.format.compression import decompress_file, parse_compression
from streamshard.format.index import Index, ShardInfo, parse_index
from streamshard.format.shard import parse_header


def load_index(directory: Path) -> Index:
    return parse_index((directory / "index.json").read_bytes(), source=str(directory / "index.json"))


def raw_shard(directory: Path, shard: ShardInfo) -> bytes:
    content = (directory / shard.stored.basename).read_bytes()
    codec = parse_compression(shard.compression)
    if shard.compressed is None or codec is None:
        return content
    raw = io.BytesIO()
    decompress_file(io.BytesIO(content), raw, codec.algorithm, raw_nbytes=shard.raw.nbytes)
    return raw.getvalue()


def shard_samples(content: bytes, shard: ShardInfo, **options: Any) -> list[dict[str, Any]]:
    header = parse_header(lambda a, b: content[a:b], len(content), shard=shard.raw.basename, expected=shard)
    offsets = header.offsets.astype(np.int64)
    return shard.schema.decoder(**options).many(content, offsets[:-1], offsets[1:])


def load_samples(directory: Path, **options: Any) -> list[dict[str, Any]]:
    index = load_index(directory)
    return [
        sample
        for shard in index.shards
        for sample in shard_samples(raw_shard(directory, shard), shard, **options)
    ]


def files_of(directory: Path) -> dict[str, bytes]:
    """Every file below a directory, hidden ones too."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }

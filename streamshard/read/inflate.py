"""Compressed shard files to raw ones, never more than the index declares."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from streamshard.errors import FormatError, StorageError
from streamshard.format.compression import decompress_file, parse_compression
from streamshard.read.raw_file import open_regular

if TYPE_CHECKING:
    from streamshard.format.index import ShardInfo


def inflate_shard(source: Path, raw: BinaryIO, info: ShardInfo) -> None:
    """Decompress the compressed file of a shard into the open file ``raw``.

    Raises:
        BlobNotFoundError, AccessDeniedError, StorageError: ``source`` cannot be read or ``raw`` written.
        FormatError: ``source`` has another size than the index says, is not what its compression says, or
            does not give exactly the raw size in the index. At most that size is written.
        MissingDependencyError: the codec's package is not installed.
    """
    compression = parse_compression(info.compression)
    if compression is None or info.compressed is None:
        raise FormatError(f"shard {info.raw.basename!r}: the index names no compressed file for it")
    name = info.compressed.basename
    with os.fdopen(open_regular(source, shard=name), "rb") as compressed:
        nbytes = os.fstat(compressed.fileno()).st_size
        if nbytes != info.compressed.nbytes:
            raise FormatError(
                f"shard {name!r}: index says {info.compressed.nbytes:,} bytes, file {source} has {nbytes:,}; "
                "it is cut, or index and shard are of different datasets: copy the shard again or rewrite it"
            )
        try:
            decompress_file(compressed, raw, compression.algorithm, raw_nbytes=info.raw.nbytes)
            raw.flush()
        except FormatError as error:
            raise FormatError(f"shard {name!r} ({source}): {error}") from error
        except OSError as error:
            raise StorageError(
                f"shard {name!r}: cannot decompress {source}: {error.strerror or error}"
            ) from error

"""One shard from its samples: packed, hashed, compressed, published. The same bytes for every caller."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from streamshard.format.compression import parse_compression
from streamshard.format.hashing import hash_bytes, new_hash
from streamshard.format.index import FileInfo, ShardInfo
from streamshard.format.sample_hashes import side_basename, side_bytes
from streamshard.format.schema import Schema
from streamshard.format.shard import config_text, pack_shard
from streamshard.write.publish import publish_file
from streamshard.write.samples import in_blocks


def shard_basename(shard: int) -> str:
    """Give the file name of a raw shard by its number."""
    return f"shard.{shard:05}.mds"


def write_shard(
    directory: Path,
    basename: str,
    schema: Schema,
    samples: Sequence[bytes],
    *,
    compression: str | None,
    hashes: Sequence[str],
    size_limit: int | None,
) -> ShardInfo:
    """Publish one shard in ``directory`` and describe it as its entry in the index does.

    Args:
        basename: name of the raw file; a compressed shard gets its algorithm's suffix, and no raw file.
        samples: encoded samples, see :meth:`Schema.encode_sample`. Not copied unless compressed.
        compression: ``"zstd:3"`` and the like, or None.
        hashes: hash names, sorted.

    Raises:
        ShardTooLargeError: 4 GiB or more.
        StorageError: the file could not be written.
    """
    config = config_text(schema, compression=compression, hashes=hashes, size_limit=size_limit)
    return store_shard(
        directory,
        basename,
        schema,
        in_blocks(pack_shard(samples, config)),
        len(samples),
        compression=compression,
        hashes=hashes,
        size_limit=size_limit,
    )


def write_side_file(
    directory: Path, basename: str, samples: Iterable[bytes | memoryview], algorithm: str
) -> str:
    """Publish the hashes of a shard's samples beside it.

    Args:
        basename: name of the raw shard.
        samples: encoded samples.
        algorithm: name of the hash.

    Returns:
        The digest of the side file for the index, in hex.

    Raises:
        StorageError: the file could not be written.
    """
    return publish_side_file(directory, basename, side_bytes(algorithm, samples), algorithm)


def publish_side_file(directory: Path, basename: str, content: bytes, algorithm: str) -> str:
    """Publish a side file whose content is there; the rest is as for :func:`write_side_file`."""
    publish_file(directory, side_basename(basename), [content])
    return hash_bytes(algorithm, content)


def store_shard(
    directory: Path,
    basename: str,
    schema: Schema,
    content: Iterable[bytes | memoryview],
    num_samples: int,
    *,
    compression: str | None,
    hashes: Sequence[str],
    size_limit: int | None,
) -> ShardInfo:
    """Publish a shard whose raw bytes come in pieces; the rest is as for :func:`write_shard`.

    A piece is done with when the next one is asked for, so that its memory may be used again.
    """
    raw = _Described(basename, hashes)
    compressed = None
    codec = parse_compression(compression)
    if codec is None:
        publish_file(directory, basename, raw.passing(content))
    else:
        compressed = _Described(basename + codec.suffix, hashes)
        whole = bytearray()
        for buffer in raw.passing(content):
            whole += buffer
        packed = codec.compress(whole)
        publish_file(directory, compressed.basename, compressed.passing([packed]))
    return ShardInfo(
        schema,
        compression,
        tuple(hashes),
        raw.file(),
        compressed.file() if compressed is not None else None,
        num_samples,
        size_limit,
    )


class _Described:
    """What an index says of a file, gathered from the buffers that pass on their way to it."""

    def __init__(self, basename: str, hashes: Iterable[str]) -> None:
        self.basename = basename
        self._states = {name: new_hash(name) for name in hashes}
        self._nbytes = 0

    def passing(self, buffers: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        """Give the buffers on, one by one."""
        for buffer in buffers:
            for state in self._states.values():
                state.update(buffer)
            self._nbytes += len(buffer)
            yield buffer

    def file(self) -> FileInfo:
        """The entry of the file, once all of it has passed."""
        digests = {name: state.hexdigest() for name, state in self._states.items()}
        return FileInfo(self.basename, self._nbytes, digests)

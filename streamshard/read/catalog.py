"""From a dataset's place to its parsed index, and from an index entry to a file that the cache can fetch."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from streamshard.errors import BlobNotFoundError, ChecksumError
from streamshard.format.hashing import check_hash_name, hash_file, known_hashes
from streamshard.format.index import INDEX_BASENAME, parse_index
from streamshard.read.inflate import inflate_shard
from streamshard.read.keys import key_in
from streamshard.read.missing import explain_missing_index
from streamshard.read.sample_check import SideFile
from streamshard.read.shared_index import remote_index
from streamshard.read.tables import DIGEST_NBYTES, MAX_INDEX_NBYTES, known_index, node_index
from streamshard.storage.blob import Blob

if TYPE_CHECKING:
    from streamshard.format.index import FileInfo, Index, ShardInfo
    from streamshard.storage.store import Store

# One hash is enough to find damage, so the quickest of those in the index is computed; others come after
# these.
_QUICKEST_FIRST = ("xxh3_64", "xxh3_128", "xxh64", "xxh128", "xxh32", "blake2b", "sha1", "md5", "sha256")


def load_index(store: Store, *, split: str | None = None, tables: Path | None = None) -> tuple[Index, str]:
    """Read and check ``index.json`` and return it with the digest of its bytes (32 hex digits).

    Args:
        store: where the dataset is.
        split: sub-directory to look in.
        tables: cache directory in which the processes of this node share what one of them parsed, see
            ``node_index``; None: parse here.

    Raises:
        BlobNotFoundError: there is none; the message says what is there instead and what to do.
        FormatError: it is malformed.
        StorageError: the place cannot be read, or the file has more than 1 GiB.
    """
    key = key_in(split, INDEX_BASENAME)
    path = store.local_path(key)
    source = f"{store.url.rstrip('/')}/{key}" if path is None else str(path.absolute())
    if tables is not None and path is not None and (known := known_index(path, tables)) is not None:
        return known
    try:
        if tables is not None and path is None:
            return remote_index(store, key, source=source, directory=tables)
        text = store.read(key, limit=MAX_INDEX_NBYTES)
    except BlobNotFoundError as error:
        raise BlobNotFoundError(explain_missing_index(store, split, source)) from error
    digest = hashlib.blake2b(text, digest_size=DIGEST_NBYTES).hexdigest()
    if tables is None:
        return parse_index(text, source=source), digest
    return node_index(text, digest, source=source, directory=tables), digest


def shard_blob(
    info: ShardInfo,
    *,
    split: str | None = None,
    validate_hash: str | bool | None = None,
    keep_zip: bool = False,
) -> Blob:
    """Describe the raw file of a shard as something to fetch, check and unpack.

    Args:
        info: the shard's index entry.
        split: sub-directory of both the store and the cache.
        validate_hash: a hash name; ``None`` or ``True`` for the quickest one that the index has, if any;
            ``False`` for none.
        keep_zip: keep the compressed file beside the raw one.

    Raises:
        ValueError: ``validate_hash`` is unknown or not in the index of this shard.
    """
    check = _check_of(info, info.raw, validate_hash)
    name = key_in(split, info.raw.basename)
    if info.compressed is None:
        return Blob(
            name=name, nbytes=info.raw.nbytes, source=name, source_nbytes=info.raw.nbytes, check=check
        )
    return Blob(
        name=name,
        nbytes=info.raw.nbytes,
        source=key_in(split, info.compressed.basename),
        source_nbytes=info.compressed.nbytes,
        check_source=_check_of(info, info.compressed, validate_hash),
        unpack=partial(unpack_shard, info=info),
        check=check,
        keep_source=keep_zip,
    )


def side_blob(index: Index, shard: int, *, split: str | None = None) -> Blob:
    """Describe the side file with the hashes of a shard's samples, of an index that has such.

    Raises:
        ValueError: it has none.
    """
    side = SideFile.of(index, shard)
    if side is None:
        raise ValueError(f"shard {shard}: the index has no hashes of samples")
    check = partial(check_file, shard=side.name, algorithm=side.algorithm, expected=side.digest)
    key = key_in(split, side.name)
    return Blob(name=key, nbytes=side.nbytes, source=key, source_nbytes=side.nbytes, check=check)


def _check_of(info: ShardInfo, file: FileInfo, validate_hash: str | bool | None) -> partial[None] | None:
    if validate_hash is False:
        return None
    if isinstance(validate_hash, str):
        algorithm = check_hash_name(validate_hash)
        if algorithm not in file.hashes:
            raise ValueError(
                f"validate_hash={validate_hash!r}: the index has no such hash of {file.basename!r}; "
                f"it has {', '.join(sorted(file.hashes)) or 'none'}"
            )
    else:
        known = [name for name in file.hashes if name in known_hashes()]
        if not known:
            return None
        algorithm = min(known, key=_slowness)
    return partial(check_file, shard=file.basename, algorithm=algorithm, expected=file.hashes[algorithm])


def _slowness(algorithm: str) -> tuple[int, str]:
    place = _QUICKEST_FIRST.index(algorithm) if algorithm in _QUICKEST_FIRST else len(_QUICKEST_FIRST)
    return place, algorithm


def check_file(path: Path, *, shard: str, algorithm: str, expected: str) -> None:
    """Compare a file with its hash in the index. Raises ChecksumError with both values."""
    with path.open("rb") as file:
        actual = hash_file(algorithm, file)
    if actual != expected.lower():
        raise ChecksumError(
            f"shard {shard!r}: {algorithm} of {path} is {actual}, the index says {expected}; "
            "the file was damaged or is another one: fetch it again, or rewrite the dataset"
        )


def unpack_shard(source: Path, target: Path, *, info: ShardInfo) -> None:
    """Decompress a shard file into ``target``; raises as ``inflate_shard``."""
    with target.open("wb") as raw:
        inflate_shard(source, raw, info)

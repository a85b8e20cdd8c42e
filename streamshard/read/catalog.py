"""From a dataset's place to its parsed index, and from an index entry to a file that the cache can fetch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from streamshard.errors import BlobNotFoundError, ChecksumError
from streamshard.format.hashing import check_hash_name, hash_file, known_hashes
from streamshard.format.index import INDEX_BASENAME, MAX_INDEX_NBYTES, parse_indexes
from streamshard.read import tables as node_tables
from streamshard.read.inflate import inflate_shard
from streamshard.read.keys import key_in
from streamshard.read.missing import explain_missing_index
from streamshard.read.sample_check import SideFile
from streamshard.read.shared_index import remote_index
from streamshard.read.tables import DIGEST_NBYTES, is_kept, known_index, node_index
from streamshard.storage.blob import Blob

if TYPE_CHECKING:
    from streamshard.format.index import FileInfo, Index, ShardInfo
    from streamshard.storage.store import Store

_THREADS = 16
# One hash is enough to find damage, so the quickest of those in the index is computed; others come after
# these.
_QUICKEST_FIRST = ("xxh3_64", "xxh3_128", "xxh64", "xxh128", "xxh32", "blake2b", "sha1", "md5", "sha256")


@dataclass(frozen=True, slots=True)
class IndexPlace:
    """Where an index is.

    Attributes:
        store: where the dataset is.
        split: sub-directory to look in.
        tables: gives the cache directory in which the processes of this node share what one of them parsed, see
            ``node_index``; None: parse here.
    """

    store: Store
    split: str | None = None
    tables: Callable[[], Path] | None = None

    @property
    def key(self) -> str:
        """Its key in the store."""
        return key_in(self.split, INDEX_BASENAME)


@dataclass(frozen=True, slots=True)
class _Read:
    """The text of an index, or the index where it was known; name in messages; digest."""

    source: str
    digest: str
    text: bytes
    index: Index | None = None


def load_index(store: Store, *, split: str | None = None, tables: Path | None = None) -> tuple[Index, str]:
    """Read and check ``index.json`` and return it with the digest of its bytes (32 hex digits).

    Args:
        store, split: as for :class:`IndexPlace`.
        tables: the cache directory that it names.

    Raises:
        BlobNotFoundError: there is none; the message says what is there instead and what to do.
        FormatError: it is malformed.
        StorageError: the place cannot be read, or the file has more than 1 GiB.
    """
    (found,) = load_indexes([IndexPlace(store, split, None if tables is None else lambda: tables)])
    return found


def load_indexes(places: Sequence[IndexPlace]) -> list[tuple[Index, str]]:
    """Do that for several places, which costs less than one by one; at once what comes from other machines.

    Raises:
        BlobNotFoundError, StorageError: as ``load_index``, for the first one that cannot be read.
        FormatError: else for the first one that is malformed.
    """
    read = _read_at_once(places)
    together = [
        number
        for number, (place, each) in enumerate(zip(places, read, strict=True))
        if each.index is None and (place.tables is None or not is_kept(len(each.text)))
    ]
    parsed = parse_indexes([read[n].text for n in together], [read[n].source for n in together])
    known = dict(zip(together, parsed, strict=True))
    found: list[tuple[Index, str]] = []
    for number, (place, each) in enumerate(zip(places, read, strict=True)):
        index = known.get(number, each.index)
        if index is None:
            directory = Path() if place.tables is None else place.tables()
            index = node_index(each.text, each.digest, source=each.source, directory=directory)
        found.append((index, each.digest))
    return found


def _read_at_once(places: Sequence[IndexPlace]) -> list[_Read]:
    keys = [place.key for place in places]
    paths = [place.store.local_path(key) for place, key in zip(places, keys, strict=True)]
    remote = paths.count(None)
    if remote < 2:
        return list(map(_read, places, keys, paths))
    pool = ThreadPoolExecutor(min(remote, _THREADS), thread_name_prefix="streamshard-open")
    try:
        return list(pool.map(_read, places, keys, paths))
    finally:
        pool.shutdown(cancel_futures=True)


def _read(place: IndexPlace, key: str, path: Path | None) -> _Read:
    store, tables = place.store, place.tables
    source = f"{store.url.rstrip('/')}/{key}" if path is None else str(path)
    try:
        if tables is None:
            text = store.read(key, limit=MAX_INDEX_NBYTES)
        elif path is None:
            index, digest = remote_index(store, key, source=source, directory=tables())
            return _Read(source, digest, b"", index)
        else:
            small = store.read_small(key, node_tables.KEPT_FROM_NBYTES)
            known = known_index(path, tables) if small is None else None
            if known is not None:
                return _Read(source, known[1], b"", known[0])
            text = store.read(key, limit=MAX_INDEX_NBYTES) if small is None else small
    except BlobNotFoundError as error:
        raise BlobNotFoundError(explain_missing_index(store, place.split, source)) from error
    return _Read(source, hashlib.blake2b(text, digest_size=DIGEST_NBYTES).hexdigest(), text)


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

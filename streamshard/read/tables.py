"""Parsed indexes that all processes of a node share: one of them parses the text, the others map what it left.

A table lies in a cache directory, under a name made of the digest of the text that it came from, and appears by rename.
It is looked at with suspicion; one that is missing, damaged or of another version is made anew from the text. Where it
cannot be written, each process has a table of its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import mmap
import multiprocessing.context
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from streamshard.errors import FormatError, StorageError
from streamshard.format.index import MAX_INDEX_NBYTES, Index, parse_index
from streamshard.format.table_bytes import VERSION, Unpacked, pack_table, unpack_table
from streamshard.read.disks import is_local_device
from streamshard.storage.blob import open_regular
from streamshard.storage.cache_directory import shared_directory
from streamshard.storage.once import once
from streamshard.storage.store import is_temporary, replacing

logger = logging.getLogger(__name__)

KEPT_FROM_NBYTES = 1 << 20
"""Texts below this (some 3,000 shards) are parsed in the time that a file takes to be looked up."""
DIGEST_NBYTES = 16
_FOLDER = "tables"
_SUFFIX = f".v{VERSION}.table"
# A table that nobody opened for so long, and an unfinished one of a process that was killed, are deleted.
_UNUSED_S = 30 * 86_400.0
_UNFINISHED_S = 86_400.0


class MappedIndex(Index):
    """An index whose table lies in a file. A process that is spawned opens the file, others get a copy."""

    def __init__(self, found: Unpacked, path: Path, digest: str) -> None:
        self._hold(found.table, found.facts, found.costs, found.sample_hashes)
        self._path = path
        self._digest = digest

    def __reduce__(self) -> tuple[Any, ...]:
        # Only a child of this very machine may be told a path, and only while the file is there.
        if multiprocessing.context.get_spawning_popen() is not None and self._path.exists():
            return _opened, (self._path, self._digest)
        return super().__reduce__()


def is_kept(nbytes: int) -> bool:
    """Whether a table is kept of an index of so many bytes."""
    return nbytes >= KEPT_FROM_NBYTES


def node_index(text: bytes, digest: str, *, source: str, directory: Path) -> Index:
    """Parse an index, or take what another process on this node made of the same text.

    Args:
        text: the index.
        digest: BLAKE2b of ``text``, 32 hex digits.
        source: name of the index in messages.
        directory: cache directory; a table is left there for other processes if that can be.

    Raises:
        FormatError: as ``parse_index``.
    """
    if not is_kept(len(text)):
        return parse_index(text, source=source)

    def made(_: object = None) -> Index:
        return make_table(text, digest, source=source, directory=directory)

    try:
        path = table_path(digest, directory)
        found = open_table(path, digest)
        if found is not None:  # also where nothing can be written
            return found
        shared_directory(directory).make(path.parent)
        name = hashlib.blake2b(source.encode("utf-8", "surrogatepass"), digest_size=DIGEST_NBYTES).hexdigest()
        return once(
            path.with_name(f"{name}.lock"), place=directory, ready=lambda: open_table(path, digest), make=made
        )
    except (StorageError, OSError) as error:
        logger.debug("no table of shards is shared: %s", error)
        return made()


def make_table(text: bytes, digest: str, *, source: str, directory: Path) -> Index:
    """Parse an index and leave its table for other processes, if that can be. Takes no lock."""
    index = parse_index(text, source=source)
    try:
        path = table_path(digest, directory)
        shared_directory(directory).make(path.parent)
        _write(path, index, digest)
    except (StorageError, OSError) as error:
        logger.debug("no table of shards is kept: %s", error)
        return index
    _sweep(path)
    return open_table(path, digest) or index


def known_index(file: Path, directory: Callable[[], Path]) -> tuple[Index, str] | None:
    """Take the table of an index in a local file, and its digest, without holding the text in memory.

    None where there is no such table, or where the file is small or cannot be read: then it is for ``node_index``.
    """
    try:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):  # to open a pipe would hang
            return None
        if not KEPT_FROM_NBYTES <= status.st_size <= MAX_INDEX_NBYTES:
            return None
        with file.open("rb") as text:
            hashed = hashlib.blake2b(digest_size=DIGEST_NBYTES)
            piece = memoryview(bytearray(1 << 20))
            while count := text.readinto(piece):
                hashed.update(piece[:count])
        digest = hashed.hexdigest()
        index = open_table(table_path(digest, directory()), digest)
    except (OSError, StorageError):
        return None
    return None if index is None else (index, digest)


def table_path(digest: str, directory: Path) -> Path:
    """Give where a table lies. Raises as ``tables_folder``."""
    return tables_folder(directory) / f"{digest}{_SUFFIX}"


def tables_folder(directory: Path) -> Path:
    """Give where a cache directory has its tables. Raises StorageError where a link is on the way."""
    place = shared_directory(directory)
    folder = place.hidden / _FOLDER
    place.refuse_links(folder)
    return folder


def open_table(path: Path, digest: str) -> MappedIndex | None:
    """Open the table of the index with a digest; None where there is none that is sound."""
    descriptor = open_regular(path)
    if descriptor is None:
        return None
    try:
        content = _content(descriptor)
        found = unpack_table(memoryview(content), bytes.fromhex(digest))
    except (FormatError, OSError, ValueError) as error:
        logger.warning("%s: not a sound table of shards (%s); it is made anew", path, error)
        return None
    finally:
        os.close(descriptor)
    if isinstance(content, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        content.madvise(mmap.MADV_DONTNEED)  # checking has touched it all; few pages are used from now on
    with contextlib.suppress(OSError):
        os.utime(path)
    return MappedIndex(found, path, digest)


def _opened(path: Path, digest: str) -> Index:
    """Open a table in a spawned process."""
    found = open_table(path, digest)
    if found is None:
        raise StorageError(
            f"{path}: the table of shards that this process was told to open has gone or was damaged; "
            "leave the cache directory alone while workers start, and start again"
        )
    return found


def _content(descriptor: int) -> bytes | mmap.mmap:
    status = os.fstat(descriptor)
    if status.st_size and is_local_device(status.st_dev):
        return mmap.mmap(descriptor, status.st_size, access=mmap.ACCESS_READ)
    # A mapped file whose server goes away ends the process.
    with os.fdopen(os.dup(descriptor), "rb") as file:
        return file.read()


def _write(path: Path, index: Index, digest: str) -> None:
    with replacing(path) as temporary, temporary.open("xb") as file:
        for part in pack_table(index, bytes.fromhex(digest)):
            file.write(part)


def _sweep(path: Path) -> None:
    """Delete tables beside ``path`` that were not used for long, and what killed processes left."""
    now = time.time()
    with contextlib.suppress(OSError):
        for other in path.parent.iterdir():
            age = now - other.lstat().st_mtime
            if (is_temporary(other.name) and age > _UNFINISHED_S) or (
                other.name.endswith((".table", ".note")) and age > _UNUSED_S
            ):
                other.unlink(missing_ok=True)

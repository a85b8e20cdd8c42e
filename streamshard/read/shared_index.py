"""The index of a remote dataset, downloaded and parsed by one process of a node for all.

A large index leaves two files in the cache directory: its table (:mod:`streamshard.read.tables`), and a note of which
content of which place that table was made of. A process that comes later asks the place for the size and the tag of
what is there now, which is one request, and needs no more where they are those of the note.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from streamshard.errors import StorageError
from streamshard.format.index import MAX_INDEX_NBYTES, parse_index
from streamshard.read import tables
from streamshard.read.tables import (
    DIGEST_NBYTES,
    make_table,
    node_index,
    open_table,
    table_path,
    tables_folder,
)
from streamshard.storage.blob import open_regular
from streamshard.storage.cache_directory import shared_directory
from streamshard.storage.once import once
from streamshard.storage.store import check_limit, replacing

if TYPE_CHECKING:
    from streamshard.format.index import Index
    from streamshard.storage.store import Store, Version

logger = logging.getLogger(__name__)

_PIECE_NBYTES = 16 << 20
_MAX_NOTE_NBYTES = 1 << 10


def remote_index(store: Store, key: str, *, source: str, directory: Path) -> tuple[Index, str]:
    """Read an index from its place, or take what another process on this node made of the same content.

    Args:
        store: the place.
        key: of the index.
        source: name of the index in messages.
        directory: cache directory, shared by the processes.

    Returns:
        The index, and BLAKE2b of its text, 32 hex digits.

    Raises:
        BlobNotFoundError, AccessDeniedError, StorageError: as ``store.read``.
        FormatError: as ``parse_index``.
    """
    version = store.version(key)
    check_limit(version.nbytes, MAX_INDEX_NBYTES, f"read {source}")
    if version.nbytes < tables.KEPT_FROM_NBYTES:
        text = store.read_range(key, 0, version.nbytes)
        return parse_index(text, source=source), _digest(text)

    def fetch(beat: Callable[[], None]) -> tuple[Index, str]:
        text = bytearray()
        for begin in range(0, version.nbytes, _PIECE_NBYTES):
            text += store.read_range(key, begin, min(version.nbytes, begin + _PIECE_NBYTES))
            beat()
        digest = _digest(text)
        index: Index | None = open_table(table_path(digest, directory), digest)
        if index is None:
            make = node_index if version.tag is None else make_table  # which this process does under a lock
            index = make(bytes(text), digest, source=source, directory=directory)
        # Not where it was replaced while it was read: the tag would stand for another text.
        if version.tag is not None and store.version(key) == version:
            _write_note(note, version, digest)
        return index, digest

    def known() -> tuple[Index, str] | None:
        digest = _read_note(note, version)
        index = None if digest is None else open_table(table_path(digest, directory), digest)
        return None if index is None or digest is None else (index, digest)

    try:
        folder = tables_folder(directory)
        name = hashlib.blake2b(
            f"{store.url}\0{key}".encode("utf-8", "surrogatepass"), digest_size=DIGEST_NBYTES
        )
        note = folder / f"{name.hexdigest()}.note"
        found = known()
        if found is not None:  # also where nothing can be written
            return found
        shared_directory(directory).make(folder)
    except StorageError as error:
        logger.debug("%s is read by every process: %s", source, error)
        text = store.read_range(key, 0, version.nbytes)
        return parse_index(text, source=source), _digest(text)
    if version.tag is None:  # nothing tells one content from another of the same size
        return fetch(lambda: None)
    return once(note.with_suffix(".lock"), place=directory, ready=known, make=fetch)


def _digest(text: bytes | bytearray) -> str:
    return hashlib.blake2b(text, digest_size=DIGEST_NBYTES).hexdigest()


def _read_note(path: Path, version: Version) -> str | None:
    """Give the digest of the text that a place had in this version; None where nobody has noted it."""
    descriptor = open_regular(path)
    if descriptor is None:
        return None
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(_MAX_NOTE_NBYTES)
    try:
        found = json.loads(content)
    except ValueError:
        return None
    if not isinstance(found, dict) or (found.get("nbytes"), found.get("tag")) != (
        version.nbytes,
        version.tag,
    ):
        return None
    digest = found.get("digest")
    is_digest = (
        isinstance(digest, str)
        and len(digest) == 2 * DIGEST_NBYTES
        and set(digest) <= set("0123456789abcdef")
    )
    return digest if is_digest else None


def _write_note(path: Path, version: Version, digest: str) -> None:
    with (
        contextlib.suppress(OSError),
        replacing(path) as temporary,
    ):  # without it, the next process reads the index
        note = {"nbytes": version.nbytes, "tag": version.tag, "digest": digest}
        temporary.write_text(json.dumps(note), encoding="utf-8")

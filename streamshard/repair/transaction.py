"""Changing a dataset so that at every moment there is a whole one: new files beside the old, then the index, then
the old files go.

New shards are made in ``.streamshard-repair/`` inside the dataset, noted in its journal, moved to names that no file
has, and become part of the dataset with the new ``index.json``, by one rename. What the journal names and the index
does not is deleted: after the rename that are the old shards, after a kill before it the new ones.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from streamshard.errors import StorageError, StreamshardError
from streamshard.format.index import INDEX_BASENAME, is_safe_path, parse_index, side_basenames
from streamshard.storage.local_store import LocalStore
from streamshard.storage.locks import FileLock, LocksUnsupportedError
from streamshard.storage.store import sync_directory, sync_file

if TYPE_CHECKING:
    from streamshard.format.index import Index

WORK_DIRECTORY = ".streamshard-repair"
_JOURNAL = "journal.json"
_LOCK = "lock"
_MAX_JOURNAL_NBYTES = 1 << 30


class Transaction:
    """One change of the dataset in a directory. A context manager; one at a time for each dataset.

    Raises:
        StorageError: another repair is under way, or the directory cannot be written to.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.work = directory / WORK_DIRECTORY
        self._store = LocalStore(directory)
        self._lock: FileLock | None = None
        self._placed: list[str] = []

    def __enter__(self) -> Transaction:
        try:
            self._begin()
        except BaseException as error:
            if self._lock is not None:
                self._lock.close()
            if isinstance(error, StreamshardError) or not isinstance(error, OSError):
                raise
            raise StorageError(f"{self.work}: cannot be used: {error.strerror or error}") from error
        return self

    def _begin(self) -> None:
        self.work.mkdir(mode=0o700, exist_ok=True)
        if self.work.is_symlink():
            raise StorageError(f"{self.work} is a link; expected a directory of this program: remove it")
        self._lock = FileLock(self.work / _LOCK, place=self.directory)
        if not self._taken(self._lock):
            raise StorageError(f"{self.directory}: another repair is at work there; wait for it")
        self._finish_what_was_left()
        self.staging.mkdir(mode=0o700)

    @property
    def staging(self) -> Path:
        """Where new files are made."""
        return self.work / "new"

    def replace_file(self, name: str) -> None:
        """Move ``staging / name`` over the file of that name, which the index describes and which is damaged."""
        target = self.directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        sync_file(self.staging / name)
        (self.staging / name).replace(target)
        sync_directory(target.parent)

    def publish(self, text: bytes, *, new: list[str], old: list[str]) -> None:
        """Give the dataset another index.

        Args:
            text: the index.
            new: files in ``staging`` that it names; no file of the dataset has such a name.
            old: files that it no longer names, to be deleted then.
        """
        self._note([*new, *old])
        for name in new:
            if (self.directory / name).exists():
                raise StorageError(f"{self.directory / name} has appeared meanwhile: who else writes there?")
            sync_file(self.staging / name)
            (self.staging / name).replace(self.directory / name)
            self._placed.append(name)
        sync_directory(self.directory)
        self._store.put_bytes(INDEX_BASENAME, text)
        self._placed = []
        self._delete_what_the_index_leaves_out([*new, *old])

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in self._placed:
            (self.directory / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._clear()
        # The lock goes last, and with the directory only where nobody else has begun there.
        (self.work / _LOCK).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.work.rmdir()
        if self._lock is not None:
            self._lock.close()

    def _taken(self, lock: FileLock) -> bool:
        """Whether the lock is ours; one that its last owner has unlinked protects nothing."""
        try:
            return lock.try_acquire() and lock.is_linked_at(self.work / _LOCK)
        except LocksUnsupportedError:
            return True

    def _clear(self) -> None:
        """Remove all that lies in the work directory, but for the lock."""
        for path in self.work.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != _LOCK:
                path.unlink()

    def _note(self, names: list[str]) -> None:
        LocalStore(self.work).put_bytes(_JOURNAL, json.dumps(sorted(names)).encode())

    def _finish_what_was_left(self) -> None:
        """Delete what a repair that was killed has left, before its index or after it."""
        try:
            names = json.loads(LocalStore(self.work).read(_JOURNAL, limit=_MAX_JOURNAL_NBYTES))
        except (ValueError, RecursionError, StorageError):
            names = None
        # It lies in a dataset that may be somebody else's: only what could be a shard's is deleted.
        self._delete_what_the_index_leaves_out(
            [name for name in names if isinstance(name, str) and is_safe_path(name) and ".mds" in name]
            if isinstance(names, list)
            else []
        )
        self._clear()

    def _delete_what_the_index_leaves_out(self, names: list[str]) -> None:
        try:
            index = parse_index(self._store.read(INDEX_BASENAME), source=INDEX_BASENAME)
        except (StreamshardError, OSError):
            return  # which files are the dataset's cannot be told: none is deleted
        kept = files_of(index)
        for name in names:
            if name not in kept and self._store.exists(name):
                self._store.delete(name)


def files_of(index: Index) -> set[str]:
    """Name all files that a dataset may have."""
    return {INDEX_BASENAME, *index.table.basenames(), *side_basenames(index)}

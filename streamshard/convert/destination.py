"""Where shards go: a directory, or a URL. A file appears there complete, under its final name, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from streamshard.convert.places import local_path
from streamshard.errors import BlobNotFoundError, ConvertError
from streamshard.storage.local_store import LocalStore
from streamshard.storage.opening import is_local, open_store
from streamshard.storage.store import Store, sync_directory
from streamshard.write.claim import Claim
from streamshard.write.remote_claim import RemoteClaim


class Destination(Protocol):
    """The place of the new dataset."""

    name: str

    def prepare(self) -> None:
        """Make the place if it does not exist."""

    def names(self) -> list[str]:
        """The files directly in the place."""

    def size(self, name: str) -> int | None:
        """The size of a file in bytes, ``None`` where there is none."""

    def read(self, name: str, *, limit: int | None = None) -> bytes | None:
        """A file, ``None`` where there is none.

        Raises:
            StorageError: it has more than ``limit`` bytes, or is no regular file.
        """

    def place(self, built: Path, name: str) -> list[int | None]:
        """Move a complete local file here; gives its size and modification time in nanoseconds (or ``None``)."""

    def stamp(self, name: str) -> list[int | None] | None:
        """Size and modification time of a file as :meth:`place` gives them; ``None`` where there is none."""

    def delete(self, name: str) -> None:
        """Delete a file; one that is not there is no error."""

    def claimed(self) -> AbstractContextManager[Callable[[], None]]:
        """Keep other machines' writers away, where the lock of the work directory does not.

        Gives a function that raises DirectoryInUseError, as this does, if another writer has the place.
        """


def open_destination(out: str, storage_options: Mapping[str, Any] | None) -> Destination:
    """Open the place of an output."""
    if is_local(out):
        return LocalDestination(local_path(out))
    return StoreDestination(open_store(out, storage_options=storage_options))


class LocalDestination:
    """A directory. Files come from the work directory inside it, so that moving is renaming."""

    def __init__(self, directory: Path) -> None:
        self.name = str(directory)
        self._directory = directory

    def prepare(self) -> None:
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise ConvertError(
                f"out {self.name!r}: a directory cannot be made there, since {error.filename!r} is a file or lies below"
                " one; choose another --out"
            ) from error

    def names(self) -> list[str]:
        if not self._directory.is_dir():
            return []
        return sorted(entry.name for entry in self._directory.iterdir() if entry.is_file())

    def size(self, name: str) -> int | None:
        stamp = self.stamp(name)
        return None if stamp is None else stamp[0]

    def read(self, name: str, *, limit: int | None = None) -> bytes | None:
        try:
            return LocalStore(self._directory).read(name, limit=limit)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def place(self, built: Path, name: str) -> list[int | None]:
        found = built.stat()
        built.replace(self._directory / name)
        sync_directory(self._directory)
        return [found.st_size, found.st_mtime_ns]

    def stamp(self, name: str) -> list[int | None] | None:
        try:
            found = (self._directory / name).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return [found.st_size, found.st_mtime_ns]

    def delete(self, name: str) -> None:
        (self._directory / name).unlink(missing_ok=True)
        sync_directory(self._directory)

    @contextmanager
    def claimed(self) -> Iterator[Callable[[], None]]:
        claim = Claim(self._directory)
        try:
            yield lambda: None
        finally:
            claim.release()


class StoreDestination:
    """A URL. Files are uploaded under their final name; the store checks their size."""

    def __init__(self, store: Store) -> None:
        self.name = store.url
        self._store = store

    def prepare(self) -> None:
        """Nothing to do: object stores have no directories."""

    def names(self) -> list[str]:
        return sorted(name for name in self._store.list() if "/" not in name)

    def size(self, name: str) -> int | None:
        try:
            return self._store.size(name)
        except BlobNotFoundError:
            return None

    def read(self, name: str, *, limit: int | None = None) -> bytes | None:
        try:
            return self._store.read(name, limit=limit)
        except BlobNotFoundError:
            return None

    def place(self, built: Path, name: str) -> list[int | None]:
        nbytes = built.stat().st_size
        self._store.put(name, built)
        return [nbytes, None]

    def stamp(self, name: str) -> list[int | None] | None:
        nbytes = self.size(name)
        return None if nbytes is None else [nbytes, None]

    def delete(self, name: str) -> None:
        if self._store.exists(name):
            self._store.delete(name)

    @contextmanager
    def claimed(self) -> Iterator[Callable[[], None]]:
        claim = RemoteClaim(self._store)
        try:
            yield claim.check
        finally:
            claim.release()

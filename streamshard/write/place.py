"""The place of a dataset that is written: a directory, with a URL where the files go on to."""

from __future__ import annotations

import contextlib
import os
import tempfile
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamshard.errors import StorageError
from streamshard.format.index import INDEX_BASENAME
from streamshard.write.append import Base
from streamshard.write.claim import Claim
from streamshard.write.destination import refuse_or_clear
from streamshard.write.publish import publish_file
from streamshard.write.remote_claim import RemoteClaim

if TYPE_CHECKING:
    from streamshard.storage.retry import RetryPolicy
    from streamshard.storage.store import Store


class Place:
    """The directory that a writer fills, emptied of an older dataset and claimed, and the store of the URL, if any.

    Args:
        out, exist_ok, append, storage_options: as of :class:`~streamshard.MDSWriter`.
        retry: of the uploads.
        on_lost: a method, called by a thread once another writer has taken over the URL; its object is not kept.

    Attributes:
        directory: local; a temporary one where ``out`` is a URL alone.
        remote: the store of the URL, or None.
        is_temporary: whether the directory is a temporary one.
        base: the dataset that is added to, or None.

    Raises:
        ValueError: an ``out`` that makes no sense.
        FileExistsError: the place is not empty and ``exist_ok`` is False.
        DirectoryInUseError: another writer is writing to the same directory or URL.
    """

    def __init__(
        self,
        out: Any,
        *,
        exist_ok: bool,
        append: bool,
        storage_options: Mapping[str, Any] | None,
        retry: RetryPolicy,
        on_lost: Callable[[], None],
    ) -> None:
        from streamshard.storage.opening import open_store

        local, remote = _split_out(out)
        self.remote = (
            None if remote is None else open_store(remote, storage_options=storage_options, retry=retry)
        )
        self.is_temporary = local is None
        self.directory = _local_directory(local)
        self._made_directory = local is None or not self.directory.exists()
        self._had_index = False
        self._on_lost = weakref.WeakMethod(on_lost)
        self._claims: list[Claim | RemoteClaim] = []
        self.base: Base | None = None
        try:
            self._prepare(exist_ok, append)
        except BaseException:
            self.release()
            self.remove_if_made()
            raise

    def __str__(self) -> str:
        return str(self.directory) if self.remote is None else self.remote.url

    def release(self) -> None:
        """Let other writers in."""
        for claim in reversed(self._claims):
            claim.release()

    def check(self) -> None:
        """Make sure that no other writer has taken over; DirectoryInUseError if one has."""
        for claim in self._claims:
            if isinstance(claim, RemoteClaim):
                claim.check()

    @property
    def is_lost(self) -> bool:
        """Whether it is known that another writer has taken over."""
        return any(isinstance(claim, RemoteClaim) and claim.is_lost for claim in self._claims)

    def remove_if_made(self) -> None:
        """Remove the directory if it was made here and is empty."""
        if self._made_directory:
            with contextlib.suppress(OSError):  # not empty: there are files that are kept, or another's
                self.directory.rmdir()

    def check_base(self) -> None:
        """Make sure that the index that is to be replaced is the one that was read; StorageError if not."""
        if self.base is None:
            return
        store = self._stores()[-1]
        if store.read(INDEX_BASENAME) != self.base.text:
            raise StorageError(
                f"{store.url}/{INDEX_BASENAME} is not what it was when this writer began: somebody else has written"
                " there; nothing was added. Begin again"
            )

    def restore_index(self) -> None:
        """Put the old index back into the directory after a failure, or nothing where there was none."""
        if self.base is not None and self._had_index:
            publish_file(self.directory, INDEX_BASENAME, [self.base.text])
        else:
            (self.directory / INDEX_BASENAME).unlink(missing_ok=True)

    def _stores(self) -> list[Store]:
        from streamshard.storage.local_store import LocalStore

        local: Store = LocalStore(self.directory)
        return [local] if self.remote is None else [local, self.remote]

    def _find_base(self) -> None:
        """Read the index that is there, and clear away what a killed append has left."""
        *others, store = self._stores()
        text = store.read(INDEX_BASENAME) if store.exists(INDEX_BASENAME) else None
        for other in others:
            here = other.read(INDEX_BASENAME) if other.exists(INDEX_BASENAME) else None
            self._had_index = here is not None
            if here is not None and here != text:
                raise ValueError(
                    f"out: the index in {other.url} is not the one at {store.url}; give the URL alone"
                )
        if text is None:
            # Nothing there yet: a new dataset, in a place that has to be empty as for any other.
            refuse_or_clear(store, exist_ok=False)
            return
        self._had_index = self._had_index or not others
        self.base = Base(text, store.url)
        for name in self.base.leftovers(store.list()):
            store.delete(name)

    def _prepare(self, exist_ok: bool, append: bool) -> None:
        stores = self._stores()
        if self.remote is not None and self.remote.local_path("x") == self.directory / "x":
            raise ValueError(f"out: both places of the pair are {self.directory}")
        if not exist_ok and not append:
            for store in stores:
                refuse_or_clear(store, exist_ok=False)
        self.directory.mkdir(parents=True, exist_ok=True)
        self._claims.append(Claim(self.directory))
        if self.remote is not None:
            self._claims.append(self._claim_remote(self.remote))
        if append:
            self._find_base()
            return
        # The remote index is what others read: it goes first.
        for store in reversed(stores):
            refuse_or_clear(store, exist_ok=exist_ok)

    def _claim_remote(self, remote: Store) -> Claim | RemoteClaim:
        path = remote.local_path("x")
        if path is None:
            return RemoteClaim(remote, on_lost=_calling(self._on_lost))
        path.parent.mkdir(parents=True, exist_ok=True)
        return Claim(path.parent)


def _calling(method: weakref.WeakMethod[Callable[[], None]]) -> Callable[[], None]:
    def call() -> None:
        bound = method()
        if bound is not None:
            bound()

    return call


def _split_out(out: Any) -> tuple[str | None, str | None]:
    """Give (local directory or None for a temporary one, URL or None)."""
    from streamshard.storage.opening import is_local

    parts = out if isinstance(out, (tuple, list)) else (out,)
    if not 1 <= len(parts) <= 2 or not all(isinstance(p, (str, os.PathLike)) and os.fspath(p) for p in parts):
        raise ValueError(f"out={out!r}: expected a directory, a URL, or a pair (directory, URL)")
    paths = [os.fspath(part) for part in parts]
    if len(paths) == 1:
        return (paths[0], None) if is_local(paths[0]) else (None, paths[0])
    if not is_local(paths[0]):
        raise ValueError(f"out={out!r}: the first of the pair must be a local directory")
    return paths[0], paths[1]


def _local_directory(local: str | None) -> Path:
    from streamshard.storage.opening import local_directory

    if local is None:
        return Path(tempfile.mkdtemp(prefix="streamshard-"))
    directory = local_directory(local)
    if directory.exists() and not directory.is_dir():
        raise FileExistsError(f"{directory} is a file; expected a directory to write to")
    return directory

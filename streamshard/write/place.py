"""The place of a dataset that is written: a directory, with a URL where the files go on to."""

from __future__ import annotations

import contextlib
import os
import tempfile
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamshard.write.claim import Claim
from streamshard.write.destination import refuse_or_clear
from streamshard.write.remote_claim import RemoteClaim

if TYPE_CHECKING:
    from streamshard.storage.retry import RetryPolicy
    from streamshard.storage.store import Store


class Place:
    """The directory that a writer fills, emptied of an older dataset and claimed, and the store of the URL, if any.

    Args:
        out, exist_ok, storage_options: as of :class:`~streamshard.MDSWriter`.
        retry: of the uploads.
        on_lost: a method, called by a thread once another writer has taken over the URL; its object is not kept.

    Attributes:
        directory: local; a temporary one where ``out`` is a URL alone.
        remote: the store of the URL, or None.
        is_temporary: whether the directory is a temporary one.

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
        self._on_lost = weakref.WeakMethod(on_lost)
        self._claims: list[Claim | RemoteClaim] = []
        try:
            self._prepare(exist_ok)
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

    def _prepare(self, exist_ok: bool) -> None:
        from streamshard.storage.local_store import LocalStore

        stores: list[Store] = [LocalStore(self.directory)]
        if self.remote is not None:
            stores.append(self.remote)
            if self.remote.local_path("x") == self.directory / "x":
                raise ValueError(f"out: both places of the pair are {self.directory}")
        if not exist_ok:
            for store in stores:
                refuse_or_clear(store, exist_ok=False)
        self.directory.mkdir(parents=True, exist_ok=True)
        self._claims.append(Claim(self.directory))
        if self.remote is not None:
            self._claims.append(self._claim_remote(self.remote))
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

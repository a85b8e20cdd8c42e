"""What a place that holds files under keys has to offer, and the rules for keys that all places share."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from streamshard.errors import StorageError, WrongSizeError

TEMPORARY_SUFFIX = ".streamshard-tmp"

# One piece of a copy: small enough that many threads' pieces fit in memory, and so large that Linux can keep the copy
# in large pieces, out of whose map a blob of 40 kB is read in 3.3 us, in place of 4.4 where it was written by 1 MiB.
COPY_NBYTES = 4 << 20


class Version(NamedTuple):
    """What a place says of a file without reading it.

    Attributes:
        nbytes: its size.
        tag: a short text that is another one whenever the content is; None where the place gives none.
    """

    nbytes: int
    tag: str | None = None


class Store(Protocol):
    """Files under keys below one root. Picklable; thread-safe; usable after a fork.

    A key is a relative path with ``/`` between its parts; one that could leave the root is refused with
    StorageError. Errors: BlobNotFoundError (not retried), AccessDeniedError (not retried), StorageError
    (after the retries that made sense). Each message holds URL, attempts and cause, and no credentials.
    """

    @property
    def url(self) -> str:
        """The root, for messages: user names, passwords and query values are removed."""

    def size(self, key: str) -> int:
        """Bytes of the file ``key``."""

    def version(self, key: str) -> Version:
        """Size and tag of the file ``key``, for the price of ``size``."""

    def read(self, key: str, *, limit: int | None = None) -> bytes:
        """The whole file; WrongSizeError if it has more than ``limit`` bytes."""

    def read_small(self, key: str, below: int, *, certain: bool = False) -> bytes | None:
        """The whole file in one request, if it has fewer than ``below`` bytes; else None.

        Its size is not asked for: a server that sends less than there is, and says that this is all, is believed.
        With ``certain`` it is not: what is given has the hash that the place has of the file, and is None where it
        has none. StorageError may also mean that the file is empty.
        """

    def read_range(self, key: str, begin: int, end: int) -> bytes:
        """Bytes [begin, end) of the file, all of them; StorageError if it ends before ``end``."""

    def fetch_to(
        self,
        key: str,
        path: Path,
        *,
        progress: Callable[[int], None] | None = None,
        nbytes: int | None = None,
    ) -> int:
        """Copy the file to the local ``path`` and return its size.

        It appears under ``path`` complete or not at all: it is written under a temporary name beside it.

        Args:
            progress: called with the number of bytes received since the last call.
            nbytes: the size that the file must have, if known: another one is a StorageError, and a request
                is saved.
        """

    def put(self, key: str, path: Path) -> None:
        """Store the local file ``path`` under ``key`` and check the stored size."""

    def put_bytes(self, key: str, payload: bytes) -> None:
        """Store ``payload`` under ``key`` and check the stored size."""

    def list(self, prefix: str = "") -> list[str]:
        """All keys that begin with ``prefix``, at any depth, sorted; none where nothing is there."""

    def exists(self, key: str) -> bool:
        """Whether ``key`` is a file here."""

    def delete(self, key: str) -> None:
        """Remove the file; BlobNotFoundError if there is none."""

    def modified(self, key: str) -> float | None:
        """When the file was put, in seconds by a clock of the place; None where it does not tell."""

    def local_path(self, key: str) -> Path | None:
        """The real path of ``key`` where the store is a local directory, else None."""


def check_key(key: str, url: str) -> str:
    """Return ``key`` if it names something below the root.

    Raises:
        StorageError: it is empty, absolute, has an empty, ``.`` or ``..`` part, or holds a NUL.
    """
    if not isinstance(key, str) or "\0" in key or any(part in ("", ".", "..") for part in key.split("/")):
        raise StorageError(
            f"{url}: key {key!r} is no plain relative path; expected names joined by '/', below the root"
        )
    return key


def check_prefix(prefix: str, url: str) -> str:
    """Return ``prefix`` if no key that begins with it leaves the root: ``""``, ``"a"``, ``"a/"``."""
    if prefix:
        check_key(prefix.removesuffix("/"), url)
    return prefix


def check_range(begin: int, end: int, what: str) -> int:
    """Return the number of bytes in [begin, end); StorageError unless 0 <= begin <= end."""
    if not 0 <= begin <= end:
        raise StorageError(f"{what}: bytes [{begin}, {end}) are no range; expected 0 <= begin <= end")
    return end - begin


def check_limit(nbytes: int, limit: int | None, what: str) -> None:
    """Raise WrongSizeError if a file of ``nbytes`` is larger than its reader allows."""
    if limit is not None and nbytes > limit:
        raise WrongSizeError(
            f"{what}: the file has {nbytes} bytes, at most {limit} were expected; is it the right file?"
        )


def check_size(found: int, expected: int | None, what: str) -> None:
    """Raise WrongSizeError if a file does not have the size that its index says."""
    if expected is not None and found != expected:
        raise WrongSizeError(
            f"{what}: the file has {found} bytes, expected {expected}; "
            "it was cut or replaced since its index was made"
        )


def is_temporary(name: str) -> bool:
    """Whether ``name`` is one that ``replacing`` gives to unfinished files."""
    return name.endswith(TEMPORARY_SUFFIX)


@contextlib.contextmanager
def replacing(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Give a temporary path beside ``path``; rename it to ``path`` at the end, or remove it on an error.

    With ``durable``, file and directory are on the disk before the block is left.
    """
    # The name is short whatever the length of the final one.
    temporary = path.with_name(f".{secrets.token_hex(8)}{TEMPORARY_SUFFIX}")
    try:
        yield temporary
        if durable:
            sync_file(temporary)
        temporary.replace(path)
        if durable:
            sync_directory(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def make_below(top: Path, directory: Path) -> None:
    """Make what is missing of a directory below ``top``, as open to others as ``top`` is, whatever the umask."""
    if directory.is_dir():
        return
    make_below(top, directory.parent)
    try:
        directory.mkdir()
    except FileExistsError:
        if not directory.is_dir():
            raise
    else:
        # By its descriptor: whoever shares the directory could put a link to one of ours in its place meanwhile.
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            # Not sticky: who shares a directory also cleans up what others' dead processes left there.
            os.fchmod(handle, 0o700 | (top.stat().st_mode & 0o2077))
        finally:
            os.close(handle)


def sync_file(path: Path) -> None:
    """Force the content of ``path`` to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_directory(directory: Path) -> None:
    """Force the names in ``directory`` to the disk, where its file system can do that."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems refuse fsync of a directory
            os.fsync(handle)
    finally:
        os.close(handle)

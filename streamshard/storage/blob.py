"""One file that is wanted on this node, and one that is open there."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Blob:
    """One file that is wanted on this node.

    Args:
        name: path below the cache directory, ``/`` between its parts.
        nbytes: exact size of the finished file.
        source: key in the store.
        source_nbytes: exact size there.
        check_source: raises ChecksumError if the downloaded file is not the right one.
        unpack: writes the finished file (second path) from the downloaded one (first path); None if they are
            the same.
        check: like ``check_source`` for the finished file; also run on a file that is found in the cache and
            that no earlier check vouches for.
        keep_source: leave the downloaded file in the cache too, under ``source``.
    """

    name: str
    nbytes: int
    source: str
    source_nbytes: int
    check_source: Callable[[Path], None] | None = None
    unpack: Callable[[Path, Path], None] | None = None
    check: Callable[[Path], None] | None = None
    keep_source: bool = False

    @property
    def resident_nbytes(self) -> int:
        """Bytes that stay on the disk."""
        return self.nbytes + (self.source_nbytes if self.unpack is not None and self.keep_source else 0)

    @property
    def peak_nbytes(self) -> int:
        """Bytes that are needed on the disk while it is fetched."""
        return self.nbytes + (self.source_nbytes if self.unpack is not None else 0)


class CachedFile:
    """A cached file that is open and, as long as it is, not evicted. A context manager."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    def fileno(self) -> int:
        """The open file, for reading; ValueError once it is closed."""
        if self._descriptor < 0:
            raise ValueError(f"{self.path}: this cached file has been closed")
        return self._descriptor

    def close(self) -> None:
        """Give the file free for eviction. May be called twice."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)  # not unlocked: a forked child that reads on keeps the lock

    def __enter__(self) -> CachedFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def open_regular(path: Path) -> int | None:
    """Open ``path`` if it is a regular file and no link; None otherwise. Never hangs on a pipe."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    return None


def identity(status: os.stat_result) -> tuple[int, int, int, int]:
    """What changes when a file is replaced or written to: device, inode, size, modification time."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def is_there(path: Path) -> bool:
    """Whether something has that name; False where nobody here may look."""
    try:
        path.lstat()
    except OSError:
        return False
    return True


def set_aside(path: Path) -> None:
    """Move something that is not ours out of the way under a new name, since we delete only what we wrote."""
    number = 0
    while True:
        aside = path.with_name(f"{path.name}.found-{number}")
        if not is_there(aside):
            break
        number += 1
    try:
        path.rename(aside)
    except FileNotFoundError:
        return
    logger.warning(
        "%s: not the file that the index names, and not written by this cache; moved to %s", path, aside
    )

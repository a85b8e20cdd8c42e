"""Advisory locks between processes (flock). The kernel drops them when a process dies."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import stat
from pathlib import Path

from streamshard.errors import StorageError
from streamshard.storage.cancel import pause

logger = logging.getLogger(__name__)

_UNSUPPORTED = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})

# How often a file that another user shares is tried to be opened while that user is still setting its permissions.
_ATTEMPTS = 25
_BETWEEN_S = 0.002

# A forked child shares its parent's open files, and so would keep the parent's locks after the parent's
# death. Only descriptors of exclusive locks are listed: a child may go on reading what its parent opened.
_exclusive: set[int] = set()
_warned: set[str] = set()


def _close_inherited() -> None:
    for descriptor in list(_exclusive):
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _exclusive.clear()


os.register_at_fork(after_in_child=_close_inherited)


class LocksUnsupportedError(OSError):
    """The file system has no advisory locks. Callers go on with atomic renames alone."""


def try_lock(descriptor: int, *, shared: bool, place: Path) -> bool:
    """Take a lock on an open file without waiting; False if somebody else has it.

    Raises:
        LocksUnsupportedError: there are no locks here; said once per process and directory in the log.
        StorageError: the file system failed otherwise.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):  # how NFS says that it is taken
            return False
        if error.errno not in _UNSUPPORTED:
            raise StorageError(
                f"{place}: a file there could not be locked ({error}); mend that file system, or choose another "
                "directory with local="
            ) from error
        directory = str(place)
        if directory not in _warned:
            _warned.add(directory)
            logger.warning(
                "%s: this file system has no file locks (%s); going on with atomic renames: a file may be "
                "fetched more than once, and a cache limit may delete one that is being read",
                directory,
                error,
            )
        raise LocksUnsupportedError(error.errno, str(error)) from error
    return True


class FileLock:
    """An exclusive lock on a file of its own, which stays when the lock is released.

    The file's modification time is the holder's heartbeat: those who wait see that it is alive. ``mode`` are the
    permissions that it gets whatever the umask; with None they follow the umask.
    """

    def __init__(self, path: Path, *, place: Path, mode: int | None = None) -> None:
        self._place = place
        self._pid = os.getpid()
        self._descriptor = _open_shared(path, mode)
        _exclusive.add(self._descriptor)

    def try_acquire(self) -> bool:
        """Take the lock if it is free. Raises LocksUnsupportedError."""
        return try_lock(self._descriptor, shared=False, place=self._place)

    def beat(self) -> None:
        """Tell those who wait that work goes on."""
        with contextlib.suppress(OSError):
            os.utime(self._descriptor)

    def last_beat(self) -> int:
        """The time of the holder's last sign of life, in ns since the epoch, by the file system's clock."""
        return os.fstat(self._descriptor).st_mtime_ns

    def is_linked_at(self, path: Path) -> bool:
        """Whether the locked file is still the one at ``path``."""
        return same_file(self._descriptor, path)

    def close(self) -> None:
        """Release the lock and close its file. May be called twice."""
        if self._descriptor < 0 or self._pid != os.getpid():
            return  # a fork has closed it here, and its number may be another file's now
        # Unlocked, not only closed: a child forked meanwhile may still hold the same open file. The number is forgotten
        # last: what an interrupt leaves undone, ``__del__`` does.
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        except OSError as error:
            logger.debug("%s: a lock could not be released: %s", self._place, error)
        descriptor, self._descriptor = self._descriptor, -1
        _exclusive.discard(descriptor)
        os.close(descriptor)

    def __del__(self) -> None:
        if getattr(self, "_descriptor", -1) >= 0:
            self.close()


def _open_shared(path: Path, mode: int | None) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    for attempt in range(_ATTEMPTS):
        try:
            descriptor = os.open(path, flags, 0o666 if mode is None else mode)
            break
        except PermissionError:
            if mode is None or not mode & 0o022 or attempt == _ATTEMPTS - 1:
                raise
            pause(_BETWEEN_S)  # another user has made it this moment and will open it to others
    if mode is not None:
        status = os.fstat(descriptor)
        if stat.S_IMODE(status.st_mode) != mode and status.st_uid == os.geteuid():
            os.fchmod(descriptor, mode)
    return descriptor


def same_file(descriptor: int, path: Path) -> bool:
    """Whether ``path``, links not followed, is the file that ``descriptor`` has open."""
    try:
        there = path.lstat()
    except OSError:
        return False
    here = os.fstat(descriptor)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)

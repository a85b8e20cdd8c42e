"""One writer for a directory at a time: a lock on the directory itself, which leaves no file behind."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import weakref
from pathlib import Path

from streamshard.errors import DirectoryInUseError
from streamshard.storage.locks import LocksUnsupportedError, try_lock

logger = logging.getLogger(__name__)


class Claim:
    """Holds a local directory for one writer until ``release``, its garbage collection, or the end of its process.

    Where directories cannot be locked, as on some network file systems, nothing is held, and the log says so.

    Raises:
        DirectoryInUseError: another writer, of this process or another one, has it.
    """

    def __init__(self, directory: Path) -> None:
        self._owner = os.getpid()
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            taken = try_lock(descriptor, shared=False, place=directory)
        except LocksUnsupportedError:
            taken = True
        except OSError as error:
            logger.warning(
                "%s: this directory cannot be locked (%s); two writers would not see each other",
                directory,
                error,
            )
            taken = True
        if not taken:
            os.close(descriptor)
            raise DirectoryInUseError(
                f"{directory}: another MDSWriter is writing here, and two would overwrite each other's shards; "
                "give each a directory of its own (merge_index() joins them), or wait until it has finished"
            )
        self._close = weakref.finalize(self, _close, descriptor, self._owner)

    def release(self) -> None:
        """Let others write here. May be called twice; without effect in a forked child."""
        if os.getpid() == self._owner:
            self._close()


def _close(descriptor: int, owner: int) -> None:
    # Unlocked, not only closed: a child forked meanwhile has the same open directory.
    if os.getpid() == owner:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)

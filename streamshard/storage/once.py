"""Work that one process of a node does for all that start at the same time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from streamshard.storage.cancel import pause
from streamshard.storage.locks import FileLock, LocksUnsupportedError

logger = logging.getLogger(__name__)

T = TypeVar("T")

PATIENCE_S = 60.0
"""A process at work that gives no sign of life for so long is waited for no longer."""
_SHORTEST_POLL_S = 0.005
_LONGEST_POLL_S = 0.1


def once(
    lock_path: Path, *, place: Path, ready: Callable[[], T | None], make: Callable[[Callable[[], None]], T]
) -> T:
    """Return what ``ready`` finds, or else ``make`` it, while other processes that ask wait for it.

    Those that waited in vain, because the process at work failed, died or fell silent, make it for themselves, all at
    once: so an error that all of them would meet takes each at most twice its time.

    Args:
        lock_path: a file for the lock, in a directory that is there; it stays.
        place: the directory that messages name.
        ready: looks for what another process has made.
        make: makes it, where others can find it; is given a function to call as a sign of life.
    """
    found = ready()
    if found is not None:
        return found
    try:
        lock = FileLock(lock_path, place=place)
    except OSError as error:
        logger.debug("%s: no lock, so each process works for itself: %s", lock_path, error)
        return make(_no_sign)
    try:
        if lock.try_acquire():
            lock.beat()
            found = ready()  # from one that ended meanwhile
            return make(lock.beat) if found is None else found
        _wait(lock)
    except LocksUnsupportedError:
        pass  # said by the lock; each makes its own
    finally:
        lock.close()
    found = ready()
    return make(_no_sign) if found is None else found


def _wait(lock: FileLock) -> None:
    """Wait until the process at work has ended, or is silent. Raises LocksUnsupportedError."""
    interval = _SHORTEST_POLL_S
    beat, since = lock.last_beat(), time.monotonic()
    while not lock.try_acquire():
        now = time.monotonic()
        if lock.last_beat() != beat:
            beat, since = lock.last_beat(), now
        elif now - since > PATIENCE_S:
            logger.warning(
                "another process got no further with it for %.0f s; not waiting any longer", now - since
            )
            return
        pause(interval)
        interval = min(_LONGEST_POLL_S, interval * 1.5)


def _no_sign() -> None:
    """Nobody waits."""

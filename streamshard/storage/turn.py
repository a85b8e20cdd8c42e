"""Whose turn it is to fetch a file that several processes of a node want, and how the one at it shows that it lives."""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Callable

from streamshard.storage.cancel import check_cancelled, pause
from streamshard.storage.locks import FileLock, LocksUnsupportedError

logger = logging.getLogger(__name__)

_SHORTEST_POLL_S = 0.005
_LONGEST_POLL_S = 0.05
_BEAT_S = 0.1


class Turn(enum.Enum):
    """How the wait for another process's download ended."""

    MINE = "it is ours to fetch"
    PUBLISHED = "the other one has finished"
    ALONE = "there are no locks, or the other one stands still"


class Heartbeat:
    """Shows those who wait for this download that it gets on, a few times a second at most."""

    def __init__(self, lock: FileLock | None) -> None:
        self._lock = lock
        self._next = 0.0

    def beat(self, nbytes: int = 0) -> None:
        """Note that some bytes have come; ends a fetch that was called off."""
        check_cancelled()
        now = time.monotonic()
        if self._lock is not None and now >= self._next:
            self._next = now + _BEAT_S
            self._lock.beat()


def wait_for_turn(lock: FileLock, name: str, *, is_present: Callable[[], bool], timeout_s: float) -> Turn:
    """Take a file's lock, or wait for the process that holds it as long as that gets on.

    Args:
        lock: of the file.
        name: of the file, for the log.
        is_present: whether the file is here by now.
        timeout_s: how long the other process may stand still.
    """
    interval = _SHORTEST_POLL_S
    beat, since = lock.last_beat(), time.monotonic()
    try:
        while not lock.try_acquire():
            if is_present():
                return Turn.PUBLISHED
            now = time.monotonic()
            if lock.last_beat() != beat:
                beat, since = lock.last_beat(), now
            elif now - since > timeout_s:
                logger.warning(
                    "%s: another process got no further with it for %.0f s; fetching a second copy",
                    name,
                    now - since,
                )
                return Turn.ALONE
            pause(interval)
            interval = min(_LONGEST_POLL_S, interval * 1.5)
    except LocksUnsupportedError:
        return Turn.ALONE
    lock.beat()
    return Turn.MINE

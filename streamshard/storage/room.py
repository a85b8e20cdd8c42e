"""Keeping a cache directory under its limit: what nobody holds is deleted before a download begins."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from streamshard.errors import CacheTooSmallError
from streamshard.storage.blob import Blob
from streamshard.storage.cache_directory import CacheDirectory
from streamshard.storage.cancel import pause
from streamshard.storage.eviction import plan_eviction
from streamshard.storage.locks import LocksUnsupportedError, same_file, try_lock

_SHORTEST_POLL_S = 0.005
_LONGEST_POLL_S = 0.05


def make_room(
    directory: CacheDirectory,
    blob: Blob,
    *,
    limit_bytes: int | None,
    next_use: Callable[[str], float | None] | None,
    timeout_s: float,
    beat: Callable[[], None],
) -> Path:
    """Begin a job for ``blob`` once its bytes fit under the limit, and return the job's directory.

    Where open files and downloads leave no room, each process may still bring in one file beyond the limit;
    further ones wait for something to be released.

    Raises:
        CacheTooSmallError: nothing was released for ``timeout_s`` seconds.
    """
    if limit_bytes is None:
        return directory.begin_job(blob.peak_nbytes)
    interval = _SHORTEST_POLL_S
    least, since = None, time.monotonic()
    while True:
        with directory.room():
            job, occupied = _try_room(directory, blob, limit_bytes, next_use)
        if job is not None:
            return job
        now = time.monotonic()
        if least is None or occupied < least:
            least, since = occupied, now
        elif now - since > timeout_s:
            raise CacheTooSmallError(
                f"cache directory {directory.path}: the limit is {limit_bytes} bytes, but {occupied} are held "
                f"by open files and downloads, and {blob.name!r} needs {blob.peak_nbytes} more; nothing was "
                f"released for {now - since:.0f} s; raise cache_limit="
            )
        beat()
        pause(interval)
        interval = min(_LONGEST_POLL_S, interval * 1.5)


def _try_room(
    directory: CacheDirectory,
    blob: Blob,
    limit_bytes: int,
    next_use: Callable[[str], float | None] | None,
) -> tuple[Path | None, int]:
    """Begin a job if there is room for it, or can be made; also the bytes that were occupied before it."""
    entries = directory.entries()
    occupied = sum(entry.nbytes for entry in entries) + directory.reserved()
    own = {blob.name, blob.source} if blob.keep_source else {blob.name}
    left = {entry.name for entry in entries}
    for entry in plan_eviction([entry for entry in entries if entry.name not in own], next_use):
        if occupied + blob.peak_nbytes <= limit_bytes:
            break
        if evict(directory, entry.name):
            occupied -= entry.nbytes
            left.discard(entry.name)
    beyond = occupied + blob.peak_nbytes > limit_bytes
    if beyond and (directory.extra in left or directory.extra_in_flight()):
        return None, occupied
    job = directory.begin_job(blob.peak_nbytes)
    if beyond:
        directory.extra, directory.extra_job = blob.name, job
    return job, occupied


def evict(directory: CacheDirectory, name: str) -> bool:
    """Delete a file of ours that nobody holds; whether its bytes are free. Needs the room lock."""
    path = directory.path_of(name)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return True
    except OSError:
        return False  # another user's, or a name that has become a link
    try:
        with contextlib.suppress(LocksUnsupportedError):
            if not try_lock(descriptor, shared=False, place=directory.path):
                return False
        if not same_file(descriptor, path):
            return False
        path.unlink()
        directory.forget(name)
    finally:
        os.close(descriptor)
    return True

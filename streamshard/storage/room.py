"""Keeping a cache directory under its limit: what nobody holds is deleted before a download begins."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
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
    before: _Account | None = None
    since = time.monotonic()
    stands_still = False
    while True:
        with directory.room():
            account = _shrink(directory, limit_bytes - blob.peak_nbytes, next_use, _names(blob))
            if _may_begin(directory, account, blob.peak_nbytes, limit_bytes, stands_still=stands_still):
                job = directory.begin_job(blob.peak_nbytes)
                if account.occupied + blob.peak_nbytes > limit_bytes:
                    directory.extra, directory.extra_job = blob.name, job
                return job
        now = time.monotonic()
        if account != before:
            before, since, stands_still = account, now, False
        elif stands_still:
            raise CacheTooSmallError(
                f"cache directory {directory.path}: the limit is {limit_bytes} bytes, but {account.occupied} are "
                f"held by open files and downloads, and {blob.name!r} needs {blob.peak_nbytes} more; nothing was "
                f"released for {now - since:.0f} s; raise cache_limit="
            )
        else:
            stands_still = now - since > timeout_s
        beat()
        pause(interval)
        interval = min(_LONGEST_POLL_S, interval * 1.5)


@dataclass(frozen=True, slots=True)
class _Account:
    """What occupies a cache directory: finished files of ours by name, and the downloads in flight."""

    names: frozenset[str]
    finished: int
    in_flight: int

    @property
    def occupied(self) -> int:
        return self.finished + self.in_flight


def _may_begin(
    directory: CacheDirectory, account: _Account, nbytes: int, limit_bytes: int, *, stands_still: bool
) -> bool:
    """Whether a download of ``nbytes`` may begin now, in the limit or as this process's one file beyond it."""
    if account.occupied + nbytes <= limit_bytes:
        return True
    if account.finished + nbytes <= limit_bytes and not stands_still:
        return False  # downloads end by themselves, and what they brought may be evicted then
    if account.occupied <= limit_bytes:
        return not directory.extra_in_flight()
    return directory.extra not in account.names and not directory.extra_in_flight()


def _names(blob: Blob) -> set[str]:
    return {blob.name, blob.source} if blob.keep_source else {blob.name}


def trim(
    directory: CacheDirectory, blob: Blob, limit_bytes: int, next_use: Callable[[str], float | None] | None
) -> None:
    """Delete what an earlier run with a higher limit left; not ``blob``, and nothing that is held."""
    with directory.room():
        _shrink(directory, limit_bytes, next_use, _names(blob))


def _shrink(
    directory: CacheDirectory,
    goal_nbytes: int,
    next_use: Callable[[str], float | None] | None,
    keep: set[str],
) -> _Account:
    """Evict until at most ``goal_nbytes`` are occupied, or all else is held; what is left then."""
    entries = directory.entries()
    in_flight = directory.reserved()
    finished = sum(entry.nbytes for entry in entries)
    left = {entry.name for entry in entries}
    for entry in plan_eviction([entry for entry in entries if entry.name not in keep], next_use):
        if finished + in_flight <= goal_nbytes:
            break
        if evict(directory, entry.name):
            finished -= entry.nbytes
            left.discard(entry.name)
    return _Account(frozenset(left), finished, in_flight)


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
        try:
            path.unlink()
        except PermissionError:
            return False  # another user's, in a directory with the sticky bit
        directory.forget(name)
    finally:
        os.close(descriptor)
    return True

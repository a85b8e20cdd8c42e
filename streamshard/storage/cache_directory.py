"""What lies in a cache directory, which of it is ours, and who is at work in it.

    DIR/<name>                        finished files; complete from the moment they are there
    DIR/.streamshard/locks/<name>.lock    held while one process fetches <name>; its mtime is the heartbeat
    DIR/.streamshard/written/<name>.json  marker of a file that we wrote: digest, size and mtime when checked
    DIR/.streamshard/adopted/<name>.json  the same for a file that we found: used, but never deleted
    DIR/.streamshard/alive/<token>    locked as long as a process lives that fetches
    DIR/.streamshard/jobs/<token>.<number>.<bytes>/   one download in flight and the room that it needs
    DIR/.streamshard/room.lock        held for moments: publishing and making room

A process killed at any moment leaves at most a job directory and an unlocked alive file, which the next user
removes.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import multiprocessing.util
import os
import secrets
import shutil
import stat
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from streamshard.errors import StorageError
from streamshard.storage.cancel import pause
from streamshard.storage.eviction import CachedEntry
from streamshard.storage.locks import FileLock, LocksUnsupportedError
from streamshard.storage.store import check_key, is_temporary, make_below

HIDDEN = ".streamshard"

# Without locks nobody can tell whether a download's process lives, so its leftovers are kept for a day.
_LEFTOVER_AGE_S = 86_400.0
_LONGEST_ROOM_WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Marker:
    """What was true of a cached file when it was last checked."""

    digest: str
    nbytes: int
    mtime_ns: int


class CacheDirectory:
    """One cache directory, as seen by this process. Thread-safe. Shared by all its caches in the process."""

    def __init__(self, directory: Path) -> None:
        self.path = directory
        self.hidden = directory / HIDDEN
        # The name of the file that this process was last allowed to bring in beyond the limit.
        self.extra: str | None = None
        self.extra_job: Path | None = None
        self._numbers = itertools.count()
        self._starting = threading.Lock()
        self._token: str | None = None
        self._alive: FileLock | None = None

    def path_of(self, name: str) -> Path:
        """The path of the file ``name``; StorageError if it would lie elsewhere or among our own files."""
        check_key(name, str(self.path))
        first, *inner = name.split("/")
        # Some file systems, as of macOS, take upper and lower case for the same.
        if first.casefold() == HIDDEN or is_temporary(name):
            raise StorageError(f"{self.path}: the name {name!r} is kept for the cache's own files")
        place = self.path
        for part in [first, *inner][:-1]:
            place = place / part
            self._refuse_link(place)
        return self.path / name

    def make(self, directory: Path) -> None:
        """Create ``directory`` in the cache; StorageError saying what to do where that cannot be."""
        self._refuse_link(self.hidden)
        try:
            if not self.path.exists():
                # For this user alone; one that is to be shared is made by whoever shares it.
                self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            make_below(self.path, directory)
        except OSError as error:
            raise self.unusable(error) from error

    def file_mode(self) -> int:
        """The permissions of a file in the cache: its owner's, and what the directory lets others do.

        Who may write to a directory may replace what is in it; writing to it too is what locks of others need.
        """
        return 0o600 | (self.path.stat().st_mode & 0o066)

    def _lock(self, path: Path) -> FileLock:
        return FileLock(path, place=self.path, mode=self.file_mode())

    def refuse_links(self, place: Path) -> None:
        """Raise StorageError if a directory in the cache, or one between, is a link."""
        while place != self.path and self.path in place.parents:
            self._refuse_link(place)
            place = place.parent

    def _refuse_link(self, place: Path) -> None:
        try:
            is_link = place.is_symlink()
        except OSError as error:  # a directory above may not be entered
            raise self.unusable(error) from error
        if is_link:
            raise StorageError(
                f"{place}: is a symbolic link; links inside a cache directory are not followed"
            )

    def unusable(self, error: BaseException, needed: int | None = None) -> StorageError:
        """The error for a directory that cannot be used, or whose disk is full."""
        try:
            free = f"{shutil.disk_usage(self.path).free} bytes free"
            if needed is not None:
                free += f", {needed} needed"
        except OSError:
            free = "not reachable"
        return StorageError(
            f"cache directory {self.path}: cannot be written ({error}; {free}); "
            "make it writable, make room, set cache_limit=, choose another directory with local= or STREAMSHARD_CACHE, "
            "or none with cache='memory'"
        )

    def lock_for(self, name: str) -> FileLock:
        """The lock that the process fetching ``name`` holds."""
        path = self._inside("locks", name, ".lock")
        self.make(path.parent)
        try:
            return self._lock(path)
        except OSError as error:
            raise self.unusable(error) from error

    @contextlib.contextmanager
    def room(self) -> Iterator[None]:
        """Be alone with the accounts of this directory. Never waits for long: holders do little."""
        self.make(self.hidden)
        try:
            lock = self._lock(self.hidden / "room.lock")
        except OSError as error:
            raise self.unusable(error) from error
        try:
            self._wait_for_room(lock)
            yield
        finally:
            lock.close()

    def _wait_for_room(self, lock: FileLock) -> None:
        deadline = time.monotonic() + _LONGEST_ROOM_WAIT_S
        interval = 0.001
        try:
            while not lock.try_acquire():
                if time.monotonic() > deadline:
                    return  # its holder is stopped, not dead: accounts may be off by a file
                pause(interval)
                interval = min(0.02, interval * 2)
        except LocksUnsupportedError:
            return

    def read_marker(self, name: str) -> tuple[Marker | None, bool]:
        """The marker of ``name``, if there is a readable one, and whether we wrote that file."""
        for kind in ("written", "adopted"):
            try:
                text = self._inside(kind, name, ".json").read_bytes()
            except OSError:
                continue
            try:
                fields = json.loads(text)
                return Marker(
                    str(fields["digest"]), int(fields["nbytes"]), int(fields["mtime_ns"])
                ), kind == "written"
            except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
                # Its place says whose the file is even where its text is damaged.
                return Marker("", -1, -1), kind == "written"
        return None, False

    def write_marker(self, name: str, marker: Marker, *, written: bool) -> None:
        """Replace the marker of ``name`` in one step."""
        path = self._inside("written" if written else "adopted", name, ".json")
        text = json.dumps({"digest": marker.digest, "nbytes": marker.nbytes, "mtime_ns": marker.mtime_ns})
        make_below(self.path, path.parent)
        temporary = path.with_name(f"{secrets.token_hex(8)}.tmp")
        try:
            temporary.write_text(text, "utf-8")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        if written:
            self._inside("adopted", name, ".json").unlink(missing_ok=True)

    def forget(self, name: str) -> None:
        """Remove the markers of ``name``."""
        for kind in ("written", "adopted"):
            self._inside(kind, name, ".json").unlink(missing_ok=True)

    def mark_used(self, name: str) -> None:
        """Note that ``name`` was used now. Without effect in a directory that cannot be written."""
        with contextlib.suppress(OSError):
            os.utime(self._inside("written", name, ".json"))

    def entries(self) -> list[CachedEntry]:
        """All finished files here that we wrote."""
        found = []
        top = self.hidden / "written"
        for folder, _, names in os.walk(top):
            for marker_name in names:
                if not marker_name.endswith(".json"):
                    continue
                marker = Path(folder) / marker_name
                name = marker.relative_to(top).as_posix().removesuffix(".json")
                with contextlib.suppress(OSError):
                    status = (self.path / name).lstat()
                    if stat.S_ISREG(status.st_mode):
                        found.append(CachedEntry(name, status.st_size, marker.stat().st_mtime_ns))
        return found

    def begin_job(self, nbytes: int) -> Path:
        """Make a private directory for one download that will need ``nbytes`` on the disk."""
        token = self._start()
        job = self.hidden / "jobs" / f"{token}.{next(self._numbers)}.{nbytes}"
        self.make(job)
        return job

    def end_job(self, job: Path) -> None:
        """Remove a job's directory and all that is in it."""
        shutil.rmtree(job, ignore_errors=True)

    def reserved(self) -> int:
        """Bytes that the downloads in flight of all processes need, dead ones removed first."""
        return sum(nbytes for _, nbytes in self.sweep())

    def extra_in_flight(self) -> bool:
        """Whether this process is still fetching the file that it was allowed beyond the limit."""
        return self.extra_job is not None and self.extra_job.exists()

    def sweep(self) -> list[tuple[Path, int]]:
        """Remove what dead processes left; return the jobs of the living with their bytes."""
        living: list[tuple[Path, int]] = []
        alive_of: dict[str, bool] = {}
        # Jobs are listed before their processes are looked at: a process locks its alive file before its
        # first job.
        for job in _listed(self.hidden / "jobs"):
            token, _, rest = job.name.partition(".")
            nbytes = rest.rpartition(".")[2]
            if token not in alive_of:
                alive_of[token] = self._is_alive(token, job)
            if alive_of[token]:
                living.append((job, int(nbytes) if nbytes.isdecimal() else 0))
            else:
                shutil.rmtree(job, ignore_errors=True)
        for alive in _listed(self.hidden / "alive"):
            if alive.name not in alive_of:
                self._is_alive(alive.name, alive)
        return living

    def _is_alive(self, token: str, leftover: Path) -> bool:
        """Whether the process of ``token`` lives. Removes its alive file if not."""
        path = self.hidden / "alive" / token
        if not path.exists():
            return False
        try:
            lock = self._lock(path)
        except OSError:
            return True  # another user's, or going at this moment
        try:
            if not lock.try_acquire():
                return True
            path.unlink(missing_ok=True)
        except LocksUnsupportedError:
            with contextlib.suppress(OSError):
                return time.time() - leftover.stat().st_mtime < _LEFTOVER_AGE_S
        finally:
            lock.close()
        return False

    def _start(self) -> str:
        """Show that this process is at work here, as long as it lives; clean up after others once."""
        with self._starting:
            if self._token is not None:
                return self._token
            self.make(self.hidden / "alive")
            while self._token is None:
                token = secrets.token_hex(8)
                path = self.hidden / "alive" / token
                try:
                    lock = self._lock(path)
                    ours = _try_own(lock)
                except OSError as error:
                    raise self.unusable(error) from error
                # Between making and locking it, a sweep may have taken it for a dead process's.
                if ours and lock.is_linked_at(path):
                    self._token, self._alive = token, lock
                    stop = weakref.finalize(self, _stop, lock, path, os.getpid())
                    # Child processes of multiprocessing end without running the finalizers of weakref.
                    multiprocessing.util.Finalize(self, stop, exitpriority=0)
                else:
                    lock.close()
            self.sweep()
            return self._token

    def _inside(self, kind: str, name: str, suffix: str) -> Path:
        return self.hidden / kind / f"{name}{suffix}"


def _try_own(lock: FileLock) -> bool:
    try:
        return lock.try_acquire()
    except LocksUnsupportedError:
        return True


def _listed(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []


def _stop(lock: FileLock, path: Path, pid: int) -> None:
    if os.getpid() == pid:
        with contextlib.suppress(OSError):
            path.unlink()
    lock.close()


_shared: weakref.WeakValueDictionary[str, CacheDirectory] = weakref.WeakValueDictionary()
_sharing = threading.Lock()


def _forget_parents() -> None:
    global _shared, _sharing
    _shared = weakref.WeakValueDictionary()
    _sharing = threading.Lock()


os.register_at_fork(after_in_child=_forget_parents)


def shared_directory(directory: Path) -> CacheDirectory:
    """The one CacheDirectory of this process for ``directory``, whose own links are resolved."""
    try:
        real = directory.expanduser().resolve()
    except (OSError, RuntimeError) as error:
        raise StorageError(
            f"cache directory {directory}: cannot be found ({error}); give a full path with local="
        ) from error
    with _sharing:
        found = _shared.get(str(real))
        if found is None:
            found = _shared[str(real)] = CacheDirectory(real)
        return found

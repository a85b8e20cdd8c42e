"""The node cache: a directory of whole, checked files that all processes of a node share.

A file appears by rename, once it is complete and checked. One process downloads it, holding the lock on that
file's lock file; the others wait as long as they see it getting on. Killing any process at any moment leaves
nothing that has to be cleaned by hand. See ``cache_directory`` for what lies where.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from streamshard.errors import CacheTooSmallError, ChecksumError, FormatError, StorageError
from streamshard.storage.blob import Blob, CachedFile, identity, is_there, open_regular, set_aside
from streamshard.storage.cache_directory import CacheDirectory, Marker, shared_directory
from streamshard.storage.failures import disk_error
from streamshard.storage.locks import LocksUnsupportedError, same_file, try_lock
from streamshard.storage.retry import RetryPolicy, call_with_retry
from streamshard.storage.room import make_room, trim
from streamshard.storage.store import Store, check_size
from streamshard.storage.turn import Heartbeat, Turn, wait_for_turn

__all__ = ["Blob", "CachedFile", "NodeCache"]

logger = logging.getLogger(__name__)

# A file that is deleted again and again before it can be opened: the limit is being fought over.
_MOST_LOST_RACES = 1000


class NodeCache:
    """Files of one store, kept in a directory that any number of processes share. Thread-safe and picklable.

    Args:
        directory: where the files go; created when the first one is fetched.
        store: where they come from.
        digest: of the index that names the files. Files cached under another digest are kept if their
            ``check`` passes, else fetched anew.
        retry: tries after a wrong checksum; ``retry.timeout_s`` is also how long another process's download
            may stand still before this one makes its own.
        limit_bytes: most bytes of ours in the directory: finished files, kept sources, downloads in flight.
            One download of each process may pass it where readers hold everything else. None: no limit.
        next_use: for evicting with knowledge of the future, see ``plan_eviction``.
    """

    is_shared = True

    def __init__(
        self,
        directory: Path,
        store: Store,
        *,
        digest: str,
        retry: RetryPolicy | None = None,
        limit_bytes: int | None = None,
        next_use: Callable[[str], float | None] | None = None,
    ) -> None:
        if limit_bytes is not None and limit_bytes < 0:
            raise ValueError(f"limit_bytes={limit_bytes!r}: must not be negative")
        self.directory = directory if isinstance(directory, Path) else Path(directory)
        self.place = f"cache directory {self.directory}"
        self.store = store
        self.digest = digest
        self.retry = retry or RetryPolicy()
        self.limit_bytes = limit_bytes
        self.next_use = next_use
        self._trimmed_by = -1
        self._here: tuple[int, CacheDirectory] | None = None
        # What this process has seen to be good: (device, inode, size, mtime) by name.
        self._seen: dict[str, tuple[int, int, int, int]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_here": None, "_seen": {}, "_trimmed_by": -1}

    def ensure(self, blob: Blob) -> Path:
        """Return the path of a complete and checked local copy, fetched if need be. Blocks.

        With a limit it may be evicted once this returns; ``open`` holds it.

        Raises:
            CacheTooSmallError: the limit is below this file, or readers hold so much that there is no room.
            ChecksumError: still the wrong content after all attempts.
            BlobNotFoundError, AccessDeniedError, StorageError: it could not be fetched or stored.
        """
        os.close(self._acquire(blob))
        return self._directory().path_of(blob.name)

    def open(self, blob: Blob) -> CachedFile:
        """``ensure``, and hold the file until the result is closed."""
        directory = self._directory()
        # Somebody's at once, so that an interrupt leaves no lock on the file behind.
        cached = CachedFile(directory.path_of(blob.name), self._acquire(blob))
        directory.mark_used(blob.name)
        return cached

    def present(self, blob: Blob) -> bool:
        """Whether ``ensure`` would return at once: the file is here and was checked under this digest."""
        descriptor = self._open_good(blob)
        if descriptor is None:
            return False
        os.close(descriptor)
        return True

    def has_file(self, blob: Blob) -> bool:
        """Whether a file of that name and size is here, checked or not."""
        try:
            return self._directory().path_of(blob.name).lstat().st_size == blob.nbytes
        except OSError:
            return False

    def _directory(self) -> CacheDirectory:
        here = self._here
        if here is None or here[0] != os.getpid():
            here = self._here = (os.getpid(), shared_directory(self.directory))
        return here[1]

    def _acquire(self, blob: Blob) -> int:
        """The open descriptor of the good file, share-locked so that it stays."""
        if self.limit_bytes is not None and blob.resident_nbytes > self.limit_bytes:
            raise CacheTooSmallError(
                f"cache directory {self.directory}: the limit is {self.limit_bytes} bytes, "
                f"but {blob.name!r} alone needs {blob.resident_nbytes}; raise cache_limit="
            )
        if self.limit_bytes is not None and self._trimmed_by != os.getpid():
            self._trimmed_by = os.getpid()
            if is_there(self._directory().hidden / "written"):
                with contextlib.suppress(StorageError):  # a read-only directory is still good to read from
                    trim(self._directory(), blob, self.limit_bytes, self.next_use)
        for _ in range(_MOST_LOST_RACES):
            descriptor = self._open_good(blob)
            if descriptor is None:
                descriptor = self._obtain(blob)
            if descriptor is not None:
                return descriptor
        raise StorageError(
            f"cache directory {self.directory}: {blob.name!r} was deleted {_MOST_LOST_RACES} times before it "
            "could be opened; does another program delete files here?"
        )

    def _open_good(self, blob: Blob) -> int | None:
        """Open the cached file if an earlier check vouches for it; None if not, or if it is going."""
        directory = self._directory()
        path = directory.path_of(blob.name)
        descriptor = open_regular(path)
        if descriptor is None:
            return None
        status = os.fstat(descriptor)
        good = False
        try:
            good = (
                status.st_size == blob.nbytes
                and self._vouched(directory, blob.name, status)
                and self._hold(directory, descriptor, path)
            )
        finally:
            if not good:
                os.close(descriptor)
        return descriptor if good else None

    def _vouched(self, directory: CacheDirectory, name: str, status: os.stat_result) -> bool:
        """Whether the file is the one that was checked, here or by another process under this digest."""
        if self._seen.get(name) == identity(status):
            return True
        marker, _ = directory.read_marker(name)
        if marker != Marker(self.digest, status.st_size, status.st_mtime_ns):
            return False
        self._seen[name] = identity(status)
        return True

    def _hold(self, directory: CacheDirectory, descriptor: int, path: Path) -> bool:
        """Lock an open file against eviction; False if it is being deleted or has been replaced."""
        try:
            if not try_lock(descriptor, shared=True, place=directory.path):
                return False
        except LocksUnsupportedError:
            pass
        return same_file(descriptor, path)

    def _obtain(self, blob: Blob) -> int | None:
        """Be the one who fetches the file, or wait for the one who does; None: look for it again."""
        directory = self._directory()
        try:
            lock = directory.lock_for(blob.name)
        except StorageError:
            # A directory that somebody filled and made read-only is still good to read from.
            descriptor = self._vouch(directory, blob)
            if descriptor is None:
                raise
            return descriptor
        try:
            turn = wait_for_turn(
                lock, blob.name, is_present=lambda: self.present(blob), timeout_s=self.retry.timeout_s
            )
            descriptor = self._open_good(blob)
            if descriptor is None and turn is not Turn.PUBLISHED:
                descriptor = self._vouch(directory, blob)
            if descriptor is not None or turn is Turn.PUBLISHED:
                return descriptor
            return self._fetch(directory, blob, Heartbeat(lock if turn is Turn.MINE else None))
        finally:
            lock.close()

    def _vouch(self, directory: CacheDirectory, blob: Blob) -> int | None:
        """Check a file that is there but for which no marker of this digest speaks. A bad one is put away."""
        path = directory.path_of(blob.name)
        descriptor = open_regular(path)
        marker, written = directory.read_marker(blob.name)
        if descriptor is None:
            if is_there(path):
                with directory.room():
                    set_aside(path)
            return None
        kept = False
        try:
            status = os.fstat(descriptor)
            if not self._hold(directory, descriptor, path):
                return None  # it is being deleted or was replaced this moment
            kept = self._is_right(blob, path, status, marker)
            if kept:
                with contextlib.suppress(OSError):  # a read-only directory is still good to read from
                    directory.write_marker(
                        blob.name, Marker(self.digest, status.st_size, status.st_mtime_ns), written=written
                    )
                self._seen[blob.name] = identity(status)
                return descriptor
            with directory.room():
                if same_file(descriptor, path):
                    if written:
                        path.unlink()
                    else:
                        set_aside(path)
                    directory.forget(blob.name)
            return None
        finally:
            if not kept:
                os.close(descriptor)

    def _is_right(self, blob: Blob, path: Path, status: os.stat_result, marker: Marker | None) -> bool:
        if status.st_size != blob.nbytes:
            logger.warning(
                "%s: %d bytes in the cache, expected %d; fetching it anew", path, status.st_size, blob.nbytes
            )
            return False
        if blob.check is None:
            # Nothing can tell the content. A file that is known to belong to another index is not trusted.
            return marker is None or marker.digest == self.digest
        try:
            blob.check(path)
        except FormatError as error:
            logger.warning("%s: not what the index says (%s); fetching it anew", path, error)
            return False
        return True

    def _fetch(self, directory: CacheDirectory, blob: Blob, heart: Heartbeat) -> int:
        job = make_room(
            directory,
            blob,
            limit_bytes=self.limit_bytes,
            next_use=self.next_use,
            timeout_s=self.retry.timeout_s,
            beat=heart.beat,
        )
        try:
            what = f"fetch {self.store.url}/{blob.source} into {directory.path}"
            finished = call_with_retry(
                lambda: self._download(directory, blob, job, heart), self.retry, what=what
            )
            return self._publish(directory, blob, job, finished)
        except OSError as error:
            cause = disk_error(error)
            if cause is None and isinstance(error, StorageError):
                raise
            raise directory.unusable(cause or error, blob.peak_nbytes) from error
        finally:
            directory.end_job(job)

    def _download(self, directory: CacheDirectory, blob: Blob, job: Path, heart: Heartbeat) -> Path:
        """Bring ``blob`` into the job's directory, complete and checked; again after a bad checksum."""
        source, finished = job / "source", job / "finished"
        for leftover in (source, finished):
            leftover.unlink(missing_ok=True)
        if not (
            blob.keep_source and blob.unpack is not None and self._take_kept_source(directory, blob, source)
        ):
            self.store.fetch_to(blob.source, source, progress=heart.beat, nbytes=blob.source_nbytes)
        where = f"{self.store.url}/{blob.source}"
        check_size(source.stat().st_size, blob.source_nbytes, f"fetch {where}")
        heart.beat()
        if blob.check_source is not None:
            blob.check_source(source)
        if blob.unpack is None:
            source.replace(finished)
        else:
            blob.unpack(source, finished)
            heart.beat()
        check_size(finished.stat().st_size, blob.nbytes, f"unpack {where}")
        if blob.check is not None:
            blob.check(finished)
        return finished

    def _take_kept_source(self, directory: CacheDirectory, blob: Blob, target: Path) -> bool:
        """Use the source that an earlier fetch left here, if it is still the right one."""
        kept = directory.path_of(blob.source)
        marker, written = directory.read_marker(blob.source)
        descriptor = open_regular(kept)
        if descriptor is None:
            return False
        try:
            status = os.fstat(descriptor)
            known = marker == Marker(self.digest, status.st_size, status.st_mtime_ns)
            if not written or status.st_size != blob.source_nbytes:
                return False
            if not known and blob.check_source is None:
                return False
            if not known and blob.check_source is not None:
                blob.check_source(kept)
            os.link(kept, target)
        except (ChecksumError, OSError):
            return False  # downloaded instead
        finally:
            os.close(descriptor)
        return True

    def _publish(self, directory: CacheDirectory, blob: Blob, job: Path, finished: Path) -> int:
        """Give the finished file its name, held for this process from the first moment on."""
        path = directory.path_of(blob.name)
        directory.make(path.parent)
        descriptor = os.open(finished, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            with contextlib.suppress(LocksUnsupportedError):
                try_lock(descriptor, shared=True, place=directory.path)
            os.fsync(descriptor)
            with directory.room():
                if blob.unpack is not None and blob.keep_source:
                    self._publish_source(directory, blob, job / "source")
                self._name_file(directory, blob.name, finished)
            self._seen[blob.name] = identity(os.fstat(descriptor))
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _publish_source(self, directory: CacheDirectory, blob: Blob, source: Path) -> None:
        path = directory.path_of(blob.source)
        directory.make(path.parent)
        _, written = directory.read_marker(blob.source)
        if written or not is_there(path):
            self._name_file(directory, blob.source, source)

    def _name_file(self, directory: CacheDirectory, name: str, finished: Path) -> None:
        # The marker comes first: killed in between, a marker without its file harms nobody, but a file
        # without a marker would count as somebody else's for ever.
        finished.chmod(directory.file_mode())
        status = finished.lstat()
        directory.write_marker(name, Marker(self.digest, status.st_size, status.st_mtime_ns), written=True)
        finished.replace(directory.path_of(name))

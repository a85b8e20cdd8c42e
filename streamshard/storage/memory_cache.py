"""A cache that touches no disk: whole, checked files in anonymous memory of one process.

Where nothing may be written, such as in a container whose file system is read-only. Nothing is shared between
processes, so each of them fetches what it needs; a directory on a tmpfs serves all processes of a node.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from streamshard.errors import CacheTooSmallError, StorageError
from streamshard.storage.blob import Blob, CachedFile
from streamshard.storage.cancel import check_cancelled
from streamshard.storage.eviction import CachedEntry, plan_eviction
from streamshard.storage.retry import RetryPolicy, call_with_retry
from streamshard.storage.store import Store, check_size

DEFAULT_LIMIT_NBYTES = 2 << 30
"""Bytes that one process keeps where no limit is given."""

# How long a fetch that waits for room sleeps at most before it looks whether it was called off.
_LOOK_S = 0.1
# Read at once; more would lie in memory twice.
_STEP_NBYTES = 16 << 20


class _Caller:
    """One that fetches."""


@dataclass
class _Held:
    """What one process keeps."""

    pid: int = field(default_factory=os.getpid)
    # Taken by itself, by one step of the interpreter: a condition's own ``with`` can be interrupted inside.
    lock: Any = field(default_factory=threading.RLock)
    # By name: descriptor, bytes, time of last use.
    files: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    # Bytes that fetches under way need, and whose they are, by name. What an interrupt has left here is nobody's.
    under_way: dict[str, tuple[int, weakref.ref[_Caller]]] = field(default_factory=dict)
    changed: threading.Condition = field(init=False)

    def __post_init__(self) -> None:
        self.changed = threading.Condition(self.lock)


class MemoryCache:
    """Files of one store in the memory of this process; each process has its own. Thread-safe and picklable.

    It has what ``NodeCache`` has: ``ensure``, ``open``, ``has_file``. Files are anonymous (``memfd_create``), so the
    system frees them with the process, however that ends.

    Args:
        store: where they come from.
        retry: tries after a wrong checksum; ``retry.timeout_s`` is also how long a fetch waits for room.
        limit_bytes: most bytes of files that are kept or being fetched; those that are open when they are given up
            are freed when they are closed. None: ``DEFAULT_LIMIT_NBYTES``.
        next_use: for evicting with knowledge of the future, see ``plan_eviction``.

    Raises:
        StorageError: the system has no anonymous files.
    """

    is_shared = False

    def __init__(
        self,
        store: Store,
        *,
        retry: RetryPolicy | None = None,
        limit_bytes: int | None = None,
        next_use: Callable[[str], float | None] | None = None,
    ) -> None:
        if not hasattr(os, "memfd_create"):
            raise StorageError("cache='memory' needs Linux; name a directory on a disk in memory with local=")
        self.store = store
        self.place = f"cache in memory for {store.url}"
        self.retry = retry or RetryPolicy()
        self.limit_bytes = DEFAULT_LIMIT_NBYTES if limit_bytes is None else limit_bytes
        self.next_use = next_use
        self._held: _Held | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": None}

    def ensure(self, blob: Blob) -> None:
        """Fetch a file, complete and checked, unless it is here. Blocks.

        Raises:
            CacheTooSmallError: the limit is below this file, or others' fetches leave no room.
            ChecksumError: still the wrong content after all attempts.
            BlobNotFoundError, AccessDeniedError, StorageError: it could not be fetched.
        """
        self.open(blob).close()

    def open(self, blob: Blob) -> CachedFile:
        """``ensure``, and keep the file's bytes until the result is closed."""
        held = self._here()
        # Held on to until the file is open: another thread may need its room.
        caller = _Caller()
        try:
            with held.lock:
                if not self._begin(held, blob, caller):
                    descriptor, nbytes, _ = held.files[blob.name]
                    held.files[blob.name] = (descriptor, nbytes, time.monotonic_ns())
                    return _opened(blob, descriptor)
            descriptor = self._fetch(blob)
            with held.lock:
                held.files[blob.name] = (descriptor, blob.nbytes, time.monotonic_ns())
                return _opened(blob, descriptor)
        finally:
            with held.lock:
                if blob.name in held.under_way and held.under_way[blob.name][1]() is caller:
                    del held.under_way[blob.name]
                    held.changed.notify_all()

    def has_file(self, blob: Blob) -> bool:
        """Whether the file is here."""
        return blob.name in self._here().files

    def close(self) -> None:
        """Give up all files. May be called twice."""
        held, self._held = self._held, None
        if held is not None:
            with held.lock if held.pid == os.getpid() else contextlib.nullcontext():
                for descriptor, _, _ in held.files.values():
                    os.close(descriptor)
                held.files.clear()

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):  # half made, or at the interpreter's end
            self.close()

    def _here(self) -> _Held:
        held = self._held
        if held is None or held.pid != os.getpid():
            self.close()  # a parent's, whose locks may be held by threads that a fork has left behind
            held = self._held = _Held()
        return held

    def _begin(self, held: _Held, blob: Blob, caller: _Caller) -> bool:
        """Wait until the file is here (False), or until this caller may fetch it (True). ``held.lock`` is held."""
        limit = self.limit_bytes
        if blob.peak_nbytes > limit:
            raise CacheTooSmallError(
                f"{self.place}: the limit is {limit} bytes, but {blob.name!r} alone needs {blob.peak_nbytes}; "
                "raise cache_limit="
            )
        since = time.monotonic()
        while True:
            check_cancelled()
            if blob.name in held.files:
                return False
            for name, (_, owner) in list(held.under_way.items()):
                if owner() is None:
                    del held.under_way[name]
            if blob.name not in held.under_way:
                others = sum(nbytes for nbytes, _ in held.under_way.values())
                if others + blob.peak_nbytes <= limit:
                    self._shrink(held, limit - others - blob.peak_nbytes)
                    held.under_way[blob.name] = (blob.peak_nbytes, weakref.ref(caller))
                    return True
                if time.monotonic() - since > self.retry.timeout_s:
                    raise CacheTooSmallError(
                        f"{self.place}: the limit is {limit} bytes, {others} are being fetched, and {blob.name!r} "
                        f"needs {blob.peak_nbytes} more; raise cache_limit="
                    )
            held.changed.wait(_LOOK_S)

    def _shrink(self, held: _Held, goal_nbytes: int) -> None:
        entries = [CachedEntry(name, nbytes, used) for name, (_, nbytes, used) in held.files.items()]
        kept = sum(entry.nbytes for entry in entries)
        for entry in plan_eviction(entries, self.next_use):
            if kept <= goal_nbytes:
                return
            os.close(held.files.pop(entry.name)[0])
            kept -= entry.nbytes

    def _fetch(self, blob: Blob) -> int:
        what = f"fetch {self.store.url}/{blob.source} into memory"
        return call_with_retry(lambda: self._download(blob), self.retry, what=what)

    def _download(self, blob: Blob) -> int:
        """The descriptor of a new anonymous file with the blob's content, checked."""
        where = f"{self.store.url}/{blob.source}"
        check_size(self.store.size(blob.source), blob.source_nbytes, f"fetch {where}")
        source = os.memfd_create("streamshard")
        try:
            with open(source, "wb", closefd=False) as file:
                for begin in range(0, blob.source_nbytes, _STEP_NBYTES):
                    end = min(blob.source_nbytes, begin + _STEP_NBYTES)
                    file.write(self.store.read_range(blob.source, begin, end))
            if blob.check_source is not None:
                blob.check_source(_path_of(source))
            if blob.unpack is not None:
                packed, source = source, os.memfd_create("streamshard")
                try:
                    blob.unpack(_path_of(packed), _path_of(source))
                finally:
                    os.close(packed)
            check_size(os.fstat(source).st_size, blob.nbytes, f"unpack {where}")
            if blob.check is not None:
                blob.check(_path_of(source))
        except BaseException:
            os.close(source)
            raise
        return source


def _path_of(descriptor: int) -> Path:
    return Path(f"/proc/self/fd/{descriptor}")


def _opened(blob: Blob, descriptor: int) -> CachedFile:
    # A descriptor of its own, so that giving the file up does not take it from its reader.
    return CachedFile(Path(blob.name), os.dup(descriptor))

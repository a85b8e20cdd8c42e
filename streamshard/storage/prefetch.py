"""Fetching ahead in threads, in the order of need, with bounded bytes between fetched and used up."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import threading
import time
import weakref
from collections.abc import Callable

from streamshard.errors import StorageError
from streamshard.storage.blob import Blob
from streamshard.storage.cancel import Cancellation, FetchCancelled, use_cancellation

# How long close() waits for threads whose fetch does not obey at once, such as one that hashes a large file.
_JOIN_S = 5.0


class Prefetcher:
    """Brings blobs to this node before they are needed. Thread-safe; not for use across a fork.

    Args:
        fetch: brings one blob; ``NodeCache.ensure``.
        threads: most fetches at once, at least 1.
        ahead_bytes: most bytes (finished sizes) that are fetched or being fetched and not yet done with. One
            blob is always allowed, and so is one that ``wait`` asks for.
    """

    def __init__(self, fetch: Callable[[Blob], object], *, threads: int, ahead_bytes: int) -> None:
        if threads < 1:
            raise ValueError(f"threads={threads!r}: expected at least 1")
        if ahead_bytes < 0:
            raise ValueError(f"ahead_bytes={ahead_bytes!r}: must not be negative")
        self._work = _Work(fetch, ahead_bytes)
        self._num_threads = threads
        self._threads: list[threading.Thread] = []
        self._pid = os.getpid()
        # Threads keep only the work alive, so that a prefetcher which nobody closed still ends with its
        # owner.
        self._finalizer = weakref.finalize(self, _stop, self._work, self._pid)

    def want(self, key: int, blob: Blob) -> None:
        """Ask for ``blob`` after everything wanted before. A key that is already wanted is left as it is."""
        self._check_process()
        with self._work.changed:
            self._work.add(key, blob)
            if len(self._threads) < min(self._num_threads, self._work.num_wanted):
                thread = threading.Thread(target=self._work.run, name="streamshard-prefetch", daemon=True)
                self._threads.append(thread)
                thread.start()

    def wait(self, key: int) -> None:
        """Block until the blob of ``key`` is local.

        Raises:
            the error, in its own type, of the fetch that failed, be it this key's or one's that was wanted before
            it. What was wanted before the failed one is still brought, what was wanted after it no more.
            StorageError: the key is not wanted, or the prefetcher has been closed.
        """
        self._check_process()
        self._work.wait(key)

    def done_with(self, key: int) -> None:
        """Take the blob of ``key`` off the account; one that was not begun is not fetched any more.

        Done with the one that failed, its error is forgotten.
        """
        self._work.drop(key)

    def close(self) -> None:
        """End all fetching and its threads. May be called twice."""
        if self._pid != os.getpid():
            return  # the threads live in the parent
        self._finalizer()
        deadline = time.monotonic() + _JOIN_S
        for thread in self._threads:
            if thread is not threading.current_thread():
                with contextlib.suppress(RuntimeError):  # one whose start was interrupted
                    thread.join(max(0.0, deadline - time.monotonic()))
        self._threads.clear()

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise StorageError("a Prefetcher was used after a fork, which has no threads; make one here")


def _stop(work: _Work, pid: int) -> None:
    """End the work of an owner that is gone; in a forked child its threads, and who held its locks, are not there."""
    if pid == os.getpid():
        work.stop()


class _Work:
    """What is wanted, under way and done; shared by the owner and the threads."""

    def __init__(self, fetch: Callable[[Blob], object], ahead_bytes: int) -> None:
        self.changed = threading.Condition()
        self._fetch = fetch
        self._ahead_bytes = ahead_bytes
        self._cancellation = Cancellation()
        # All in the order of wanting: a dict keeps it.
        self._pending: dict[int, Blob] = {}
        self._running: dict[int, Blob] = {}
        self._local: dict[int, Blob] = {}
        self._urgent: dict[int, int] = {}
        self._dropped: set[int] = set()
        self._places: dict[int, int] = {}
        self._errors: dict[int, BaseException] = {}
        self._numbers = itertools.count()
        self._stopped = False

    @property
    def num_wanted(self) -> int:
        return len(self._pending) + len(self._running) + len(self._local)

    def add(self, key: int, blob: Blob) -> None:
        """Put ``key`` at the end of the queue. Call with ``changed`` held."""
        if self._stopped:
            raise StorageError("a Prefetcher was asked for a file after it had been closed")
        self._dropped.discard(key)
        self._places.setdefault(key, next(self._numbers))
        if key in self._errors:
            return
        if key not in self._running and key not in self._local:
            self._pending.setdefault(key, blob)
        self.changed.notify_all()

    def wait(self, key: int) -> None:
        with self.changed:
            self._urgent[key] = self._urgent.get(key, 0) + 1
            self.changed.notify_all()
            try:
                while key not in self._local:
                    failed = self._first_failed()
                    if failed is not None and self._places[failed] <= self._places.get(key, -1):
                        raise self._errors[failed]
                    if self._stopped:
                        raise StorageError("a Prefetcher was closed while a file was waited for")
                    if key not in self._pending and key not in self._running:
                        raise StorageError(f"wait({key}): this key is not wanted; call want first")
                    self.changed.wait()
            finally:
                self._urgent[key] -= 1
                if not self._urgent[key]:
                    del self._urgent[key]

    def drop(self, key: int) -> None:
        with self.changed:
            self._pending.pop(key, None)
            self._local.pop(key, None)
            self._errors.pop(key, None)
            self._places.pop(key, None)
            if key in self._running:
                self._dropped.add(key)
            self.changed.notify_all()

    def stop(self) -> None:
        with self.changed:
            self._stopped = True
            self._pending.clear()
            self.changed.notify_all()
        self._cancellation.cancel()

    def run(self) -> None:
        """One thread's life: take the next key that may be fetched, fetch it, tell."""
        with use_cancellation(self._cancellation), contextlib.suppress(FetchCancelled):
            while True:
                with self.changed:
                    while (key := self._next()) is None:
                        if self._stopped:
                            return
                        self.changed.wait()
                    blob = self._running[key] = self._pending.pop(key)
                self._bring(key, blob)

    def _bring(self, key: int, blob: Blob) -> None:
        error: BaseException | None = None
        try:
            self._fetch(blob)
        except FetchCancelled:
            raise
        except BaseException as caught:  # noqa: BLE001 kept for wait(), which raises it
            error = caught
        finally:
            with self.changed:
                self._running.pop(key, None)
                if key not in self._dropped:
                    if error is None:
                        self._local[key] = blob
                    else:
                        self._errors[key] = error
                self._dropped.discard(key)
                self.changed.notify_all()

    def _first_failed(self) -> int | None:
        """Of the keys that could not be fetched, the one wanted first."""
        return min(self._errors, key=self._places.__getitem__, default=None)

    def _next(self) -> int | None:
        """The key to fetch now: what is waited for, else the oldest that fits into the bytes ahead."""
        if self._stopped:
            return None
        failed = self._first_failed()
        end = self._places[failed] if failed is not None else math.inf
        for key in self._urgent:
            if key in self._pending and self._places[key] < end:
                return key
        for key, blob in self._pending.items():
            if self._places[key] > end:
                return None
            ahead = sum(other.nbytes for held in (self._running, self._local) for other in held.values())
            return key if ahead == 0 or ahead + blob.nbytes <= self._ahead_bytes else None
        return None

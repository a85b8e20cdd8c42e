"""Stopping a fetch that runs in another thread: waits end early, and the next byte of progress raises.

A prefetch thread installs its ``Cancellation`` with ``use_cancellation``; the waits of this package ask for
it. Threads without one, such as the training loop's, wait as long as they asked for.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")


class FetchCancelled(Exception):  # noqa: N818 it is not an error: nobody outside storage sees it
    """Raised in a thread whose work nobody wants any more."""


class Cancellation:
    """One flag, and the events to wake when it is raised. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._raised = False
        self._wakes: list[threading.Event] = []

    @property
    def raised(self) -> bool:
        return self._raised

    def cancel(self) -> None:
        """Raise the flag and wake everyone who waits under it."""
        with self._lock:
            self._raised = True
            wakes = list(self._wakes)
        for event in wakes:
            event.set()

    @contextlib.contextmanager
    def waking(self, event: threading.Event) -> Iterator[None]:
        """Set ``event`` when the flag is raised, at once if it already is."""
        with self._lock:
            self._wakes.append(event)
            if self._raised:
                event.set()
        try:
            yield
        finally:
            with self._lock:
                self._wakes.remove(event)


_local = threading.local()


@contextlib.contextmanager
def use_cancellation(cancellation: Cancellation) -> Iterator[None]:
    """Make ``cancellation`` the one that waits in this thread obey."""
    before = getattr(_local, "cancellation", None)
    _local.cancellation = cancellation
    try:
        yield
    finally:
        _local.cancellation = before


def check_cancelled() -> None:
    """Raise FetchCancelled if this thread's work has been cancelled."""
    cancellation: Cancellation | None = getattr(_local, "cancellation", None)
    if cancellation is not None and cancellation.raised:
        raise FetchCancelled


def wait_for(event: threading.Event, seconds: float | None) -> bool:
    """Wait for ``event``; True if it came in time. FetchCancelled if this thread's work is cancelled."""
    cancellation: Cancellation | None = getattr(_local, "cancellation", None)
    if cancellation is None:
        return event.wait(seconds)
    with cancellation.waking(event):
        came = event.wait(seconds)
    check_cancelled()
    return came


def pause(seconds: float) -> None:
    """Sleep, but no longer than until this thread's work is cancelled."""
    wait_for(threading.Event(), seconds)


def run_bounded(work: Callable[[], T], limit_s: float) -> T:
    """Run ``work`` in a thread of its own and wait at most ``limit_s`` seconds for it.

    Not every file system has a time limit of its own. A call that does not come back is left to a daemon
    thread, which ends when its socket does.

    Raises:
        TimeoutError: no result in time.
        FetchCancelled: this thread's work was cancelled meanwhile.
    """
    done = threading.Event()
    results: list[T] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 handed to the waiting thread, which raises it
            errors.append(error)
        finally:
            done.set()

    threading.Thread(target=call, name="streamshard-io", daemon=True).start()
    wait_for(done, limit_s)
    if errors:
        try:
            raise errors[0]
        finally:
            errors.clear()  # the frame and its error would keep each other alive
    if not results:
        raise TimeoutError(f"no answer within {limit_s:g} s")
    return results[0]

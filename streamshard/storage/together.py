"""Several pieces of work at once in threads, for one caller who takes the results as they come."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from streamshard.storage.cancel import Cancellation, FetchCancelled, use_cancellation, wait_for

T = TypeVar("T")

Tell = Callable[[int], None]
"""Called by work with the bytes received since its last call."""


def together(
    works: Iterable[Callable[[Tell], T]],
    *,
    threads: int,
    progress: Callable[[int], None] | None = None,
    limit_s: float | None = None,
) -> Iterator[tuple[int, T]]:
    """Do ``works``, at most ``threads`` at once; yield (number of the work, its result) as they end.

    Few results wait to be taken, so that memory stays bounded. When the caller stops taking, by an error or otherwise,
    the rest is cancelled: what is under way ends by itself in daemon threads, and its results go nowhere.

    Args:
        works: called with ``tell``, in threads of their own; drawn from one at a time.
        threads: at least 1.
        progress: called in the caller's thread with what the works tell.
        limit_s: seconds that all together may take; None: as long as they do.

    Raises:
        TimeoutError: they took longer.
        FetchCancelled: the caller's own work was cancelled.
        the first error of a work, in its own type.
    """
    crew = _Crew(works, threads)
    end = None if limit_s is None else time.monotonic() + limit_s
    try:
        while True:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(f"not done within {limit_s:g} s")
            wait_for(crew.news, left)
            crew.news.clear()
            told = crew.take_told()
            if told and progress is not None:
                progress(told)
            yield from crew.take_results()
            if crew.is_done():
                return
    finally:
        crew.stop()


class _Crew(Generic[T]):
    """The threads, and what they have to say."""

    def __init__(self, works: Iterable[Callable[[Tell], T]], threads: int) -> None:
        self.news = threading.Event()
        self._lock = threading.Lock()
        self._works = enumerate(works)
        self._results: deque[tuple[int, T]] = deque()
        self._error: BaseException | None = None
        self._told = 0
        self._room = threading.Semaphore(2 * threads)
        self._cancellation = Cancellation()
        self._running = threads
        self._num_threads = threads
        for _ in range(threads):
            threading.Thread(target=self._run, name="streamshard-part", daemon=True).start()

    def take_told(self) -> int:
        with self._lock:
            told, self._told = self._told, 0
        return told

    def take_results(self) -> Iterator[tuple[int, T]]:
        while True:
            with self._lock:
                if self._error is not None:
                    error, self._error = self._error, None
                    raise error
                if not self._results:
                    return
                found = self._results.popleft()
            yield found
            self._room.release()

    def is_done(self) -> bool:
        with self._lock:
            return not self._running and not self._results and self._error is None

    def stop(self) -> None:
        self._cancellation.cancel()
        self._room.release(self._num_threads)

    def _run(self) -> None:
        try:
            with use_cancellation(self._cancellation):
                while True:
                    self._room.acquire()
                    if self._cancellation.raised:
                        return
                    with self._lock:
                        number, work = next(self._works, (-1, None))
                    if work is None:
                        return
                    result = work(self._tell)
                    with self._lock:
                        self._results.append((number, result))
                    self.news.set()
        except FetchCancelled:
            pass  # nobody wants the rest
        except BaseException as error:  # noqa: BLE001 raised where the results are taken
            with self._lock:
                self._error = self._error or error
        finally:
            with self._lock:
                self._running -= 1
            self.news.set()

    def _tell(self, nbytes: int) -> None:
        with self._lock:
            self._told += nbytes
        self.news.set()

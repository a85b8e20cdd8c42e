"""Uploads in the background: bounded in number, the first failure wins, all can be taken back."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from streamshard.errors import StorageError, StreamshardError
from streamshard.storage.store import Store

logger = logging.getLogger(__name__)


class Uploader:
    """Copies finished files of a directory to a store by threads.

    Used by one thread at a time. Files that wait for their turn are at most twice the number of threads, so that a slow
    network holds the writer back instead of filling the disk. The thread in which an upload fails calls ``on_failure``;
    :meth:`check` then raises what happened.
    """

    def __init__(
        self,
        store: Store,
        directory: Path,
        *,
        threads: int,
        keep_local: bool,
        progress_bar: bool = False,
        on_failure: Callable[[], None],
    ) -> None:
        self._store = store
        self._directory = directory
        self._keep_local = keep_local
        self._limit = 2 * threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="streamshard-upload")
        self._running: deque[Future[None]] = deque()
        self._begun: list[str] = []
        self._bar = _progress_bar(store.url) if progress_bar else None
        self._on_failure = on_failure

    def put(self, key: str) -> None:
        """Begin to upload ``directory / key``; waits while too many files are on their way.

        Raises:
            StorageError: an earlier upload failed.
        """
        self.check()
        while len(self._running) >= self._limit:
            wait(self._running, return_when=FIRST_COMPLETED)
            self.check()
        self._begun.append(key)
        self._running.append(self._pool.submit(self._upload, key))

    def check(self) -> None:
        """Raise the first failure of the uploads that are done."""
        still = deque[Future[None]]()
        for future in self._running:
            if future.done():
                future.result()
            else:
                still.append(future)
        self._running = still

    def wait(self) -> None:
        """Wait for all uploads; raises the first failure."""
        while self._running:
            wait(self._running, return_when=FIRST_COMPLETED)
            self.check()

    def close(self) -> None:
        """End the threads; uploads that have not begun are dropped."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        if self._bar is not None:
            self._bar.close()

    def take_back(self) -> None:
        """End the threads and remove from the store every file that this object has put there."""
        self.close()
        for key in reversed(self._begun):
            try:
                if self._store.exists(key):
                    self._store.delete(key)
            except (
                StreamshardError
            ) as error:  # there is an error on its way already; this one must not hide it
                logger.warning("%s/%s may have been left behind: %s", self._store.url, key, error)

    def _upload(self, key: str) -> None:
        path = self._directory / key
        try:
            self._store.put(key, path)
            if not self._keep_local:
                path.unlink()
        except BaseException as error:
            self._on_failure()
            if isinstance(error, StreamshardError) or not isinstance(error, OSError):
                raise
            raise StorageError(
                f"{path}: upload to {self._store.url} failed: {error.strerror or error}"
            ) from error
        if self._bar is not None:
            self._bar.update()


def _progress_bar(url: str) -> Any:
    from tqdm import tqdm

    return tqdm(desc=f"upload to {url}", unit="file")

"""Connections to a file server, each of which serves one call at a time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from streamshard.storage.cancel import run_bounded
from streamshard.storage.failures import Failure, classify

T = TypeVar("T")

MOST = 8
"""Connections at once: an SSH server refuses more than some ten that are being opened."""


class Connections:
    """Lends a connection to each call, and opens one where none is idle.

    paramiko's file client hangs when two threads use it at once, and stays dead once its connection is.

    Args:
        connect: opens a connection: the file system and the path of the store's root in it.
    """

    def __init__(self, connect: Callable[[], tuple[Any, str]]) -> None:
        self._connect = connect
        self._idle: list[tuple[Any, str]] = []
        self._room = threading.BoundedSemaphore(MOST)

    def call(self, operation: Callable[[Any, str], T], limit_s: float) -> T:
        """Call ``operation(file system, root)``; TimeoutError if it takes longer than ``limit_s`` seconds."""
        lent: list[tuple[Any, str]] = []

        def run() -> T:
            connection = self._take()
            lent.append(connection)
            try:
                result = operation(*connection)
            except Exception as error:
                if classify(error) is Failure.TRANSIENT:
                    _close(connection)
                else:
                    self._idle.append(connection)
                raise
            self._idle.append(connection)
            return result

        with self._room:
            try:
                return run_bounded(run, limit_s)
            except TimeoutError:
                for connection in lent:
                    _close(connection)  # which ends the thread that waits for it
                raise

    def drop(self) -> None:
        """Close the connections that are idle."""
        while self._idle:
            _close(self._idle.pop())

    def _take(self) -> tuple[Any, str]:
        try:
            return self._idle.pop()
        except IndexError:
            return self._connect()


def _close(connection: tuple[Any, str]) -> None:
    with contextlib.suppress(Exception):  # it may be dead already, in whatever way
        connection[0].client.close()

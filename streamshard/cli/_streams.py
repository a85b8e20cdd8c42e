"""Standard streams that are closed, or that nobody takes anything from any more."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    import click


def open_closed_streams() -> None:
    """Put the null device in the place of standard streams that are closed (``2>&-``).

    Else the next file to be opened would get their number, and with it what a library prints; worker processes
    inherit them.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is taken, which is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def leave_unread(ctx: click.Context) -> None:
    """End a command whose output nobody reads any more (``| head``): exit 1, and nothing raises at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    ctx.exit(1)


class _Patient:
    """A stream whose end (a full disk, a reader that is gone) does not end the work that it tells about."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._gone = False

    def write(self, text: str) -> int:
        if not self._gone:
            try:
                return self._stream.write(text)
            except OSError:
                self._lose()
        return len(text)

    def flush(self) -> None:
        if not self._gone:
            try:
                self._stream.flush()
            except OSError:
                self._lose()

    def _lose(self) -> None:
        self._gone = True
        # What is left in the stream's buffer is flushed when Python ends; if that fails, it exits with 120.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def patient(stream: TextIO) -> TextIO:
    """Give a stream for messages that may be lost."""
    return cast("TextIO", _Patient(stream))

"""Having the system write a file to the disk while more of it is made: little is left to wait for at the end."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

_AT_ONCE = 1 << 23
_START = 2  # SYNC_FILE_RANGE_WRITE, of linux/fs.h: begin, and wait for nothing


def _system_call() -> Callable[..., Any] | None:
    """``sync_file_range`` of the C library, where it has that."""
    try:
        call: Any = ctypes.CDLL(None).sync_file_range
    except (OSError, AttributeError):
        return None
    call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return call  # type: ignore[no-any-return]


_sync_file_range = _system_call()


class Writeback:
    """Starts the writing of an open file, 8 MiB at a time; it says nothing of what fails, which ``fsync`` will tell.

    Args:
        file: its descriptor.
    """

    def __init__(self, file: int) -> None:
        self._file = file
        self._begin = self._end = 0

    def wrote(self, nbytes: int) -> None:
        """Say that so many bytes more are in the file."""
        self._end += nbytes
        if self._end - self._begin >= _AT_ONCE and _sync_file_range is not None:
            _sync_file_range(self._file, self._begin, self._end - self._begin, _START)
            self._begin = self._end

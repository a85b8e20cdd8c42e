"""The plan's table of records in output order, on disk."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

ROW = np.dtype(
    [
        ("source", "<u4"),
        ("line_nbytes", "<u4"),
        ("offset", "<u8"),
        ("sample_nbytes", "<u8"),
        ("image_hash", "<u8"),
    ]
)
"""One record: which source, where its line is, how many bytes its sample takes, the hash of its images (0: none)."""

_TAKEN_AT_ONCE = 1 << 20
_READ_AT_ONCE = 1 << 16


def permute_file(source: Path, target: Path, order: Iterable[NDArray[np.int64]]) -> None:
    """Write rows of one file in another order, given in parts; memory is bounded by a block, not by the file."""
    rows = open_rows(source)
    with target.open("wb") as file:
        for part in order:
            for begin in range(0, len(part), _TAKEN_AT_ONCE):
                file.write(rows[part[begin : begin + _TAKEN_AT_ONCE]].tobytes())
        sync_file(file)


def sync_file(file: IO[bytes]) -> None:
    """See to it that a file is on the disk before the plan says that it is there."""
    file.flush()
    os.fsync(file.fileno())


def blocks_of_rows(path: Path) -> Iterator[NDArray[Any]]:
    """Read a table of rows from beginning to end, a part at a time: structured arrays, see :data:`ROW`."""
    with path.open("rb") as file:
        while block := file.read(_READ_AT_ONCE * ROW.itemsize):
            yield np.frombuffer(block, ROW)


def open_rows(path: Path) -> NDArray[Any]:
    """Map a table of rows."""
    if not path.stat().st_size:
        return np.zeros(0, ROW)
    return np.memmap(path, ROW, mode="r")

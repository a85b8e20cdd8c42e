"""Items that lie one after another in a local file, found by their offsets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_BUFFER = 1 << 20


class ItemsForm:
    """The part of a :class:`~streamshard.convert.forms.form.Form` that finds items.

    Args:
        path: of the file, which is open only while spans of it are read.
        offsets: int64[count + 1], ascending: where each item begins, and where the last one ends. Checked by the caller
            against the size of the file.
    """

    def __init__(self, path: Path, offsets: NDArray[np.int64]) -> None:
        self._path = path
        self._offsets = offsets

    def spans(self, begin: int, end: int) -> Iterator[tuple[int, int, bytes]]:
        first, last = np.searchsorted(self._offsets[:-1], [begin, end]).tolist()
        if first == last:
            return
        with self._path.open("rb", buffering=_BUFFER) as file:
            file.seek(int(self._offsets[first]))
            for number in range(first, last):
                offset = int(self._offsets[number])
                text = file.read(int(self._offsets[number + 1]) - offset)
                yield offset, len(text), text

    def number(self, offset: int) -> int:
        return int(np.searchsorted(self._offsets, offset)) + 1

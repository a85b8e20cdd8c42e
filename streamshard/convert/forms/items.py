"""Items that lie one after another in a local file, found by their offsets: MDS shards and LitData chunks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray


class ItemsForm:
    """The part of a :class:`~streamshard.convert.forms.form.Form` that finds items.

    Args:
        file: open for reading; closed by :meth:`close`.
        offsets: int64[count + 1], ascending: where each item begins, and where the last one ends. Checked by the caller
            against the size of the file.
    """

    def __init__(self, file: BinaryIO, offsets: NDArray[np.int64]) -> None:
        self._file = file
        self._offsets = offsets

    def spans(self, begin: int, end: int) -> Iterator[tuple[int, int, bytes]]:
        first, last = np.searchsorted(self._offsets[:-1], [begin, end]).tolist()
        if first == last:
            return
        self._file.seek(int(self._offsets[first]))
        for number in range(first, last):
            offset = int(self._offsets[number])
            text = self._file.read(int(self._offsets[number + 1]) - offset)
            yield offset, len(text), text

    def number(self, offset: int) -> int:
        return int(np.searchsorted(self._offsets, offset)) + 1

    def close(self) -> None:
        self._file.close()

"""Rows that are brought into the cache before they are cut out."""

import mmap

import numpy as np
import pytest

from streamshard.format.warmth import warmed


def _rows(lengths):
    ends = np.cumsum(np.array(lengths, np.int64))
    return ends - np.array(lengths, np.int64), ends


@pytest.mark.parametrize(
    "lengths",
    [
        [],
        [0],
        [0, 0],
        [1] * 3,
        [160] * 2000,
        [0, 700, 64, 65] * 400,
        [100_000, 1],
        [63, 0] * 512,
        [0] * 600 + [5],
    ],
    ids=str,
)
@pytest.mark.parametrize("map_them", [False, True])
def test_every_row_comes_once_and_in_order(lengths, map_them):
    begins, ends = _rows(lengths)
    content = bytes(int(ends[-1]) if lengths else 0)
    buffer = content
    if map_them and content:
        buffer = mmap.mmap(-1, len(content))
    numbers = np.arange(len(lengths))
    found = [numbers[part].tolist() for part in warmed(buffer, begins, ends)]
    assert [row for part in found for row in part] == numbers.tolist()
    if map_them and content:
        buffer.close()  # nothing looks into it any more


def test_rows_that_end_with_the_buffer_are_read_up_to_there():
    begins, ends = np.array([290, 0, 299], np.int64), np.array([300, 300, 300], np.int64)
    assert list(warmed(bytes(300), begins, ends)) == [slice(0, 512)]

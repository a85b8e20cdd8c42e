"""Rows of several maps, decoded from one buffer."""

import mmap

import numpy as np
import pytest

from streamshard.format.side_by_side import side_by_side


def _maps(contents):
    maps = []
    for content in contents:
        maps.append(mmap.mmap(-1, len(content)))
        maps[-1][:] = content
    return maps


def test_rows_are_cut_and_gathered_where_they_are_and_no_map_goes_before_its_buffer():
    maps = _maps([bytes(range(100)), b"x" * 5000, bytes(range(100, 200))])
    begins, ends = np.array([3, 0, 4999, 98]), np.array([7, 5000, 5000, 100])
    buffer, at, to = side_by_side(maps, np.array([0, 1, 3, 4]), begins, ends)
    for each in maps:
        with pytest.raises(BufferError):
            each.close()
    expected = [bytes(range(3, 7)), b"x" * 5000, b"x", bytes([198, 199])]
    assert [buffer[a:b] for a, b in zip(at.tolist(), to.tolist(), strict=True)] == expected
    assert np.frombuffer(buffer, np.uint8)[at[::-1]].tolist() == [198, 120, 120, 3]
    del buffer
    for each in maps:
        each.close()


@pytest.mark.parametrize(("begin", "end"), [(-1, 5), (6, 5), (0, 11), (1 << 40, (1 << 40) + 1)])
def test_a_row_outside_of_its_map_is_an_error(begin, end):
    maps = _maps([bytes(4096), bytes(10)])
    with pytest.raises(IndexError, match="row 1 of 2"):
        side_by_side(maps, np.array([0, 1, 2]), np.array([0, begin]), np.array([4096, end]))

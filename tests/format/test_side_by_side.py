"""Rows of several shards, decoded from one buffer."""

import mmap

import numpy as np
import pytest

from streamshard.format.shard import pack_shard
from streamshard.format.side_by_side import side_by_side


def _mapped(contents):
    maps = []
    for content in contents:
        maps.append(mmap.mmap(-1, len(content)))
        maps[-1][:] = content
    views = [np.frombuffer(each, np.uint8) for each in maps]
    return maps, views, [view.__array_interface__["data"][0] for view in views]


def _shard(*samples):
    return b"".join(pack_shard(samples, b"{}"))


def test_rows_are_cut_and_gathered_where_they_are_and_no_map_goes_before_its_buffer():
    first, second = [b"abc", b"", b"de"], [bytes([n]) * 5000 for n in range(3)]
    maps, views, addresses = _mapped([_shard(*first), _shard(*second), _shard(b"x")])
    buffer, at, to = side_by_side(views, addresses, np.array([0, 3, 5, 6]), np.array([2, 0, 1, 2, 0, 0]))
    del views
    for each in maps:
        with pytest.raises(BufferError):
            each.close()
    expected = [b"de", b"abc", b"", second[2], second[0], b"x"]
    assert [buffer[a:b] for a, b in zip(at.tolist(), to.tolist(), strict=True)] == expected
    assert np.frombuffer(buffer, np.uint8)[at[[5, 3, 1, 0]]].tolist() == [120, 2, 97, 100]
    del buffer
    for each in maps:
        each.close()


@pytest.mark.parametrize("row", [-1, 4, 1 << 40])
def test_a_row_that_a_map_is_too_short_for_is_an_error(row):
    _maps, views, addresses = _mapped([_shard(b"x" * 4096), _shard(b"1", b"2")[:24]])
    with pytest.raises(IndexError, match="row 1 of 2"):
        side_by_side(views, addresses, np.array([0, 1, 2]), np.array([0, row]))


@pytest.mark.parametrize(("begin", "end"), [(6, 5), (0, 17), (1 << 30, 1 << 31)])
def test_a_row_that_is_said_to_be_outside_of_its_map_is_an_error(begin, end):
    damaged = np.array([1, begin, end, 0], "<u4").tobytes()
    _maps, views, addresses = _mapped([_shard(b"x" * 4096), damaged])
    with pytest.raises(IndexError, match="row 1 of 2"):
        side_by_side(views, addresses, np.array([0, 1, 2]), np.array([0, 0]))

"""Lines found in chunks are the lines of the file, wherever the borders fall."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamshard.convert.jsonl import chunk_lines, chunk_nbytes, read_span


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    lines=st.lists(st.sampled_from([b"", b"a", b"bb\r", b"c" * 40, b"\xc3\xa9"]), max_size=12),
    last=st.sampled_from([b"", b"z"]),
    size=st.integers(4, 50),
    mark=st.booleans(),
)
def test_every_line_starts_in_exactly_one_chunk(
    tmp_path: Path, lines: list[bytes], last: bytes, size: int, mark: bool
) -> None:
    content = (b"\xef\xbb\xbf" if mark else b"") + b"".join(line + b"\n" for line in lines) + last
    path = tmp_path / "a"
    path.write_bytes(content)
    found = [
        (offset, line)
        for begin in range(0, len(content), size)
        for offset, line in chunk_lines(path, begin, min(begin + size, len(content)))
    ]
    wanted = [line + b"\n" for line in lines] + ([last] if last else [])
    assert [line for _, line in found] == wanted
    assert all(content[offset : offset + len(line)] == line for offset, line in found)


def test_a_chunk_inside_one_long_line_reads_no_more_than_itself(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 100_000 + b"\nrest\n")
    assert list(chunk_lines(path, 10_000, 20_000)) == []
    assert list(chunk_lines(path, 90_000, 100_002)) == [(100_001, b"rest\n")]


@pytest.mark.parametrize(("total", "size"), [(0, 1 << 18), (1 << 30, 1 << 22), (1 << 40, 1 << 23)])
def test_the_size_of_a_chunk_depends_on_the_input_alone(total: int, size: int) -> None:
    assert chunk_nbytes(total, check=False) == size


def test_where_images_are_decoded_units_are_smaller_and_more() -> None:
    assert chunk_nbytes(0, check=True) == 1 << 16
    assert chunk_nbytes(1 << 30, check=True) == 1 << 18
    assert chunk_nbytes(1 << 40, check=True) == 1 << 23


def test_a_span_at_the_end_of_a_file_is_shorter(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"0123456789")
    with path.open("rb") as file:
        assert read_span(file.fileno(), 2, 3) == b"234"
        assert read_span(file.fileno(), 8, 5) == b"89"

"""Writing to the disk is begun while a file grows, and the file is the same where the system cannot do that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streamshard.write import writeback
from streamshard.write.publish import publish_file


def test_all_but_the_last_part_of_a_file_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[tuple[int, int]] = []
    real = writeback._sync_file_range
    assert real is not None, "Linux has it"

    def noted(file: int, begin: int, nbytes: int, flags: int) -> Any:
        assert real(file, begin, nbytes, flags) == 0
        begun.append((begin, begin + nbytes))

    monkeypatch.setattr(writeback, "_sync_file_range", noted)
    monkeypatch.setattr(writeback, "_AT_ONCE", 10)
    publish_file(tmp_path, "a", [b"1234567"] * 5)
    assert begun == [(0, 14), (14, 28)]
    assert (tmp_path / "a").read_bytes() == b"1234567" * 5


def test_a_file_is_written_without_that_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writeback.ctypes, "CDLL", lambda _: object())
    assert writeback._system_call() is None
    monkeypatch.setattr(writeback, "_sync_file_range", None)
    monkeypatch.setattr(writeback, "_AT_ONCE", 10)
    publish_file(tmp_path, "a", [b"1234567"] * 5)
    assert (tmp_path / "a").read_bytes() == b"1234567" * 5

"""Image files that are read straight into a shard's memory: all of their bytes, or a word that they have changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from streamshard.convert.opened import OpenedImage
from streamshard.convert.places import LocalImages, Located
from streamshard.convert.problems import RecordProblem


def _opened(path: Path) -> OpenedImage:
    images = LocalImages(path.parent, allow_outside_root=False)
    return images.open(images.locate(path.name))


def test_a_file_is_read_to_its_place_and_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"content")
    opened = _opened(tmp_path / "a.jpg")
    room = bytearray(b"-" * 11)
    assert len(opened) == 7
    opened.read_into(memoryview(room)[2:9])
    opened.close()
    assert room == b"--content--"


def test_a_file_that_comes_in_pieces_is_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.jpg").write_bytes(b"content")
    opened = _opened(tmp_path / "a.jpg")
    real = os.readv
    monkeypatch.setattr(os, "readv", lambda file, places: real(file, [places[0][:3]]))
    room = bytearray(7)
    opened.read_into(memoryview(room))
    opened.close()
    assert room == b"content"


def test_a_file_that_became_shorter_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"content")
    opened = _opened(tmp_path / "a.jpg")
    os.truncate(tmp_path / "a.jpg", 3)
    with pytest.raises(RecordProblem, match=r"a\.jpg' changed while it was read"):
        opened.read_into(memoryview(bytearray(7)))
    opened.close()


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: path.touch()])
def test_what_is_no_file_with_bytes_is_refused_and_nothing_stays_open(tmp_path: Path, make: object) -> None:
    assert callable(make)
    make(tmp_path / "a.jpg")
    before = set(os.listdir("/proc/self/fd"))
    images = LocalImages(tmp_path, allow_outside_root=False)
    with pytest.raises(RecordProblem, match=r"a\.jpg"):
        images.open(Located(str(tmp_path / "a.jpg"), "a.jpg"))
    assert set(os.listdir("/proc/self/fd")) == before

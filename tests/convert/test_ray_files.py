"""What a node of a Ray cluster is given: the driver's files as they were, and only by the driver's version."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from streamshard.convert import ray_node, ray_scratch
from streamshard.convert.ray_files import FileServer, FilesOfJob, stamp_of
from streamshard.errors import ConvertError, StorageError


def test_a_file_that_changes_while_it_is_sent_is_no_file_of_two_halves(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b"a" * 100)
    server = FileServer({str(path): stamp_of(str(path))})
    assert server.piece(str(path), 40, 10) == b"a" * 10
    path.write_bytes(b"b" * 100)
    os.utime(path, ns=(0, 0))
    with pytest.raises(StorageError, match=r"lines\.jsonl: changed while it was sent"):
        server.piece(str(path), 50, 50)
    with pytest.raises(StorageError, match="is no file of this job"):
        server.piece("/etc/hostname", 0, 10)


def test_a_node_that_came_late_with_another_version_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_node, "_node_name", lambda: "10.0.0.9 (a1b2)")
    files = replace(FilesOfJob("job", "token", False, {}, {}), version="0.0.1")
    outcome = ray_node.run_unit(files, ray_node.Sealed("write", None), "/nowhere")
    assert isinstance(outcome.error, ConvertError)
    assert "node 10.0.0.9 (a1b2) of the Ray cluster has streamshard" in str(outcome.error)
    assert "the driver has 0.0.1" in str(outcome.error)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for all jobs of this user on a node."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"streamshard-ray-{os.geteuid()}"


def _leave(name: str, days_ago: float) -> Path:
    folder = ray_scratch.scratch_folder(name)
    for made in ("unit-1", "files"):
        (folder / made).mkdir()
        (folder / made / "x").write_bytes(b"x")
    os.utime(folder, (then := time.time() - 86400 * days_ago, then))
    return folder


def test_what_cancelled_jobs_have_left_is_swept_by_the_next_one(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray_scratch.sweep()  # nothing is there
    young, _ = _leave("young", 0.9), _leave("old", 1.1)
    (node / "stranger").write_bytes(b"no folder")
    (node / "elsewhere").symlink_to(young)
    monkeypatch.setattr(ray_node, "_node_name", lambda: "here")
    ray_node.look_around("", "token")
    assert sorted(path.name for path in node.iterdir()) == ["elsewhere", "stranger", "young"]
    assert [path.name for path in young.iterdir()] == ["files"]  # for the same command


def test_what_a_unit_of_work_holds_is_not_swept(node: Path) -> None:
    _leave("job", 9)
    with ray_scratch.held_scratch("job") as folder, ray_scratch.held_scratch("job"):
        os.utime(folder, (0, 0))
        ray_scratch.sweep()
        assert (folder / "unit-1" / "x").exists()
    with ray_scratch.held_scratch("job") as folder:
        pass
    ray_scratch.sweep()  # used just now
    assert [path.name for path in folder.iterdir()] == ["files"]
    os.utime(folder, (0, 0))
    ray_scratch.sweep()
    assert list(node.iterdir()) == []


def test_a_folder_that_is_swept_before_it_is_held_is_made_again(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ray_scratch.fcntl.flock

    def swept_before(file: int, how: int) -> None:
        monkeypatch.setattr(ray_scratch.fcntl, "flock", real)
        os.utime(node / "job", (0, 0))
        ray_scratch.sweep()
        real(file, how)

    monkeypatch.setattr(ray_scratch.fcntl, "flock", swept_before)
    with ray_scratch.held_scratch("job") as folder:
        assert folder.is_dir()

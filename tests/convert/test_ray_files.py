"""What a node of a Ray cluster is given: the driver's files as they were, and only by the driver's version."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from streamshard.convert import ray_node
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

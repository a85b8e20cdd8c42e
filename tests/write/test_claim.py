"""Two writers on one directory: the second is refused by name, until the first is done or dead."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from streamshard import LocalDataset, MDSWriter
from streamshard.errors import DirectoryInUseError
from streamshard.write import claim

COLUMNS = {"number": "int"}


def writer(place: Path, **options: Any) -> MDSWriter:
    return MDSWriter(out=place, columns=COLUMNS, exist_ok=True, **options)


def test_a_second_writer_is_refused_and_the_first_one_goes_on(tmp_path: Path) -> None:
    first = writer(tmp_path / "set")
    first.write({"number": 1})
    with pytest.raises(DirectoryInUseError, match=r"set: another MDSWriter is writing here.*merge_index"):
        writer(tmp_path / "set")
    first.finish()
    assert [sample["number"] for sample in LocalDataset(tmp_path / "set")] == [1]
    assert sorted(path.name for path in (tmp_path / "set").iterdir()) == ["index.json", "shard.00000.mds"]
    with writer(tmp_path / "set") as second:
        second.write({"number": 2})
    assert [sample["number"] for sample in LocalDataset(tmp_path / "set")] == [2]


def test_a_writer_that_failed_or_was_dropped_lets_go(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="on purpose"), writer(tmp_path / "set"):
        raise RuntimeError("on purpose")
    dropped = writer(tmp_path / "set")
    del dropped
    writer(tmp_path / "set").finish()


def test_another_process_is_seen_and_its_death_too(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom streamshard import MDSWriter\n"
        "w = MDSWriter(out=sys.argv[1], columns={'number': 'int'}, exist_ok=True)\n"
        "print('ready', flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "set")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"ready\n"
        with pytest.raises(DirectoryInUseError):
            writer(tmp_path / "set")
        os.kill(other.pid, signal.SIGKILL)
        other.wait()
    writer(tmp_path / "set").finish()


def test_a_forked_child_does_not_keep_the_directory_nor_give_it_free(tmp_path: Path) -> None:
    first = writer(tmp_path / "set")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write)
        first._place.release()
        os.read(read, 1)
        os._exit(0)
    os.close(read)
    with pytest.raises(DirectoryInUseError):
        writer(tmp_path / "set")
    first.finish()
    writer(tmp_path / "set").finish()
    os.close(write)
    assert os.waitpid(child, 0)[1] == 0


def test_where_nothing_can_be_locked_writing_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> bool:
        raise claim.LocksUnsupportedError(37, "No locks available")

    monkeypatch.setattr(claim, "try_lock", refuse)
    with writer(tmp_path / "set") as first:
        first.write({"number": 1})
        writer(tmp_path / "other").finish()

"""Parsed indexes that the processes of a node share."""

from __future__ import annotations

import copy
import errno
import hashlib
import json
import logging
import multiprocessing
import os
import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamshard.errors import FormatError, StorageError
from streamshard.format.index import FileInfo, Index, ShardInfo, index_text, parse_index
from streamshard.format.schema import Schema
from streamshard.read import tables
from streamshard.read.tables import MappedIndex, node_index, open_table
from tests.support.at_once import run_at_once

SHARDS = 30


def shards(count: int = SHARDS) -> list[ShardInfo]:
    schema = Schema.from_columns({"n": "int"})
    return [
        ShardInfo(
            schema,
            None,
            ("xxh64",),
            FileInfo(f"{i:05}.mds", 1000 + 5 * i, {"xxh64": f"{i:016x}"}),
            None,
            i,
            5,
        )
        for i in range(count)
    ]


COSTS = {"tokens": {"shards": list(range(SHARDS)), "total": sum(range(SHARDS))}}
TEXT = index_text(shards(), {"costs": COSTS, "made": 5})
DIGEST = hashlib.blake2b(TEXT, digest_size=16).hexdigest()


@pytest.fixture(autouse=True)
def _small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "KEPT_FROM_NBYTES", 100)


def get(directory: Path, text: bytes = TEXT) -> Index:
    digest = hashlib.blake2b(text, digest_size=16).hexdigest()
    return node_index(text, digest, source="here/index.json", directory=directory)


def place(directory: Path, digest: str = DIGEST) -> Path:
    return directory / ".streamshard" / "tables" / f"{digest}.v2.table"


def left_in(directory: Path) -> list[str]:
    """Names of the files beside the tables, but for those of locks, which stay."""
    folder = place(directory).parent
    return [path.name for path in folder.iterdir() if path.suffix != ".lock"]


def check(index: Index) -> None:
    assert index.shards == shards()
    assert index.begins.tolist() == [0, *np.cumsum(range(SHARDS)).tolist()]
    assert index.costs["tokens"].tolist() == list(range(SHARDS))
    assert index.extra == {"costs": COSTS, "made": 5}


@pytest.fixture
def parses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Sources of the texts that were parsed."""
    done: list[str] = []

    def parse(text: bytes, *, source: str) -> Index:
        done.append(source)
        return parse_index(text, source=source)

    monkeypatch.setattr(tables, "parse_index", parse)
    return done


def test_one_text_is_parsed_once(tmp_path: Path, parses: list[str]) -> None:
    for _ in range(3):
        index = get(tmp_path / "cache")
        assert isinstance(index, MappedIndex)
        check(index)
    assert parses == ["here/index.json"]
    assert left_in(tmp_path / "cache") == [f"{DIGEST}.v2.table"]


def test_another_text_has_another_table(tmp_path: Path, parses: list[str]) -> None:
    check(get(tmp_path))
    other = get(tmp_path, index_text(shards(7)))
    assert other.shards == shards(7)
    check(get(tmp_path))
    assert len(parses) == 2


def test_a_small_index_is_parsed_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "KEPT_FROM_NBYTES", len(TEXT) + 1)
    check(get(tmp_path / "cache"))
    assert not (tmp_path / "cache").exists()


def test_what_is_no_index_leaves_no_table(tmp_path: Path) -> None:
    text = TEXT.replace(b'"samples": 7', b'"samples": -7')
    for _ in range(2):
        with pytest.raises(FormatError, match=r"^here/index.json: shard 7: samples is -7"):
            get(tmp_path, text)
    assert left_in(tmp_path) == []


def test_a_damaged_table_is_made_anew(
    tmp_path: Path, parses: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    check(get(tmp_path))
    path = place(tmp_path)
    good = path.read_bytes()
    damaged = {
        "empty": b"",
        "cut": good[:-1],
        "other magic": b"X" + good[1:],
        "another index": good[:16] + bytes(16) + good[32:],
        "a bit": good[:500] + bytes([good[500] ^ 1]) + good[501:],
        "zeros": bytes(len(good)),
    }
    for number, (how, content) in enumerate(damaged.items(), 1):
        path.write_bytes(content)
        with caplog.at_level(logging.WARNING):
            check(get(tmp_path))
        assert "not a sound table" in caplog.text, how
        caplog.clear()
        assert len(parses) == 1 + number
        assert path.read_bytes() == good
    assert caplog.text == ""


@pytest.mark.parametrize("kind", ["directory", "link", "pipe"])
def test_what_is_no_file_is_not_read_and_does_not_hang(tmp_path: Path, kind: str) -> None:
    check(get(tmp_path))
    path = place(tmp_path)
    good = path.read_bytes()
    path.unlink()
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        (tmp_path / "elsewhere").write_bytes(good)
        path.symlink_to(tmp_path / "elsewhere")
    check(get(tmp_path))
    if kind != "directory":
        assert path.read_bytes() == good
        assert not path.is_symlink()


def test_a_link_inside_the_cache_directory_is_not_followed(tmp_path: Path) -> None:
    for name in (".streamshard", ".streamshard/tables"):
        cache = tmp_path / name.replace("/", "_")
        (cache / name).parent.mkdir(parents=True, exist_ok=True)
        outside = tmp_path / "outside"
        outside.mkdir(exist_ok=True)
        (cache / name).symlink_to(outside)
        check(get(cache))
        assert list(outside.iterdir()) == []


def test_a_directory_that_cannot_be_written_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parses: list[str]
) -> None:
    (tmp_path / "file").write_text("")
    check(get(tmp_path / "file"))
    check(get(tmp_path / "file" / "below"))
    real = os.open

    def refuse(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY | os.O_CREAT):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return real(path, flags, *rest, **more)

    def refuse_opening(self: Path, mode: str = "r", *rest: Any, **more: Any) -> Any:
        if mode != "r":
            raise OSError(errno.EROFS, "Read-only file system", str(self))
        return open(self, mode, *rest, **more)

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(Path, "open", refuse_opening)
    for _ in range(2):
        index = get(tmp_path / "cache")
        check(index)
        assert not isinstance(index, MappedIndex)
    assert len(parses) == 4


def test_a_read_only_directory_that_has_the_table_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parses: list[str]
) -> None:
    check(get(tmp_path))

    def refuse(path: Any, *rest: Any, **more: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(os, "utime", refuse)
    monkeypatch.setattr(Path, "mkdir", refuse)
    assert isinstance(get(tmp_path), MappedIndex)
    assert len(parses) == 1


def test_a_table_on_a_network_file_system_is_read_and_not_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "is_local_device", lambda device: False)
    index = get(tmp_path)
    check(index)
    with place(tmp_path).open("r+b") as file:  # would be seen through a map
        file.truncate(10)
    check(index)


PROGRAM = """
import json, sys
from pathlib import Path
from streamshard.read import tables
tables.KEPT_FROM_NBYTES = 100
from tests.read.test_tables import DIGEST, TEXT, check
print("ready", flush=True)
sys.stdin.readline()
index = tables.node_index(TEXT, DIGEST, source="x", directory=Path(sys.argv[1]))
check(index)
print(type(index).__name__)
"""


def test_b069_processes_that_start_at_once_all_get_a_table(tmp_path: Path) -> None:
    found = run_at_once(PROGRAM, str(tmp_path / "cache"))
    assert found == ["MappedIndex\n"] * 2
    assert left_in(tmp_path / "cache") == [f"{DIGEST}.v2.table"]


# Pickling


def test_a_copy_for_elsewhere_holds_everything(tmp_path: Path) -> None:
    index = get(tmp_path / "cache")
    content = pickle.dumps(index)
    assert str(tmp_path).encode() not in content
    place(tmp_path / "cache").unlink()
    for other in (pickle.loads(content), copy.deepcopy(index), index):
        check(other)


def report(index: Index, results: Any) -> None:
    check(index)
    results.put(type(index).__name__)


@pytest.mark.parametrize("there", [True, False])
def test_a_spawned_process_opens_the_file_or_gets_a_copy(tmp_path: Path, there: bool) -> None:
    index = get(tmp_path)
    if not there:
        place(tmp_path).unlink()
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    process = context.Process(target=report, args=(index, results))
    process.start()
    assert results.get() == ("MappedIndex" if there else "Index")
    process.join()
    assert process.exitcode == 0


def test_a_file_that_goes_while_a_process_starts_is_a_named_error(tmp_path: Path) -> None:
    get(tmp_path)
    place(tmp_path).unlink()
    with pytest.raises(StorageError, match=r"\.v2\.table: the table of shards.*start again"):
        tables._opened(place(tmp_path), DIGEST)


# What is left


def test_old_tables_and_what_killed_processes_left_are_deleted(tmp_path: Path) -> None:
    check(get(tmp_path))
    folder = place(tmp_path).parent
    day = 86_400
    ages = {
        "0" * 32 + ".v2.table": 29 * day,
        "1" * 32 + ".v2.table": 31 * day,
        "2" * 32 + ".v2.table": 31 * day,
        ".ab12.streamshard-tmp": 2 * day,
        ".cd34.streamshard-tmp": 60,
        "notes.txt": 99 * day,
    }
    for name, age in ages.items():
        (folder / name).write_text("x")
        os.utime(folder / name, (time.time() - age,) * 2)
    os.utime(place(tmp_path), (time.time() - 31 * day,) * 2)
    assert open_table(place(tmp_path), DIGEST) is not None  # which is a use
    get(tmp_path, index_text(shards(7)))
    left = set(left_in(tmp_path))
    assert {f"{DIGEST}.v2.table", "0" * 32 + ".v2.table", ".cd34.streamshard-tmp", "notes.txt"} <= left
    assert len(left) == 5


def test_a_table_is_much_smaller_than_its_text(tmp_path: Path) -> None:
    text = index_text(shards(1000))
    get(tmp_path, text)
    (name,) = left_in(tmp_path)
    path = place(tmp_path).with_name(name)
    assert path.stat().st_size < len(text) / 3
    assert json.loads(text)["version"] == 2

"""The index of a remote dataset: one process of a node downloads and parses it, others map what it left."""

from __future__ import annotations

import hashlib
import os
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamshard.errors import BlobNotFoundError, FormatError
from streamshard.format.index import Index
from streamshard.read import shared_index, tables
from streamshard.read.catalog import load_index
from streamshard.read.tables import MappedIndex
from streamshard.storage.memory_store import MemoryStore
from streamshard.storage.store import Version
from tests.read.test_tables import TEXT, check
from tests.support.at_once import run_at_once
from tests.support.small_server import small_server

DIGEST = hashlib.blake2b(TEXT, digest_size=16).hexdigest()


class Counting(MemoryStore):
    """Notes what is read."""

    tagged = True

    def __init__(self) -> None:
        super().__init__(f"memory://{uuid.uuid4().hex}")
        self.read_nbytes: list[int] = []

    def version(self, key: str) -> Version:
        found = super().version(key)
        return found if self.tagged else Version(found.nbytes)

    def read_range(self, key: str, begin: int, end: int) -> bytes:
        self.read_nbytes.append(end - begin)
        return super().read_range(key, begin, end)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counting]:
    monkeypatch.setattr(tables, "KEPT_FROM_NBYTES", 100)
    store = Counting()
    store.put_bytes("index.json", TEXT)
    yield store
    for key in store.list():
        store.delete(key)


@pytest.fixture
def parses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    done: list[str] = []
    real = tables.parse_index

    def parse(text: bytes, *, source: str) -> Index:
        done.append(source)
        return real(text, source=source)

    monkeypatch.setattr(tables, "parse_index", parse)
    return done


def note_in(cache: Path) -> Path:
    (note,) = (cache / ".streamshard" / "tables").glob("*.note")
    return note


def test_it_is_read_and_parsed_once(tmp_path: Path, store: Counting, parses: list[str]) -> None:
    for _ in range(3):
        index, digest = load_index(store, tables=tmp_path)
        assert isinstance(index, MappedIndex)
        check(index)
        assert digest == DIGEST
    assert store.read_nbytes == [len(TEXT)]
    assert parses == [f"{store.url}/index.json"]


def test_a_large_one_comes_in_pieces(
    tmp_path: Path, store: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_index, "_PIECE_NBYTES", 1000)
    check(load_index(store, tables=tmp_path)[0])
    assert store.read_nbytes == [1000] * (len(TEXT) // 1000) + [len(TEXT) % 1000]


def test_another_content_of_the_same_size_is_seen(tmp_path: Path, store: Counting, parses: list[str]) -> None:
    check(load_index(store, tables=tmp_path)[0])
    other = TEXT.replace(b'"samples": 7,', b'"samples": 9,')
    assert len(other) == len(TEXT)
    store.put_bytes("index.json", other)
    index, digest = load_index(store, tables=tmp_path)
    assert int(index.samples_per_shard[7]) == 9
    assert digest == hashlib.blake2b(other, digest_size=16).hexdigest()
    # Back again: read again, but its table is still there.
    store.put_bytes("index.json", TEXT)
    check(load_index(store, tables=tmp_path)[0])
    assert len(store.read_nbytes) == 3
    assert len(parses) == 2


def test_without_a_tag_everybody_reads_but_one_parses(
    tmp_path: Path, store: Counting, parses: list[str]
) -> None:
    store.tagged = False
    for _ in range(2):
        check(load_index(store, tables=tmp_path)[0])
    assert store.read_nbytes == [len(TEXT)] * 2
    assert len(parses) == 1
    assert not list(tmp_path.rglob("*.note"))


def test_one_that_is_replaced_while_it_is_read_is_not_noted(
    tmp_path: Path, store: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Counting.read_range

    def replacing(self: Counting, key: str, begin: int, end: int) -> bytes:
        found = real(self, key, begin, end)
        self.put_bytes("index.json", TEXT.replace(b'"samples": 7,', b'"samples": 9,'))
        return found

    monkeypatch.setattr(Counting, "read_range", replacing)
    check(load_index(store, tables=tmp_path)[0])
    assert not list(tmp_path.rglob("*.note"))
    monkeypatch.setattr(Counting, "read_range", real)
    assert int(load_index(store, tables=tmp_path)[0].samples_per_shard[7]) == 9


def test_a_damaged_note_is_as_none_and_made_anew(tmp_path: Path, store: Counting) -> None:
    check(load_index(store, tables=tmp_path)[0])
    note = note_in(tmp_path)
    good = note.read_text()
    for number, content in enumerate(
        (
            *("", "[]", "null", "{", "\0" * 5000, '{"nbytes": 1e999}'),
            good.replace(DIGEST, "../../../../etc/passwd"),
            good.replace(DIGEST, "0" * 32),  # of a table that is not there
            good.replace(DIGEST, DIGEST.upper()),
            good.replace(DIGEST, ""),
        )
    ):
        note.write_text(content)
        check(load_index(store, tables=tmp_path)[0])
        assert len(store.read_nbytes) == 2 + number, content
        assert note.read_text() == good
    note.unlink()
    note.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_text(good)
    check(load_index(store, tables=tmp_path)[0])
    assert not note.is_symlink()


def test_a_lost_table_is_made_anew(tmp_path: Path, store: Counting, parses: list[str]) -> None:
    check(load_index(store, tables=tmp_path)[0])
    for table in tmp_path.rglob("*.table"):
        table.unlink()
    check(load_index(store, tables=tmp_path)[0])
    assert len(parses) == len(store.read_nbytes) == 2


def test_a_small_one_leaves_nothing(tmp_path: Path, store: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "KEPT_FROM_NBYTES", len(TEXT) + 1)
    check(load_index(store, tables=tmp_path / "cache")[0])
    assert not (tmp_path / "cache").exists()


def test_what_is_missing_or_malformed_is_named_as_without_a_cache(tmp_path: Path, store: Counting) -> None:
    store.put_bytes("index.json", TEXT.replace(b'"samples": 7,', b'"samples":-7,'))
    for _ in range(2):
        with pytest.raises(FormatError, match=rf"^{store.url}/index.json: shard 7: samples is -7"):
            load_index(store, tables=tmp_path)
    assert not list(tmp_path.rglob("*.note"))
    store.delete("index.json")
    with pytest.raises(BlobNotFoundError, match=r"index\.json; nothing at all"):
        load_index(store, tables=tmp_path)


def test_a_directory_that_cannot_be_written_is_done_without(
    tmp_path: Path, store: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    check(load_index(store, tables=tmp_path / "file" / "below")[0])
    check(load_index(store, tables=tmp_path / "cache")[0])
    (tmp_path / "full").mkdir()

    def refuse(*arguments: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tables, "_write", refuse)
    monkeypatch.setattr(shared_index, "replacing", refuse)
    check(load_index(store, tables=tmp_path / "full")[0])
    # One that has it serves although nothing can be written.
    monkeypatch.setattr(Path, "mkdir", refuse)
    monkeypatch.setattr(os, "utime", refuse)
    before = len(store.read_nbytes)
    assert isinstance(load_index(store, tables=tmp_path / "cache")[0], MappedIndex)
    assert len(store.read_nbytes) == before


PROGRAM = """
import sys
from pathlib import Path
from streamshard.read import tables
from streamshard.read.catalog import load_index
from streamshard.storage import open_store
from tests.read.test_tables import check
tables.KEPT_FROM_NBYTES = 100
real, parsed = tables.parse_index, []
def parse(text, *, source):
    parsed.append(source)
    return real(text, source=source)
tables.parse_index = parse
store = open_store(sys.argv[2])
store.exists("warm-up")  # the client is made
print("ready", flush=True)
sys.stdin.readline()
check(load_index(store, tables=Path(sys.argv[1]))[0])
print(len(parsed))
"""


def test_of_processes_that_start_at_once_one_downloads_and_parses(tmp_path: Path) -> None:
    with small_server() as server:
        server.files["set/index.json"] = TEXT
        parsed = list(map(int, run_at_once(PROGRAM, str(tmp_path), f"http://{server.host}/set")))
    assert sum(parsed) == 1
    read = [line for line in server.seen if "index.json" in line and re.search(r"'Range': 'bytes=", line)]
    assert len(read) == 1, read

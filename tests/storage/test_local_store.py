"""A directory of this machine as a store."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from streamshard.errors import StorageError
from streamshard.storage import RetryPolicy, open_store
from streamshard.storage.local_store import LocalStore
from tests.support.store_contract import StoreContract

QUICK = RetryPolicy(attempts=2, backoff_s=0.001)


class TestContract(StoreContract):
    gives_tags = False

    @pytest.fixture
    def store(self, tmp_path_factory: pytest.TempPathFactory) -> LocalStore:
        return LocalStore(tmp_path_factory.mktemp("store"), retry=QUICK)


def test_it_says_where_a_file_really_is(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.put_bytes("a/b", b"1")
    assert store.local_path("a/b") == tmp_path / "a" / "b"


def test_a_root_that_does_not_exist_lists_nothing_and_is_made_by_the_first_put(tmp_path: Path) -> None:
    store = open_store(tmp_path / "new" / "place")
    assert store.list() == []
    store.put_bytes("a", b"1")
    assert store.list() == ["a"]


def test_a_failed_put_leaves_neither_the_file_nor_a_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    store = LocalStore(tmp_path / "root", retry=QUICK)
    store.put_bytes("a", b"old")
    monkeypatch.setattr(os, "fsync", fail)
    (tmp_path / "source").write_bytes(b"new content")
    with pytest.raises(StorageError, match="after 2 attempts"):
        store.put("a", tmp_path / "source")
    with pytest.raises(StorageError, match="Input/output error"):
        store.put_bytes("a", b"new")
    assert store.read("a") == b"old"
    assert os.listdir(tmp_path / "root") == ["a"]


def test_unfinished_files_of_a_killed_writer_are_not_listed(tmp_path: Path) -> None:
    (tmp_path / ".0123456789abcdef.streamshard-tmp").write_bytes(b"half")
    (tmp_path / "a").write_bytes(b"1")
    assert open_store(tmp_path).list() == ["a"]


@pytest.mark.timeout(20)
def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StorageError, match="expected a regular file"):
        open_store(tmp_path).read("pipe")


def test_a_transient_error_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"1")
    stumbles = [OSError(116, "Stale file handle")]
    real_stat = Path.stat

    def stat(self: Path, **options: bool) -> os.stat_result:
        if stumbles and self.name == "a":
            raise stumbles.pop()
        return real_stat(self, **options)

    monkeypatch.setattr(Path, "stat", stat)
    assert LocalStore(tmp_path, retry=QUICK).size("a") == 1
    assert stumbles == []

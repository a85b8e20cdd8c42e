"""``MDSWriter(append=True)``: readers have the old dataset or the new one, whatever happens to the writer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from streamshard import LocalDataset, MDSWriter
from streamshard.errors import DirectoryInUseError, SampleError, StorageError
from streamshard.read.verify import verify_dataset
from streamshard.storage import open_store
from streamshard.write import writer as writer_module

_COLUMNS = {"n": "int"}


def _add(out: Any, numbers: Sequence[int | None], **options: Any) -> None:
    options = {"columns": _COLUMNS, "append": True, "samples_per_shard": 4, **options}
    with MDSWriter(out=out, **options) as writer:
        for number in numbers:
            writer.write({"n": number})


def _numbers(out: Path) -> list[int]:
    return [sample["n"] for sample in LocalDataset(str(out))]


def _files(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.iterdir()}


def test_the_first_makes_the_dataset_and_others_add_to_it(tmp_path: Path) -> None:
    out = tmp_path / "A"
    _add(str(out), range(10))
    before, old = _files(out), LocalDataset(str(out))
    _add(str(out), range(10, 15))
    _add(str(out), range(15, 16), compression="zstd:3", hashes=["sha256"])
    assert [sample["n"] for sample in old] == [*range(10)]
    assert _numbers(out) == [*range(16)]
    after = _files(out)
    assert {name for name in before if before[name] != after[name]} == {"index.json"}
    assert sorted(after) == ["index.json", *(f"shard.{n:05d}.mds" for n in range(5)), "shard.00005.mds.zstd"]
    assert verify_dataset(str(out)).ok


def test_nothing_added_changes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "A"
    _add(str(out), range(10))
    before = _files(out)
    _add(str(out), range(0))
    assert _files(out) == before


def test_a_failure_leaves_the_old_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "A"
    _add(str(out), range(10))
    before = _files(out)
    with pytest.raises(SampleError):
        _add(str(out), [10, 11, 12, 13, 14, None])
    assert _files(out) == before
    real = writer_module.publish_file

    def full(directory: Path, name: str, content: Any) -> None:
        if name == "index.json":
            raise StorageError("no space left")
        real(directory, name, content)

    monkeypatch.setattr(writer_module, "publish_file", full)
    with pytest.raises(StorageError, match="no space left"):
        _add(str(out), range(10, 20))
    assert _files(out) == before


def test_an_index_that_was_replaced_meanwhile_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "A"
    _add(str(out), range(10))
    writer = MDSWriter(out=str(out), columns=_COLUMNS, append=True)
    writer.write({"n": 10})
    (out / "index.json").write_bytes((out / "index.json").read_bytes() + b"\n")
    before = _files(out)
    with pytest.raises(StorageError, match="is not what it was when this writer began"):
        writer.finish()
    assert _files(out) == before


def test_what_a_killed_writer_left_is_cleared(tmp_path: Path) -> None:
    out = tmp_path / "A"
    _add(str(out), range(10))
    for number in (3, 4, 17):
        (out / f"shard.{number:05d}.mds").write_bytes(b"left")
    _add(str(out), range(10, 11))
    assert sorted(_files(out)) == ["index.json", *(f"shard.{n:05d}.mds" for n in range(4))]
    assert verify_dataset(str(out)).ok


def test_two_at_once_one_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "A"
    _add(str(out), range(10))
    with MDSWriter(out=str(out), columns=_COLUMNS, append=True) as writer:
        with pytest.raises(DirectoryInUseError):
            _add(str(out), range(20, 30))
        writer.write({"n": 10})
    assert _numbers(out) == [*range(11)]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"columns": {"n": "str"}}, "column 'n' is int there and str here"),
        ({"columns": {"n": "int", "m": "str"}}, r"column 'm' \(str\) is new"),
        ({"columns": {"m": "int"}}, r"column 'm' \(int\) is new, column 'n' \(int\) is missing"),
        ({"costs": {"c": "n"}}, r"the costs of what is there: none, found \['c'\]"),
        ({"sample_hash": "xxh64"}, "the hashes of samples that are there: none, found xxh64"),
        ({"exist_ok": True}, "choose one"),
    ],
)
def test_what_is_unlike_is_refused_by_name(tmp_path: Path, options: dict[str, Any], what: str) -> None:
    out = tmp_path / "A"
    _add(str(out), range(10))
    before = _files(out)
    with pytest.raises(ValueError, match=what):
        _add(str(out), range(1), **options)
    assert _files(out) == before
    _add(str(out), range(10, 11))  # nothing is held


def test_costs_and_hashes_of_samples_are_joined(tmp_path: Path) -> None:
    out = tmp_path / "A"
    for numbers in (range(10), range(10, 15)):
        _add(str(out), numbers, costs={"c": "n"}, sample_hash="xxh64")
    assert verify_dataset(str(out), deep=True).ok
    assert b'"total": 105' in _files(out)["index.json"]


def test_adding_at_a_url_and_in_a_pair(tmp_path: Path) -> None:
    url = f"memory://added-{tmp_path.name}"
    _add(url, range(10))
    _add(url, range(10, 12))
    _add((str(tmp_path / "local"), url), range(12, 13), keep_local=True)
    store = open_store(url)
    (tmp_path / "got").mkdir()
    for name in store.list():
        store.fetch_to(name, tmp_path / "got" / name)
    assert _numbers(tmp_path / "got") == [*range(13)]
    (tmp_path / "local" / "index.json").write_bytes(b"{}")
    with pytest.raises(ValueError, match="is not the one at"):
        _add((str(tmp_path / "local"), url), range(1))


def test_a_failed_upload_leaves_the_old_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from streamshard.storage.memory_store import MemoryStore

    url = f"memory://failing-{tmp_path.name}"
    _add(url, range(10))
    store = open_store(url)
    before = {name: store.read(name) for name in store.list()}
    real = MemoryStore.put

    def failing(self: Any, key: str, path: Path) -> None:
        if key.startswith("shard"):
            raise StorageError("the link is down")
        real(self, key, path)

    monkeypatch.setattr(MemoryStore, "put", failing)
    with pytest.raises(StorageError, match="the link is down"):
        _add(url, range(10, 20))
    assert {name: store.read(name) for name in store.list()} == before


def test_a_place_with_other_things_and_no_index(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(FileExistsError, match="is not empty"):
        _add(str(tmp_path), range(1))
    with pytest.raises(SampleError), MDSWriter(out=str(tmp_path / "A"), columns=_COLUMNS, append=True) as out:
        out.write({"n": "x"})
    assert not (tmp_path / "A").exists()

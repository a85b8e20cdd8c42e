"""verify_dataset lists all that is wrong, at once."""

from __future__ import annotations

import os
import pickle
import sys
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamshard.format.encodings import Encoding
from streamshard.read import verify as verify_module
from streamshard.read.verify import verify_dataset
from streamshard.storage import open_store
from tests.support import damage as damage_file
from tests.support.small_datasets import edit_index, text_samples, write_dataset

COMPRESSIONS = [None, "zstd", "gz", "bz2", "br:1", "snappy"]


@pytest.mark.parametrize("compression", COMPRESSIONS, ids=str)
def test_a_good_dataset_has_no_problem(tmp_path: Path, compression: str | None) -> None:
    infos = write_dataset(tmp_path, text_samples(35), compression=compression, hashes=["md5", "xxh64"])
    before = sorted(path.name for path in tmp_path.iterdir())
    report = verify_dataset(tmp_path)
    assert report.ok
    assert report.notes == []
    assert (report.num_shards, report.num_samples, report.decoded_samples) == (4, 35, 35)
    assert report.nbytes == sum(info.stored.nbytes for info in infos)
    assert report.unhashed_files == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_every_problem_of_every_shard_is_listed(tmp_path: Path) -> None:
    write_dataset(tmp_path, text_samples(60))
    damage(tmp_path)
    for workers in (1, 2):
        report = verify_dataset(tmp_path, workers=workers)
        assert [(problem.shard, problem.row) for problem in report.problems] == [
            ("shard.00000.mds", None),  # hash
            ("shard.00000.mds", 3),
            ("shard.00000.mds", 7),
            ("shard.00001.mds", None),  # missing
            ("shard.00002.mds", None),  # cut
            ("shard.00004.mds", None),  # hash only
        ]
        messages = [problem.message for problem in report.problems]
        assert "xxh64" in messages[0]
        assert "row 3, sample 3 of the dataset (id='a3')" in messages[1]
        assert "missing" in messages[3]
        assert "index says" in messages[4]
        assert report.decoded_samples == 38
        assert not report.ok


def damage(directory: Path) -> None:
    first = directory / "shard.00000.mds"
    first.write_bytes(
        first.read_bytes().replace(b"text of 3", b"text of \xff").replace(b"text of 7", b"text of \xff")
    )
    (directory / "shard.00001.mds").unlink()
    os.truncate(directory / "shard.00002.mds", 100)
    content = bytearray((directory / "shard.00004.mds").read_bytes())
    content[-3] ^= 1
    (directory / "shard.00004.mds").write_bytes(content)


def test_without_decoding_only_structure_and_hashes_are_checked(tmp_path: Path) -> None:
    write_dataset(tmp_path, text_samples(20), hashes=[])
    path = tmp_path / "shard.00000.mds"
    path.write_bytes(path.read_bytes().replace(b"text of 3", b"text of \xff"))
    assert verify_dataset(tmp_path, decode=False).ok
    report = verify_dataset(tmp_path)
    assert [problem.row for problem in report.problems] == [3]
    assert report.unhashed_files == 2


def test_a_store_elsewhere_is_verified_too(tmp_path: Path) -> None:
    write_dataset(tmp_path, text_samples(60))
    damage(tmp_path)
    url = f"memory://{uuid.uuid4().hex}"
    store = open_store(url)
    for path in tmp_path.iterdir():
        store.put(f"train/{path.name}", path)
    report = verify_dataset(url, split="train", deep=True)
    local = verify_dataset(tmp_path)
    assert [(p.shard, p.row) for p in report.problems] == [(p.shard, p.row) for p in local.problems]
    assert report.source == f"{url}/train"
    for key in store.list():
        store.delete(key)


class Counted:
    """A store elsewhere that counts what is read of it."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.nbytes = 0
        self.keys: list[str] = []

    def read_range(self, key: str, begin: int, end: int) -> bytes:
        self.nbytes += end - begin
        self.keys.append(key)
        return bytes(self._store.read_range(key, begin, end))

    def fetch_to(self, key: str, path: Path, **_: Any) -> int:
        raise AssertionError(f"{key} was fetched whole")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def elsewhere(directory: Path) -> Counted:
    store = open_store(f"memory://{uuid.uuid4().hex}")
    for path in directory.iterdir():
        store.put(path.name, path)
    return Counted(store)


def test_of_a_store_elsewhere_only_headers_are_read(tmp_path: Path) -> None:
    samples = [{"id": "a", "number": 1, "text": "x" * 5000}] * 60
    write_dataset(tmp_path, samples)
    store = elsewhere(tmp_path)
    report = verify_dataset(store)  # type: ignore[arg-type]
    assert report.ok
    assert not report.deep
    assert (report.headers, report.decoded_samples, report.hashed_files) == (6, 0, 0)
    assert report.notes == ["only sizes and headers were read; with --deep (deep=True) the samples are too"]
    assert store.nbytes == report.nbytes < 6 * 2200
    assert sorted(store.keys) == [f"shard.{number:05d}.mds" for number in range(6)]


def test_headers_tell_what_is_missing_cut_or_of_other_shape(tmp_path: Path) -> None:
    write_dataset(tmp_path, text_samples(60))
    (tmp_path / "shard.00001.mds").unlink()
    os.truncate(tmp_path / "shard.00002.mds", 100)
    damage_file.point_backwards(tmp_path, 3)
    damage_file.claim_more_samples(tmp_path, 4)
    for report in (verify_dataset(elsewhere(tmp_path)), verify_dataset(tmp_path, deep=False)):  # type: ignore[arg-type]
        assert [problem.shard for problem in report.problems] == [f"shard.0000{n}.mds" for n in (1, 2, 3, 4)]
        assert "missing" in report.problems[0].message
        assert "index says" in report.problems[1].message
        assert "before it begins" in report.problems[2].message
        assert "the index says 10 samples, the file has 4294967295" in report.problems[3].message
        assert report.headers == 2


def test_headers_of_compressed_shards_are_not_promised(tmp_path: Path) -> None:
    write_dataset(tmp_path, text_samples(30), compression="zstd")
    os.truncate(tmp_path / "shard.00001.mds.zstd", 20)
    report = verify_dataset(tmp_path, deep=False)
    assert [problem.shard for problem in report.problems] == ["shard.00001.mds.zstd"]
    assert "of compressed shards only the sizes were checked; --deep reads them" in report.notes


def test_files_that_the_index_does_not_name_are_notes(tmp_path: Path) -> None:
    write_dataset(tmp_path, text_samples(10))
    (tmp_path / "shard.00009.mds").write_bytes(b"old")
    (tmp_path / "shard.00009.mds.zstd").write_bytes(b"old")
    (tmp_path / "notes.txt").write_text("mine")
    report = verify_dataset(tmp_path)
    assert report.ok
    assert report.notes == [
        "file 'shard.00009.mds' is not in the index",
        "file 'shard.00009.mds.zstd' is not in the index",
    ]


def test_a_stale_raw_file_beside_a_compressed_one_is_a_problem(tmp_path: Path) -> None:
    write_dataset(tmp_path, text_samples(10), compression="zstd", keep_raw=True)
    assert verify_dataset(tmp_path).ok
    content = bytearray((tmp_path / "shard.00000.mds").read_bytes())
    content[-1] ^= 1
    (tmp_path / "shard.00000.mds").write_bytes(content)
    (problem,) = verify_dataset(tmp_path).problems
    assert problem.shard == "shard.00000.mds"
    assert "xxh64" in problem.message


def test_the_hash_of_the_raw_bytes_is_checked_after_decompression(tmp_path: Path) -> None:
    write_dataset(tmp_path, text_samples(10), compression="zstd")
    edit_index(tmp_path, lambda shards: shards[0]["raw_data"].update(hashes={"xxh64": "0" * 16}))
    (problem,) = verify_dataset(tmp_path).problems
    assert "decompressed, xxh64" in problem.message


def test_names_that_two_shards_share_are_problems(tmp_path: Path) -> None:
    write_dataset(tmp_path, text_samples(20), compression="zstd")
    edit_index(tmp_path, lambda shards: shards[1]["raw_data"].update(basename="shard.00000.mds"))
    report = verify_dataset(tmp_path)
    assert any("stands 2 times" in problem.message for problem in report.problems)


def test_a_missing_or_broken_index_is_one_problem(tmp_path: Path) -> None:
    (problem,) = verify_dataset(tmp_path / "nope").problems
    assert "does not exist" in problem.message
    (tmp_path / "index.json").write_text("{")
    (problem,) = verify_dataset(tmp_path).problems
    assert "not JSON" in problem.message


def test_very_many_bad_samples_are_listed_up_to_a_bound_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_dataset(tmp_path, text_samples(400), samples_per_shard=400, hashes=[])
    path = tmp_path / "shard.00000.mds"
    path.write_bytes(path.read_bytes().replace(b"text of", b"text \xfff"))
    monkeypatch.setattr(verify_module, "MAX_ROW_PROBLEMS", 30)
    report = verify_dataset(tmp_path)
    assert len(report.problems) == 31
    assert "370 more samples" in report.problems[-1].message
    assert len(verify_dataset(tmp_path, deep=True).problems) == 400


def test_an_error_of_a_users_own_encoding_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_dataset(tmp_path, [{"a": np.arange(3)}] * 4, {"a": "ndarray"})
    from streamshard.format.ndarray import NdarrayEncoding

    def decode(self: Encoding, payload: bytes) -> None:
        raise KeyError("mine")

    monkeypatch.setattr(NdarrayEncoding, "decode", decode)
    report = verify_dataset(tmp_path)
    assert [problem.row for problem in report.problems] == [0, 1, 2, 3]
    assert "KeyError" in report.problems[0].message


def test_a_worker_that_dies_is_a_problem_and_the_others_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killer = tmp_path / "killer.py"
    killer.write_text(
        "import os\ndef die():\n    os._exit(9)\nclass Die:\n    def __reduce__(self): return (die, ())\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    import killer as module  # type: ignore[import-not-found]

    samples = [{"p": module.Die() if i == 25 else i} for i in range(60)]
    write_dataset(tmp_path / "data", samples, {"p": "pkl"})
    report = verify_dataset(tmp_path / "data", workers=2, allow_unsafe_types=True)
    assert [problem.shard for problem in report.problems] == ["shard.00002.mds"]
    assert "died" in report.problems[0].message
    assert report.decoded_samples == 50


def test_a_report_is_plain_data(tmp_path: Path) -> None:
    import json

    write_dataset(tmp_path, text_samples(10))
    (tmp_path / "shard.00000.mds").unlink()
    report = verify_dataset(tmp_path)
    document = json.loads(json.dumps(report.to_json()))
    assert document["ok"] is False
    assert document["problems"][0]["shard"] == "shard.00000.mds"
    assert pickle.loads(pickle.dumps(report)) == report


def test_a_missing_package_is_one_problem_a_shard_not_one_a_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_dataset(tmp_path, [{"i": b"\xff\xd8\xff"}] * 20, {"i": "jpeg"})
    monkeypatch.setitem(sys.modules, "PIL", None)
    problems = verify_dataset(tmp_path).problems
    assert [(problem.shard, problem.row) for problem in problems] == [
        ("shard.00000.mds", None),
        ("shard.00001.mds", None),
    ]
    assert "pillow" in problems[0].message


def test_a_note_that_every_shard_gives_is_listed_once(tmp_path: Path) -> None:
    write_dataset(tmp_path, [{"p": 1, "n": 2}] * 50, {"p": "pkl", "n": "int"})
    assert verify_dataset(tmp_path).notes == ["not decoded, since pkl can run code: 'p'"]


def test_progress_is_told_and_arguments_are_checked(tmp_path: Path) -> None:
    write_dataset(tmp_path, text_samples(30))
    told: list[tuple[int, int]] = []
    verify_dataset(tmp_path, progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 3), (2, 3), (3, 3)]
    with pytest.raises(ValueError, match="workers=0"):
        verify_dataset(tmp_path, workers=0)

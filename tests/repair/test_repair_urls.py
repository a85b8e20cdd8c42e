"""repair at a URL: files that are bad are put there again, checked before; nothing is cut."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import pytest

from streamshard import MDSWriter
from streamshard.errors import AccessDeniedError, BlobNotFoundError, DirectoryInUseError, FormatError
from streamshard.read.verify import verify_dataset
from streamshard.repair.job import repair_dataset
from streamshard.repair.remote import RemoteJob
from streamshard.repair.report import RepairReport
from streamshard.storage import open_store
from streamshard.storage.memory_store import MemoryStore
from streamshard.write.remote_claim import RemoteClaim
from tests.support.seaweedfs import SeaweedServer
from tests.support.small_datasets import COLUMNS, text_samples


def files_at(url: str, options: Any = None) -> dict[str, bytes]:
    store = open_store(url, storage_options=options)
    return {key: store.read(key) for key in store.list()}


def put(url: str, files: dict[str, bytes], options: Any = None) -> str:
    store = open_store(url, storage_options=options)
    for name, content in files.items():
        store.put_bytes(name, content)
    return url


def dataset(**options: Any) -> dict[str, bytes]:
    """The files of a small dataset."""
    url = f"memory://{secrets.token_hex(6)}"
    options = {"sample_hash": "xxh64", "samples_per_shard": 10, **options}
    with MDSWriter(out=url, columns=COLUMNS, **options) as writer:
        for sample in text_samples(40):
            writer.write(sample)
    return files_at(url)


@pytest.fixture
def url() -> str:
    return f"memory://{secrets.token_hex(6)}/set"


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("copy_is", ["a directory", "a URL"])
def test_lost_and_cut_files_come_from_a_copy(
    url: str, copy_is: str, compression: str | None, tmp_path: Path
) -> None:
    files = dataset(compression=compression)
    origin = str(tmp_path) if copy_is == "a directory" else f"{url}-copy"
    put(origin, files)
    ending = ".mds.zstd" if compression else ".mds"
    spoilt = {**files, f"shard.00001{ending}": files[f"shard.00001{ending}"][:-3]}
    del spoilt[f"shard.00002{ending}"], spoilt["shard.00003.mds.samples"]
    put(url, {**spoilt, "notes.txt": b"mine"})
    before = files_at(url)
    report = repair_dataset(url, origin=origin, dry_run=True)
    assert (report.ok, report.changed, len(report.repairs)) == (True, True, 3)
    assert files_at(url) == before
    report = repair_dataset(url, origin=origin)
    assert (report.ok, report.num_lost, [each.done for each in report.repairs]) == (True, 0, ["fetched"] * 3)
    assert files_at(url) == {**files, "notes.txt": b"mine"}
    assert not repair_dataset(url, origin=origin).changed


def test_damage_inside_a_shard_is_found_by_reading_all(url: str) -> None:
    files = dataset()
    put(f"{url}-copy", files)
    damaged = files["shard.00001.mds"].replace(b"text of 13 ", b"TEXT of 13 ", 1)
    assert damaged != files["shard.00001.mds"]
    put(url, {**files, "shard.00001.mds": damaged})
    report = repair_dataset(url, origin=f"{url}-copy")
    assert (report.changed, report.notes) == (
        False,
        ["only sizes and headers were looked at; --deep (deep=True) reads all shards"],
    )
    assert [each.shard for each in repair_dataset(url, origin=f"{url}-copy", deep=True).repairs] == [
        "shard.00001.mds"
    ]
    assert files_at(url) == files


def test_a_copy_that_is_bad_too_is_not_taken(url: str) -> None:
    files = dataset()
    damaged = files["shard.00001.mds"].replace(b"text of 13 ", b"TEXT of 13 ", 1)
    put(f"{url}-copy", {**files, "shard.00001.mds": damaged})
    del files["shard.00001.mds"]
    put(url, files)
    for origin, words in ((f"{url}-copy", "that of the origin is bad too"), (None, "no origin was given")):
        report = repair_dataset(url, origin=origin)
        assert (report.ok, report.changed) == (False, False)
        assert words in report.repairs[0].message
        assert "copy the dataset to a directory" in report.repairs[0].message
    assert files_at(url) == files


@pytest.mark.parametrize("compression", [None, "gz"])
def test_an_index_that_is_lost_is_made_anew_byte_for_byte(url: str, compression: str | None) -> None:
    files = dataset(compression=compression)
    put(url, {**files, "index.json": b"{"})
    report = repair_dataset(url, dry_run=True)
    assert (report.index, report.num_samples) == ("rebuilt", 40)
    assert files_at(url)["index.json"] == b"{"
    report = repair_dataset(url)
    assert (report.ok, report.index) == (True, "rebuilt")
    assert files_at(url) == files
    assert verify_dataset(url, deep=True).ok


def test_an_index_comes_from_the_copy_and_then_the_shards_that_it_names(url: str) -> None:
    files = dataset()
    put(f"{url}-copy/train", files)
    put(f"{url}/train", {"shard.00000.mds": files["shard.00000.mds"]})
    report = repair_dataset(url, origin=f"{url}-copy", split="train")
    assert (report.ok, report.index, len(report.repairs)) == (True, "fetched", 4)
    assert files_at(f"{url}/train") == files


def test_what_says_nothing_of_itself_is_left(url: str) -> None:
    with pytest.raises(BlobNotFoundError, match="no file named like a shard"):
        repair_dataset(url)
    files = {name: content for name, content in dataset().items() if name != "index.json"}
    put(url, {**files, "shard.00001.mds": b"\xff" * 100})
    with pytest.raises(FormatError, match=r"shard.00001.mds.*nothing was changed"):
        repair_dataset(url)
    assert "index.json" not in files_at(url)


def test_a_copy_that_may_not_be_read_leaves_the_shard_as_it_is_and_the_others_are_looked_at(url: str) -> None:
    class Refused(MemoryStore):
        def fetch_to(self, key: str, *_: Any, **__: Any) -> int:
            raise AccessDeniedError(f"{key}: permission denied")

    files = dataset()
    put(f"{url}-copy", files)
    put(url, {**files, "shard.00001.mds": b"cut", "shard.00003.mds": b"cut"})
    report = repair_dataset(url, origin=Refused(f"{url}-copy"))
    assert [(each.shard, each.done) for each in report.repairs] == [
        ("shard.00001.mds", "undecided"),
        ("shard.00003.mds", "undecided"),
    ]
    assert "permission denied" in report.repairs[0].message


def test_of_a_shard_that_says_nothing_no_copy_stays_here(url: str, tmp_path: Path) -> None:
    put(url, {"shard.00000.mds": b"junk"})
    report = RepairReport(url, dry_run=True)
    job = RemoteJob(MemoryStore(url), None, None, report, False, True, False, tmp_path)
    with pytest.raises(FormatError, match=r"of 'shard\.00000\.mds': "):
        job.run(None)
    assert list((tmp_path / "rebuilding").iterdir()) == []


def test_nobody_writes_there_meanwhile_and_arguments_make_sense(url: str, tmp_path: Path) -> None:
    put(url, dataset())
    claim = RemoteClaim(open_store(url))
    with pytest.raises(DirectoryInUseError):
        repair_dataset(url)
    claim.release()
    assert not repair_dataset(url).changed
    with pytest.raises(ValueError, match="the place to repair itself"):
        repair_dataset(url, origin=f"{url}/")
    with pytest.raises(ValueError, match="are not cut"):
        repair_dataset(url, unproven="keep")


def test_a_bucket_is_repaired(s3: SeaweedServer, tmp_path: Path) -> None:
    options, url = s3.storage_options, f"{s3.make_bucket()}/set"
    files = dataset(compression="zstd")
    put(str(tmp_path), files)
    put(
        url, {name: content for name, content in files.items() if not name.startswith("shard.00002")}, options
    )
    report = repair_dataset(url, origin=tmp_path, storage_options=options)
    assert (report.ok, len(report.repairs)) == (True, 1)
    assert files_at(url, options) == files

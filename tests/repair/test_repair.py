"""repair: what is lost is fetched, rebuilt or cut away and listed; at every moment there is a whole dataset."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from streamshard import LocalDataset, MDSWriter, StreamingDataset
from streamshard.errors import AccessDeniedError, BlobNotFoundError, FormatError, StorageError
from streamshard.read.verify import verify_dataset
from streamshard.repair.job import repair_dataset
from streamshard.repair.transaction import WORK_DIRECTORY
from streamshard.storage import open_store
from streamshard.storage.local_store import LocalStore
from tests.support import damage
from tests.support.jsonl_inputs import files_of
from tests.support.small_datasets import COLUMNS, text_samples

COMPRESSIONS = [None, "zstd", "gz", "bz2", "br:1", "snappy"]


def write(directory: Path, count: int = 60, **options: Any) -> Path:
    options = {"sample_hash": "xxh64", "samples_per_shard": 10, "costs": {"chars": "number"}, **options}
    with MDSWriter(out=directory, columns=COLUMNS, **options) as writer:
        for sample in text_samples(count):
            writer.write(sample)
    return directory


def numbers(directory: Path, **options: Any) -> list[int]:
    return [sample["number"] for sample in LocalDataset(directory, **options)]


def corrupt(directory: Path, number: int) -> None:
    """Change one letter of the sample of that number; it decodes."""
    path = directory / f"shard.{number // 10:05d}.mds"
    content = bytearray(path.read_bytes())
    content[content.index(f"text of {number} ".encode())] = ord("T")
    path.write_bytes(content)


def all_files(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def sound(directory: Path) -> bool:
    report = verify_dataset(directory)
    return report.ok and report.notes == []


def test_a_sound_dataset_is_left_as_it_is(tmp_path: Path) -> None:
    write(tmp_path)
    before = all_files(tmp_path)
    report = repair_dataset(tmp_path)
    assert (report.ok, report.changed, report.repairs, report.notes) == (True, False, [], [])
    assert all_files(tmp_path) == before


# The index


@pytest.mark.parametrize("how", [damage.remove_index, damage.cut_index], ids=["missing", "cut"])
@pytest.mark.parametrize("compression", COMPRESSIONS, ids=str)
def test_an_index_is_made_anew_byte_for_byte(tmp_path: Path, compression: str | None, how: Any) -> None:
    write(tmp_path, compression=compression, hashes=["md5", "xxh64"], costs=None)
    before = all_files(tmp_path)
    how(tmp_path)
    report = repair_dataset(tmp_path)
    assert (report.ok, report.index, report.num_samples, report.num_lost) == (True, "rebuilt", 60, 0)
    assert all_files(tmp_path) == before


def test_what_only_the_index_knew_is_said_to_be_lost(tmp_path: Path) -> None:
    write(tmp_path)
    damage.remove_index(tmp_path)
    report = repair_dataset(tmp_path)
    assert any("costs" in note for note in report.notes)
    assert numbers(tmp_path, validate_samples=True) == list(range(60))


def test_an_index_comes_from_the_origin_where_there_is_one(tmp_path: Path) -> None:
    write(tmp_path / "d")
    shutil.copytree(tmp_path / "d", tmp_path / "origin")
    before = all_files(tmp_path / "d")
    damage.cut_index(tmp_path / "d")
    report = repair_dataset(tmp_path / "d", origin=tmp_path / "origin")
    assert (report.ok, report.index) == (True, "fetched")
    assert all_files(tmp_path / "d") == before


def test_shards_that_say_nothing_of_themselves_and_gaps_are_listed(tmp_path: Path) -> None:
    write(tmp_path, sample_hash=None)
    damage.remove_index(tmp_path)
    (tmp_path / "shard.00001.mds").write_bytes(b"\xff" * 500)
    (tmp_path / "shard.00003.mds").unlink()
    report = repair_dataset(tmp_path)
    assert [(repair.shard, repair.done) for repair in report.repairs] == [("shard.00001.mds", "dropped")]
    assert any("shard.00003.mds is not there" in note for note in report.notes)
    assert numbers(tmp_path) == [n for n in range(60) if n // 10 not in (1, 3)]
    assert (tmp_path / "shard.00001.mds").exists()


def test_hashes_of_samples_that_fit_not_are_left_out_and_said(tmp_path: Path) -> None:
    write(tmp_path)
    damage.remove_index(tmp_path)
    corrupt(tmp_path, 33)
    report = repair_dataset(tmp_path)
    assert any("hashes of samples are left out: of 1 shards" in note for note in report.notes)
    assert numbers(tmp_path) == list(range(60))


def test_without_any_shard_nothing_can_be_made(tmp_path: Path) -> None:
    with pytest.raises(BlobNotFoundError, match=r"no file named like a shard"):
        repair_dataset(tmp_path)
    write(tmp_path / "a")
    with pytest.raises(BlobNotFoundError, match=r"datasets in folders \(a\): 'streamshard merge'"):
        repair_dataset(tmp_path)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "shard.00000.mds").write_bytes(b"junk")
    with pytest.raises(FormatError, match="no index can be made"):
        repair_dataset(tmp_path / "b")
    assert not list(tmp_path.rglob(WORK_DIRECTORY))


# Shards


def spoil(directory: Path) -> None:
    damage.remove(directory, 0)
    damage.truncate(directory, 1)
    corrupt(directory, 27)
    damage.empty(directory, 4)
    (directory / "shard.00005.mds.samples").unlink()


def test_what_is_damaged_is_fetched_from_the_origin(tmp_path: Path) -> None:
    write(tmp_path / "d")
    store = open_store(f"memory://{uuid.uuid4().hex}")
    for path in (tmp_path / "d").iterdir():
        store.put(f"train/{path.name}", path)
    before = all_files(tmp_path / "d")
    spoil(tmp_path / "d")
    (tmp_path / "d").rename(tmp_path / "train")
    report = repair_dataset(tmp_path, origin=store, split="train")
    assert [repair.done for repair in report.repairs] == ["fetched"] * 5
    assert (report.ok, report.num_lost) == (True, 0)
    assert all_files(tmp_path / "train") == before


def test_a_copy_that_is_damaged_too_is_not_taken(tmp_path: Path) -> None:
    write(tmp_path / "d")
    shutil.copytree(tmp_path / "d", tmp_path / "origin")
    corrupt(tmp_path / "d", 27)
    corrupt(tmp_path / "d", 41)
    corrupt(tmp_path / "origin", 28)
    damage.remove(tmp_path / "origin", 4)
    report = repair_dataset(tmp_path / "d", origin=tmp_path / "origin")
    assert [(repair.done, repair.lost) for repair in report.repairs] == [
        ("cut", ((27, 28),)),
        ("cut", ((41, 42),)),
    ]
    assert "that of the origin is bad too" in report.repairs[0].message
    assert "the origin does not have it" in report.repairs[1].message
    assert sorted(numbers(tmp_path / "d")) == [n for n in range(60) if n not in (27, 41)]


@pytest.mark.parametrize(
    "trouble",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        StorageError("no answer"),
        AccessDeniedError("not you"),
    ],
    ids=["a full disk", "no answer", "refused"],
)
def test_what_the_origin_may_have_is_not_cut_because_it_cannot_be_fetched_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: OSError
) -> None:
    write(tmp_path / "d")
    shutil.copytree(tmp_path / "d", tmp_path / "origin")
    corrupt(tmp_path / "d", 27)
    damage.remove(tmp_path / "d", 4)
    (tmp_path / "d" / "shard.00005.mds.samples").unlink()
    before = all_files(tmp_path / "d")

    def fail(*_arguments: Any, **_options: Any) -> None:
        raise trouble

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "fetch_to", fail)
        report = repair_dataset(tmp_path / "d", origin=tmp_path / "origin")
    assert [repair.done for repair in report.repairs] == ["undecided", "undecided", "side file made"]
    assert (report.ok, report.num_lost) == (False, 0)
    assert "does not have" not in report.repairs[0].message
    assert str(trouble) in report.repairs[0].message
    found = all_files(tmp_path / "d")
    assert found.pop("shard.00005.mds.samples")
    assert found == before
    assert repair_dataset(tmp_path / "d", origin=tmp_path / "origin").ok
    assert all_files(tmp_path / "d") == all_files(tmp_path / "origin")


def test_shards_are_cut_to_the_samples_whose_hash_is_right(tmp_path: Path) -> None:
    write(tmp_path, hashes=["xxh64", "md5"])
    spoil(tmp_path)
    report = repair_dataset(tmp_path)
    assert [(repair.shard, repair.done) for repair in report.repairs] == [
        ("shard.00000.mds", "dropped"),
        ("shard.00001.mds", "cut"),
        ("shard.00002.mds", "cut"),
        ("shard.00004.mds", "dropped"),
        ("shard.00005.mds.samples", "side file made"),
    ]
    lost = [*range(10), 19, 27, *range(40, 50)]
    assert [repair.lost for repair in report.repairs] == [
        ((0, 10),),
        ((19, 20),),
        ((27, 28),),
        ((40, 50),),
        (),
    ]
    assert report.num_lost == len(lost)
    assert all(repair.unproven == 0 for repair in report.repairs)
    left = [n for n in range(60) if n not in lost]
    assert numbers(tmp_path, validate_samples=True) == left
    assert sorted(path.name for path in tmp_path.glob("*.mds")) == [
        f"shard.0000{n}.mds" for n in (3, 5, 6, 7)
    ]
    assert sound(tmp_path)
    dataset = StreamingDataset(local=tmp_path, batch_size=4, validate_samples=True)
    assert [sample["number"] for sample in dataset] == left
    assert not repair_dataset(tmp_path).changed


@pytest.mark.parametrize("compression", COMPRESSIONS[1:], ids=str)
def test_a_compressed_shard_that_is_cut_gives_what_comes_before_the_cut(
    tmp_path: Path, compression: str
) -> None:
    """Incompressible rows: some of them come before any cut, in formats that can be unpacked in parts."""
    rng = np.random.default_rng(3)
    rows = [rng.bytes(20_000) for _ in range(100)]
    with MDSWriter(
        out=tmp_path, columns={"b": "bytes"}, compression=compression, sample_hash="xxh64"
    ) as writer:
        for row in rows:
            writer.write({"b": row})
        writer.write({"b": b"x"})
    path = tmp_path / ("shard.00000.mds." + compression.partition(":")[0])
    os.truncate(path, path.stat().st_size * 3 // 4)
    if compression == "snappy":  # one block, all or nothing
        with pytest.raises(FormatError, match="no sample of the dataset is left"):
            repair_dataset(tmp_path)
        return
    report = repair_dataset(tmp_path)
    (repair,) = report.repairs
    assert repair.done == "cut"
    kept = [sample["b"] for sample in LocalDataset(tmp_path, validate_samples=True)]
    assert 0 < len(kept) < 80  # Brotli holds back much of what it has read
    assert compression == "br:1" or len(kept) > 20
    assert kept == rows[: len(kept)]
    assert repair.lost == ((len(kept), 101),)
    assert verify_dataset(tmp_path).ok


def test_without_hashes_of_samples_those_that_decode_are_kept_and_called_unproven(tmp_path: Path) -> None:
    write(tmp_path, sample_hash=None)
    damage.spoil_row(tmp_path, 1, 3)
    damage.truncate(tmp_path, 2)
    report = repair_dataset(tmp_path)
    assert [(repair.lost, repair.unproven) for repair in report.repairs] == [
        (((13, 14),), 9),
        (((29, 30),), 9),
    ]
    assert "that they decode is all that speaks for them" in report.repairs[0].message
    assert sorted(numbers(tmp_path)) == [n for n in range(60) if n not in (13, 29)]
    assert sound(tmp_path)


def test_where_nothing_tells_the_bad_samples_the_user_decides(tmp_path: Path) -> None:
    write(tmp_path / "d", sample_hash=None)
    corrupt(tmp_path / "d", 33)
    before = all_files(tmp_path / "d")
    report = repair_dataset(tmp_path / "d")
    assert (report.ok, report.changed) == (False, False)
    assert "nothing says which of them are damaged (no origin was given)" in report.repairs[0].message
    assert all_files(tmp_path / "d") == before
    for decision, left in (("keep", list(range(60))), ("drop", [n for n in range(60) if n // 10 != 3])):
        copy = Path(shutil.copytree(tmp_path / "d", tmp_path / decision))
        report = repair_dataset(copy, unproven=decision)  # type: ignore[arg-type]
        assert report.ok
        assert sorted(numbers(copy)) == left
        assert sound(copy)


def test_costs_stay_where_whole_shards_go_and_are_left_out_where_one_is_cut(tmp_path: Path) -> None:
    write(tmp_path / "a")
    damage.remove(tmp_path / "a", 2)
    repair_dataset(tmp_path / "a")
    facts = json.loads((tmp_path / "a" / "index.json").read_text())["streamshard"]
    assert facts["costs"]["chars"]["shards"] == [sum(range(n, n + 10)) for n in (0, 10, 30, 40, 50)]
    corrupt(tmp_path / "a", 33)
    report = repair_dataset(tmp_path / "a")
    assert any("costs 'chars' are left out" in note for note in report.notes)
    assert "costs" not in json.loads((tmp_path / "a" / "index.json").read_text())["streamshard"]


def test_a_good_raw_file_saves_a_shard_whose_compressed_file_is_lost(tmp_path: Path) -> None:
    write(tmp_path, compression="zstd", sample_hash=None, costs=None)
    for number, action in ((1, "remove"), (2, "spoil")):
        path = tmp_path / f"shard.{number:05d}.mds.zstd"
        raw = zstandard.ZstdDecompressor().decompress(path.read_bytes())
        (tmp_path / f"shard.{number:05d}.mds").write_bytes(raw if action == "remove" else raw[:-1] + b"X")
        if action == "remove":
            path.unlink()
    report = repair_dataset(tmp_path)
    assert [(repair.done, repair.num_lost) for repair in report.repairs] == [("rewritten", 0), ("removed", 0)]
    assert sorted(numbers(tmp_path)) == list(range(60))
    assert sound(tmp_path)
    assert not (tmp_path / "shard.00002.mds").exists()


def test_what_this_machine_cannot_decode_is_no_reason_to_lose_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MDSWriter(out=tmp_path, columns={"i": "png"}) as writer:
        writer.write({"i": _png()})
    damage.flip_bit(tmp_path, 0)
    before = all_files(tmp_path)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "PIL", None)
        report = repair_dataset(tmp_path)
    assert [repair.done for repair in report.repairs] == ["undecided"]
    assert "pillow" in report.repairs[0].message
    assert all_files(tmp_path) == before


def _png() -> bytes:
    import io

    from PIL import Image

    out = io.BytesIO()
    Image.new("RGB", (4, 4), (9, 8, 7)).save(out, "PNG")
    return out.getvalue()


def test_a_shard_that_cannot_be_opened_is_left(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "shard.00001.mds").unlink()
    (tmp_path / "shard.00001.mds").mkdir()
    report = repair_dataset(tmp_path)
    assert [repair.done for repair in report.repairs] == ["undecided"]
    assert "not a regular file" in report.repairs[0].message
    assert report.num_lost == 0


# The transaction


def test_a_dry_run_tells_the_same_and_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path)
    spoil(tmp_path)
    os.truncate(tmp_path / "index.json", 100)
    before = all_files(tmp_path)
    told = repair_dataset(tmp_path, dry_run=True)
    assert told.dry_run
    assert told.changed
    assert all_files(tmp_path) == before
    done = repair_dataset(tmp_path)
    assert [(r.shard, r.done, r.lost) for r in told.repairs] == [
        (r.shard, r.done, r.lost) for r in done.repairs
    ]


def test_states_of_before_do_not_fit_a_dataset_that_was_cut(tmp_path: Path) -> None:
    from streamshard import StreamingDataLoader
    from streamshard.errors import StateError

    write(tmp_path)
    loader = StreamingDataLoader(StreamingDataset(local=tmp_path), batch_size=6)
    next(iter(loader))
    state = loader.state_dict()
    corrupt(tmp_path, 3)
    repair_dataset(tmp_path)
    again = StreamingDataLoader(StreamingDataset(local=tmp_path), batch_size=6)
    with pytest.raises(StateError):
        again.load_state_dict(state)


KILLED = """
import os, sys
from streamshard.repair import transaction, job
from streamshard.storage.local_store import LocalStore
from pathlib import Path
left = int(sys.argv[2])
def counted(function):
    def run(*arguments, **options):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), 9)
        return function(*arguments, **options)
    return run
Path.replace, Path.unlink = counted(Path.replace), counted(Path.unlink)
job.repair_dataset(sys.argv[1], origin=sys.argv[3] if len(sys.argv) > 3 else None)
"""


def killed_repair(directory: Path, after: int, *origin: Path) -> bool:
    """Repair, killed before a step that changes a directory; say whether it came to that."""
    command = [sys.executable, "-c", KILLED, str(directory), str(after), *map(str, origin)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode in (0, -9), done.stderr
    return done.returncode == -9


@pytest.mark.slow
def test_killed_at_any_step_the_dataset_is_the_old_or_the_new_one_and_the_next_run_finishes(
    tmp_path: Path,
) -> None:
    write(tmp_path / "spoilt", 30)
    corrupt(tmp_path / "spoilt", 13)
    (tmp_path / "spoilt" / "shard.00002.mds").unlink()
    old = json.loads((tmp_path / "spoilt" / "index.json").read_text())
    steps = 0
    while True:
        copy = Path(shutil.copytree(tmp_path / "spoilt", tmp_path / f"{steps}"))
        was_killed = killed_repair(copy, steps)
        index = json.loads((copy / "index.json").read_text())
        if index == old:  # as before: what was good is there
            assert LocalDataset(copy)[:10] == text_samples(10)
            assert (copy / "shard.00001.mds").exists()
        else:
            assert numbers(copy, validate_samples=True) == [n for n in range(20) if n != 13]
        if was_killed:
            repair_dataset(copy)
        assert numbers(copy, validate_samples=True) == [n for n in range(20) if n != 13]
        assert sound(copy)
        assert not (copy / WORK_DIRECTORY).exists()
        steps += 1
        if not was_killed:
            break
    assert steps > 8


def test_two_repairs_at_once_are_refused_and_a_failed_one_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamshard.repair.transaction import Transaction

    write(tmp_path)
    corrupt(tmp_path, 3)
    before = all_files(tmp_path)
    with Transaction(tmp_path), pytest.raises(StorageError, match="another repair is at work"):
        repair_dataset(tmp_path)

    def fail(*_: object) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr("streamshard.storage.local_store.LocalStore.put_bytes", fail)
    with pytest.raises(StorageError, match="the disk is full"):
        repair_dataset(tmp_path)
    assert all_files(tmp_path) == before


def test_whatever_lies_in_the_work_directory_a_repair_begins(tmp_path: Path) -> None:
    write(tmp_path)
    corrupt(tmp_path, 3)
    work = tmp_path / WORK_DIRECTORY
    (work / "journal.json").mkdir(parents=True)
    (work / "new").write_text("not a directory")
    (work / "elsewhere").symlink_to(tmp_path)
    assert repair_dataset(tmp_path).ok
    assert sound(tmp_path)
    assert not work.exists()


def test_a_repair_that_could_not_begin_lets_the_next_one_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamshard.repair.transaction import Transaction

    def fail(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(Transaction, "_finish_what_was_left", fail)
        with pytest.raises(StorageError, match=f"{WORK_DIRECTORY}: cannot be used: Permission denied"):
            Transaction(tmp_path).__enter__()
    with Transaction(tmp_path):
        pass


def test_a_lock_that_its_last_owner_removed_protects_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamshard.repair.transaction import Transaction
    from streamshard.storage.locks import FileLock

    take = FileLock.try_acquire

    def take_late(lock: FileLock) -> bool:
        (tmp_path / WORK_DIRECTORY / "lock").unlink()
        return take(lock)

    monkeypatch.setattr(FileLock, "try_acquire", take_late)
    with pytest.raises(StorageError, match="another repair is at work"):
        Transaction(tmp_path).__enter__()


def test_arguments_that_make_no_sense(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(ValueError, match="not a directory of this machine"):
        repair_dataset("s3://bucket/data", unproven="drop")
    with pytest.raises(ValueError, match="unproven='maybe'"):
        repair_dataset(tmp_path, unproven="maybe")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the directory to repair itself"):
        repair_dataset(tmp_path, origin=tmp_path)
    with pytest.raises(BlobNotFoundError):
        repair_dataset(tmp_path / "nope")


def test_files_of_others_stay(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "shard.00077.mds").write_text("whose?")
    spoil(tmp_path)
    repair_dataset(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert (tmp_path / "shard.00077.mds").read_text() == "whose?"
    assert files_of(tmp_path)["shard.00078.mds"]

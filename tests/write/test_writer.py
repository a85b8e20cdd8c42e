"""MDSWriter: what is there afterwards, what is refused, and that a failure leaves nothing."""

# ruff: noqa: PT012  the block that fails is a whole use of a writer
from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import tracemalloc
from concurrent.futures import wait
from pathlib import Path

import numpy as np
import pytest

from streamshard import MDSWriter
from streamshard.errors import FormatError, SampleError, ShardTooLargeError, StorageError
from streamshard.format.hashing import hash_bytes
from streamshard.storage import open_store
from streamshard.storage.local_store import LocalStore
from tests.support.stored_datasets import files_of, load_index, load_samples

COLUMNS = {"n": "int", "t": "str"}


def samples(count, nbytes=20):
    return [{"n": i, "t": f"{i:03}" + "x" * (nbytes - 3)} for i in range(count)]


def write(out, rows, **options):
    with MDSWriter(out=out, columns=options.pop("columns", COLUMNS), **options) as writer:
        for row in rows:
            writer.write(row)
    return writer


def test_samples_read_back_in_order_over_many_shards(tmp_path):
    writer = write(tmp_path / "d", samples(500), size_limit=1000)
    assert load_samples(tmp_path / "d") == samples(500)
    index = load_index(tmp_path / "d")
    assert index.num_shards > 10
    assert writer.num_samples == index.num_samples == 500
    assert all(shard.raw.nbytes <= 1000 for shard in index.shards)
    assert sorted(files_of(tmp_path / "d")) == ["index.json", *(s.raw.basename for s in index.shards)]


def test_the_shards_are_the_same_every_time(tmp_path):
    for name in ("a", "b"):
        write(tmp_path / name, samples(300), size_limit=2000, compression="zstd:3", hashes=["xxh64", "sha1"])
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")


def test_every_file_has_an_xxh64_by_default_and_it_is_right(tmp_path):
    write(tmp_path / "d", samples(50), size_limit=1000)
    for shard in load_index(tmp_path / "d").shards:
        content = (tmp_path / "d" / shard.raw.basename).read_bytes()
        assert shard.raw.hashes == {"xxh64": hash_bytes("xxh64", content)}


def test_hashes_in_any_order_are_stored_sorted_and_none_on_request(tmp_path):
    write(tmp_path / "d", samples(2), hashes=["xxh64", "md5"], compression="gz")
    shard = load_index(tmp_path / "d").shards[0]
    assert shard.hashes == ("md5", "xxh64")
    assert list(shard.compressed.hashes) == ["md5", "xxh64"]
    content = (tmp_path / "d" / "shard.00000.mds.gz").read_bytes()
    assert shard.compressed.hashes["md5"] == hash_bytes("md5", content)
    write(tmp_path / "e", samples(2), hashes=[])
    assert load_index(tmp_path / "e").shards[0].raw.hashes == {}


def test_s8_no_empty_shard_where_the_first_sample_is_larger_than_the_limit(tmp_path):
    write(tmp_path / "d", samples(5, nbytes=500), size_limit=100)
    assert load_index(tmp_path / "d").samples_per_shard.tolist() == [1] * 5


def test_b082_samples_per_shard(tmp_path):
    write(tmp_path / "d", samples(1050), samples_per_shard=100)
    assert load_index(tmp_path / "d").samples_per_shard.tolist() == [100] * 10 + [50]


def test_b021_no_samples_give_a_valid_empty_dataset(tmp_path):
    write(tmp_path / "d", [])
    assert (tmp_path / "d" / "index.json").read_bytes() == b'{"shards": [], "version": 2}'


def test_b067_the_last_sample_of_each_of_five_shards_reads_back(tmp_path):
    write(tmp_path / "d", samples(50), samples_per_shard=10)
    found = load_samples(tmp_path / "d")
    assert [found[i] for i in range(9, 50, 10)] == samples(50)[9::10]


@pytest.mark.parametrize(
    ("limit", "nbytes"), [("100kb", 102400), ("1.5mb", 1572864), (2**32 - 1, 2**32 - 1), (1, 1), (None, None)]
)
def test_b065_size_limits_that_make_sense(limit, nbytes, tmp_path):
    write(tmp_path / "d", samples(1), size_limit=limit)
    assert load_index(tmp_path / "d").shards[0].size_limit == nbytes


@pytest.mark.parametrize("limit", ["4gb", 2**32, "5gb", 0, "0", -1, "-1", "abc", "", 1.5, True])
def test_b064_b065_size_limits_that_make_none_are_refused_with_their_value(limit, tmp_path):
    with pytest.raises(ValueError, match=re.escape(f"size_limit={limit!r}")):
        MDSWriter(out=tmp_path / "d", columns=COLUMNS, size_limit=limit)
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"compression": "lz4"}, "compression='lz4'"),
        ({"hashes": ["crc"]}, "hash 'crc'"),
        ({"hashes": ["sha1", "sha1"]}, "a name occurs twice"),
        ({"hashes": "sha1"}, "expected a list of names"),
        ({"samples_per_shard": 0}, "samples_per_shard=0"),
        ({"max_workers": 0}, "max_workers=0"),
        ({"retry": -1}, "retry=-1"),
        ({"columns": {}}, "columns={}"),
        ({"columns": {"a": "txt"}}, "unknown encoding 'txt'"),
        ({"out": ("a", "b", "c")}, "expected a directory, a URL, or a pair"),
        ({"out": ""}, "expected a directory"),
        ({"out": ("s3://b/x", "s3://b/y")}, "first of the pair must be a local directory"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_before_anything_is_made(
    options, words, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=words):
        MDSWriter(**{"out": tmp_path / "d", "columns": COLUMNS, **options})
    assert list(tmp_path.iterdir()) == []


def test_a_pair_of_one_place_is_refused(tmp_path):
    with pytest.raises(ValueError, match="both places"):
        MDSWriter(out=(tmp_path / "d", f"file://{tmp_path}/d"), columns=COLUMNS)


def test_a_sample_error_names_the_sample_and_the_writer_goes_on(tmp_path):
    with MDSWriter(out=tmp_path / "d", columns=COLUMNS) as writer:
        writer.write({"n": 1, "t": "a"})
        with pytest.raises(
            SampleError, match=r"sample 1: column 'n' \(encoding 'int'\): expected an integer, found str"
        ):
            writer.write({"n": "2", "t": "b"})
        writer.write({"n": 3, "t": "c"})
    assert [s["n"] for s in load_samples(tmp_path / "d")] == [1, 3]


def test_a_sample_that_no_shard_can_hold_is_refused_by_its_number(tmp_path, monkeypatch):
    monkeypatch.setattr("streamshard.format.shard.MAX_SHARD_NBYTES", 1000)
    with MDSWriter(out=tmp_path / "d", columns=COLUMNS, size_limit=None) as writer:
        for row in samples(100):
            writer.write(row)
        with pytest.raises(ShardTooLargeError, match="sample 100: a sample of"):
            writer.write({"n": 1, "t": "x" * 1000})
    assert all(s.raw.nbytes <= 1000 for s in load_index(tmp_path / "d").shards)
    assert load_index(tmp_path / "d").num_samples == 100


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_s13_an_exception_in_the_block_publishes_nothing(error, tmp_path):
    with pytest.raises(error), MDSWriter(out=tmp_path / "d", columns=COLUMNS, size_limit=500) as writer:
        for row in samples(100):
            writer.write(row)
        raise error
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RuntimeError, match="ended by an exception; nothing was published"):
        writer.write(samples(1)[0])


def test_s13_an_exception_leaves_the_files_of_others(tmp_path):
    (tmp_path / "d" / "sub").mkdir(parents=True)
    (tmp_path / "d" / "sub" / "notes.txt").write_text("mine")
    with (
        pytest.raises(ZeroDivisionError),
        MDSWriter(out=tmp_path / "d", columns=COLUMNS, size_limit=500, exist_ok=True) as writer,
    ):
        for row in samples(100):
            writer.write(row)
        raise ZeroDivisionError
    assert files_of(tmp_path / "d") == {"sub/notes.txt": b"mine"}


def test_a_writer_without_a_block_needs_finish_and_takes_it_twice(tmp_path):
    writer = MDSWriter(out=tmp_path / "d", columns=COLUMNS)
    writer.write(samples(1)[0])
    assert not (tmp_path / "d" / "index.json").exists()
    writer.finish()
    writer.finish()
    assert load_samples(tmp_path / "d") == samples(1)
    with pytest.raises(RuntimeError, match="the dataset is finished"):
        writer.write(samples(1)[0])


def test_b077_a_killed_writer_leaves_no_index_and_no_unfinished_shard(tmp_path):
    program = (
        "import os, signal, sys\n"
        "from streamshard import MDSWriter\n"
        "w = MDSWriter(out=sys.argv[1], columns={'n': 'int'}, size_limit=4000)\n"
        "for i in range(5000):\n"
        "    w.write({'n': i})\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "d")], cwd=Path(__file__).parents[2])
    assert done.returncode == -9
    names = set(files_of(tmp_path / "d"))
    assert "shard.00000.mds" in names
    assert "index.json" not in names
    write(tmp_path / "d", samples(3), exist_ok=True)
    assert set(files_of(tmp_path / "d")) == {"index.json", "shard.00000.mds"}


def test_b076_a_place_that_is_not_empty_is_refused_and_unchanged(tmp_path):
    write(tmp_path / "d", samples(100), size_limit=500)
    (tmp_path / "d" / "notes.txt").write_text("mine")
    before = files_of(tmp_path / "d")
    with pytest.raises(FileExistsError, match=r"is not empty .*exist_ok=True"):
        MDSWriter(out=tmp_path / "d", columns=COLUMNS)
    assert files_of(tmp_path / "d") == before


def test_b076_exist_ok_replaces_the_old_dataset_and_nothing_else(tmp_path):
    write(tmp_path / "d", samples(100), size_limit=500, compression="zstd")
    foreign = ("notes.txt", "sub/shard.00000.mds", "shard.mds", "xshard.00000.mds", "shard.00000.mds.bak")
    for name in (*foreign, "shard.99999.mds", ".ab12.streamshard-tmp"):
        (tmp_path / "d" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "d" / name).write_text("mine")
    write(tmp_path / "d", samples(3), exist_ok=True)
    assert set(files_of(tmp_path / "d")) == {"index.json", "shard.00000.mds", *foreign}
    assert load_samples(tmp_path / "d") == samples(3)


def test_b076_a_merged_dataset_is_replaced_with_its_parts_and_their_indexes(tmp_path):
    from streamshard import merge_index

    for part in ("a", "b"):
        write(tmp_path / "d" / part, samples(3))
    merge_index(str(tmp_path / "d"))
    write(tmp_path / "d" / "c", samples(3))
    write(tmp_path / "d", samples(1), exist_ok=True)
    assert set(files_of(tmp_path / "d")) == {
        "index.json",
        "shard.00000.mds",
        "c/index.json",
        "c/shard.00000.mds",
    }


def test_an_old_index_cannot_have_other_files_deleted(tmp_path: Path) -> None:
    write(tmp_path / "d", samples(3))
    index = json.loads((tmp_path / "d" / "index.json").read_bytes())
    index["shards"][0]["raw_data"]["basename"] = "notes.txt"
    (tmp_path / "d" / "index.json").write_text(json.dumps(index), encoding="ascii")
    (tmp_path / "d" / "notes.txt").write_text("mine", encoding="ascii")
    write(tmp_path / "d", samples(1), exist_ok=True)
    assert sorted(files_of(tmp_path / "d")) == ["index.json", "notes.txt", "shard.00000.mds"]


def test_an_old_index_that_is_hostile_names_no_file_outside(tmp_path):
    write(tmp_path / "d", samples(3))
    (tmp_path / "precious").write_text("mine")
    document = json.loads((tmp_path / "d" / "index.json").read_bytes())
    document["shards"][0]["raw_data"]["basename"] = "../precious"
    (tmp_path / "d" / "index.json").write_text(json.dumps(document))
    write(tmp_path / "d", samples(2), exist_ok=True)
    assert (tmp_path / "precious").read_text() == "mine"
    assert load_samples(tmp_path / "d") == samples(2)


def test_the_old_index_goes_first(tmp_path, monkeypatch):
    write(tmp_path / "d", samples(100), size_limit=500)
    deleted = []
    real = LocalStore.delete
    monkeypatch.setattr(LocalStore, "delete", lambda self, key: (deleted.append(key), real(self, key)))
    write(tmp_path / "d", samples(1), exist_ok=True)
    assert deleted[0] == "index.json"
    assert len(deleted) > 5


def test_an_output_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "d").write_text("mine")
    with pytest.raises(FileExistsError, match="is a file"):
        MDSWriter(out=tmp_path / "d", columns=COLUMNS, exist_ok=True)


# -- uploads -----------------------------------------------------------------------------------------------


def remote_files(url):
    store = open_store(url)
    return {key: store.read(key) for key in store.list()}


def test_a_url_gets_the_files_that_a_directory_gets(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "tmp").mkdir()
    write(tmp_path / "d", samples(300), size_limit=2000)
    write("memory://url-gets", samples(300), size_limit=2000)
    assert remote_files("memory://url-gets") == files_of(tmp_path / "d")
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("keep", [False, True])
def test_a_pair_keeps_its_local_files_only_on_request(keep, tmp_path):
    url = f"memory://pair-{keep}"
    write((tmp_path / "d", url), samples(300), size_limit=2000, keep_local=keep)
    assert len(remote_files(url)) > 3
    if keep:
        assert files_of(tmp_path / "d") == remote_files(url)
    else:
        assert not (tmp_path / "d").exists()


def test_a_pair_does_not_remove_what_others_have_in_the_directory(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "notes.txt").write_text("mine")
    write((tmp_path / "d", "memory://pair-notes"), samples(9), exist_ok=True)
    assert files_of(tmp_path / "d") == {"notes.txt": b"mine"}


def test_the_remote_of_a_pair_may_be_a_directory(tmp_path):
    write((tmp_path / "d", tmp_path / "there"), samples(9))
    assert load_samples(tmp_path / "there") == samples(9)
    assert not (tmp_path / "d").exists()


def test_b076_a_remote_place_is_refused_or_replaced_too():
    write("memory://again", samples(100), size_limit=500)
    before = remote_files("memory://again")
    with pytest.raises(FileExistsError, match="memory://again"):
        MDSWriter(out="memory://again", columns=COLUMNS)
    assert remote_files("memory://again") == before
    open_store("memory://again").put_bytes("notes.txt", b"mine")
    write("memory://again", samples(3), exist_ok=True)
    assert set(remote_files("memory://again")) == {"index.json", "notes.txt", "shard.00000.mds"}


def test_s13_an_exception_removes_what_was_uploaded(tmp_path):
    open_store("memory://undone").put_bytes("notes.txt", b"mine")
    with (
        pytest.raises(ZeroDivisionError),
        MDSWriter(
            out=(tmp_path / "d", "memory://undone"), columns=COLUMNS, size_limit=500, exist_ok=True
        ) as writer,
    ):
        for row in samples(300):
            writer.write(row)
        assert len(open_store("memory://undone").list()) > 1
        raise ZeroDivisionError
    assert remote_files("memory://undone") == {"notes.txt": b"mine"}
    assert not (tmp_path / "d").exists()


class _Failing:
    """A store whose put fails for one key, after so many good ones."""

    def __init__(self, monkeypatch, bad, error=None):
        from streamshard.storage.memory_store import MemoryStore

        self.failed = threading.Event()
        real = MemoryStore.put

        def put(store, key, path):
            if key == bad:
                self.failed.set()
                raise error or StorageError("the network is gone")
            real(store, key, path)

        monkeypatch.setattr(MemoryStore, "put", put)


def test_a_failed_upload_ends_the_writer_at_the_next_write_and_leaves_nothing(tmp_path, monkeypatch):
    failing = _Failing(monkeypatch, "shard.00001.mds")
    writer = MDSWriter(out=(tmp_path / "d", "memory://fails"), columns=COLUMNS, samples_per_shard=1)
    with pytest.raises(StorageError, match="the network is gone"):
        for row in samples(10_000):
            writer.write(row)
    assert failing.failed.is_set()
    assert writer.num_samples < 10_000
    for call in (writer.finish, lambda: writer.write(samples(1)[0])):
        with pytest.raises(StorageError, match=r"the network is gone \(the writer has given up"):
            call()
    assert remote_files("memory://fails") == {}
    assert not (tmp_path / "d").exists()


def test_a_shard_is_uploaded_as_soon_as_it_is_there_and_its_failure_seen_by_the_very_next_write(
    tmp_path, monkeypatch
):
    failing = _Failing(monkeypatch, "shard.00000.mds")
    with (
        pytest.raises(StorageError, match="the network is gone"),
        MDSWriter(out=(tmp_path / "d", "memory://soon"), columns=COLUMNS, samples_per_shard=2) as writer,
    ):
        for row in samples(3):
            writer.write(row)
        assert failing.failed.wait(10)
        wait(writer._uploader._running, timeout=10)
        writer.write(samples(1)[0])
        pytest.fail("the write after the failure was accepted")
    assert remote_files("memory://soon") == {}


@pytest.mark.parametrize("bad", ["shard.00004.mds", "index.json"])
def test_a_failed_upload_of_a_last_file_is_raised_by_finish(bad, tmp_path, monkeypatch):
    _Failing(monkeypatch, bad, OSError(28, "No space left on device"))
    with pytest.raises(StorageError, match=rf"{bad}: upload to memory://late-{bad} failed: No space left"):
        write((tmp_path / "d", f"memory://late-{bad}"), samples(50), samples_per_shard=10)
    assert remote_files(f"memory://late-{bad}") == {}
    assert not (tmp_path / "d").exists()


def test_b075_an_upload_that_stores_nothing_is_an_error(tmp_path, monkeypatch):
    from streamshard.storage import local_store

    real = local_store._open_regular
    monkeypatch.setattr(
        local_store,
        "_open_regular",
        lambda path: real(path) if path.name == "index.json" else _Short(real(path)),
    )
    with pytest.raises(StorageError, match=r"0 bytes, expected"):
        write((tmp_path / "d", tmp_path / "there"), samples(9), retry=0)
    assert files_of(tmp_path / "there") == {}


class _Short:
    """An open file that gives nothing."""

    def __init__(self, file):
        self._file = file

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._file.close()

    def read(self, nbytes=-1):
        return b""

    def fileno(self):
        return self._file.fileno()


@pytest.mark.parametrize(("retry", "tries"), [(0, 1), (2, 3)])
def test_s18_retry_is_the_number_of_further_tries(retry, tries, tmp_path):
    writer = MDSWriter(out=(tmp_path / "d", tmp_path / "there"), columns=COLUMNS, retry=retry)
    assert writer._place.remote.retry.attempts == tries
    writer.finish()


def test_the_disk_that_is_full_is_named_and_leaves_nothing(tmp_path, monkeypatch):
    def full(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(StorageError, match=r"shard.00000.mds: could not be written: No space left"):
        write(tmp_path / "d", samples(10))
    assert not (tmp_path / "d").exists()


def test_a_progress_bar_counts_uploaded_files(tmp_path, capsys):
    write("memory://bar", samples(50), samples_per_shard=10, progress_bar=True)
    assert "upload to memory://bar: 6file" in capsys.readouterr().err


def test_b079_memory_is_bounded_by_the_shards_being_made(tmp_path):
    payload = os.urandom(50_000)
    limit = 4 << 20
    tracemalloc.start()
    with MDSWriter(out=tmp_path / "d", columns={"b": "bytes"}, size_limit=limit, hashes=["xxh64"]) as writer:
        for i in range(800):  # 40 MB through a limit of 4 MiB
            writer.write({"b": payload[i:] + payload[:i]})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert load_index(tmp_path / "d").num_shards > 8
    assert peak < 3 * limit


def test_b079_large_shards_are_published_before_the_next_one_fills(tmp_path, monkeypatch):
    monkeypatch.setattr("streamshard.write.press._OVERLAP_NBYTES", 1000)
    limit = 4 << 20
    tracemalloc.start()
    with MDSWriter(out=tmp_path / "d", columns={"b": "bytes"}, size_limit=limit) as writer:
        for _ in range(400):
            writer.write({"b": os.urandom(50_000)})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.6 * limit


def test_b080_json_lists_stay_lists_of_each_sample(tmp_path):
    rows = [{"j": ["a", "b"]}, {"j": []}, {"j": {"k": [1, None]}}]
    write(tmp_path / "d", rows, columns={"j": "json"})
    assert load_samples(tmp_path / "d") == rows


def test_s9_a_sample_beyond_what_one_read_gives_comes_back_whole(tmp_path):
    # The limit of one read(2) is 2 GiB; the readers' own tests pass it. Here: a sample of many blocks.
    big = np.arange(3_000_000, dtype=np.uint64)
    write(tmp_path / "d", [{"a": big}], columns={"a": "ndarray"}, size_limit=None)
    assert np.array_equal(load_samples(tmp_path / "d")[0]["a"], big)


def test_a_type_error_of_a_users_mapping_is_not_taken_for_a_missing_column(tmp_path):
    with (
        MDSWriter(out=tmp_path / "d", columns=COLUMNS) as writer,
        pytest.raises(SampleError, match="expected a dict"),
    ):
        writer.write([("n", 1)])


def test_an_unknown_keyword_is_refused(tmp_path):
    with pytest.raises(TypeError, match="size_limits"):
        MDSWriter(out=tmp_path / "d", columns=COLUMNS, size_limits=1)
    with pytest.raises(FormatError, match="known: bytes, str"):
        MDSWriter(out=tmp_path / "d", columns={"a": "text"})


def test_the_writer_fills_a_real_bucket_and_empties_it_after_an_exception(s3, tmp_path):
    url = s3.make_bucket() + "/a folder/x+y=1"
    options = s3.storage_options
    write(tmp_path / "d", samples(300), size_limit=2000, compression="zstd")
    write(url, samples(300), size_limit=2000, compression="zstd", storage_options=options)
    store = open_store(url, storage_options=options)
    assert {key: store.read(key) for key in store.list()} == files_of(tmp_path / "d")
    with pytest.raises(FileExistsError):
        MDSWriter(out=url, columns=COLUMNS, storage_options=options)
    with (
        pytest.raises(ZeroDivisionError),
        MDSWriter(out=url, columns=COLUMNS, size_limit=500, storage_options=options, exist_ok=True) as writer,
    ):
        for row in samples(200):
            writer.write(row)
        raise ZeroDivisionError
    assert store.list() == []


def test_keys_that_are_no_column_are_left_out_with_one_warning(tmp_path):
    # mosaicml-streaming leaves them out without a word; scripts that rely on it must go on working.
    rows = [{**row, "extra": 1, "more": 2} for row in samples(3)]
    with MDSWriter(out=tmp_path / "d", columns=COLUMNS) as writer:
        with pytest.warns(UserWarning, match=r"sample 0 has keys .* not stored: 'extra', 'more'"):
            writer.write(rows[0])
        writer.write(rows[1])  # a second warning would be an error in these tests
        with pytest.raises(SampleError, match="sample 2: column 't' is missing"):
            writer.write({"n": 1, "extra": 1, "more": 2})
    assert load_samples(tmp_path / "d") == samples(2)

"""ShardPool: a few samples of each of several open shards, in one loop."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamshard import MDSWriter, StreamingDataset
from streamshard.dataset.open_readers import OpenReaders
from streamshard.dataset.pool import ShardPool
from streamshard.errors import ChecksumError, FormatError, StorageError
from streamshard.read import head
from streamshard.read.shard_reader import ShardReader
from tests.support.interrupting import interrupted

COLUMNS = {"blob": "bytes", "name": "str", "number": "int"}
SAMPLES = [{"blob": bytes([n]) * (n * 70), "name": f"ü{n}", "number": -n} for n in range(60)]
ORDER = np.random.default_rng(5).permutation(60)[:50]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    with MDSWriter(out=tmp_path / "set", columns=COLUMNS, size_limit=1 << 14, sample_hash="xxh64") as writer:
        for sample in SAMPLES:
            writer.write(sample)
    return tmp_path / "set"


@pytest.fixture
def visits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many samples were read by visiting their shards, call by call."""
    found: list[int] = []
    gather = ShardPool._gather

    def counted(self: ShardPool, visits: Any, *functions: Any) -> Any:
        found.append(len(visits.order))
        return gather(self, visits, *functions)

    monkeypatch.setattr(ShardPool, "_gather", counted)
    return found


def pool_of(directory: Path, **options: Any) -> ShardPool:
    return ShardPool(StreamingDataset(**{"local": directory, **options})._source)


def test_samples_of_open_shards_are_decoded_in_their_own_order(directory: Path, visits: list[int]) -> None:
    pool = pool_of(directory)
    assert len(list(directory.glob("*.mds"))) > 5
    expected = [SAMPLES[number] for number in ORDER]
    assert pool.samples(ORDER) == expected
    assert pool.samples(ORDER) == expected
    assert pool.columns(ORDER)["name"] == [sample["name"] for sample in expected]
    assert visits == [50]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts open files where Linux lists them")
@pytest.mark.parametrize("fetched", [False, True])
def test_no_more_files_are_open_than_a_process_may_have(
    fetched: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MDSWriter(out=tmp_path / "set", columns={"n": "int"}, samples_per_shard=1) as writer:
        for number in range(100):
            writer.write({"n": number})
    monkeypatch.setattr("streamshard.dataset.open_readers.most_open_files", lambda: 64)
    places = (
        {"remote": tmp_path / "set", "local": tmp_path / "kept"} if fetched else {"local": tmp_path / "set"}
    )
    pool = ShardPool(StreamingDataset(**places)._source)
    before = len(os.listdir("/proc/self/fd"))
    assert [pool.sample(number)["n"] for number in range(100)] == list(range(100))
    assert len(os.listdir("/proc/self/fd")) - before <= 64
    pool.close()
    assert len(os.listdir("/proc/self/fd")) <= before + 3  # the cache's own


def test_shards_used_in_one_loop_are_the_last_to_be_closed(directory: Path, visits: list[int]) -> None:
    pool = ShardPool(pool_of(directory)._source, capacity=2)
    second = int(pool._source.begins[1])
    pool.samples(np.array([0, second]))
    pool.samples(np.array([0]))  # in one loop
    pool.samples(np.array([int(pool._source.begins[2])]))
    visits.clear()
    assert pool.samples(np.array([0])) == SAMPLES[:1]
    assert visits == []


def test_a_malformed_sample_in_the_loop_is_named(directory: Path) -> None:
    pool = pool_of(directory)
    pool.samples(ORDER)
    shard = directory / "shard.00001.mds"
    content = bytearray(shard.read_bytes())
    begin = int.from_bytes(content[4:8], "little")
    content[begin : begin + 4] = b"\xff\xff\xff\xff"
    with shard.open("r+b") as file:
        file.write(content)
    with pytest.raises(FormatError, match=r"shard.00001.mds.*row 0, .*length words"):
        pool.samples(ORDER)


def test_a_file_cut_while_it_is_open_is_an_error_and_no_crash(directory: Path) -> None:
    pool = pool_of(directory)
    pool.samples(ORDER)
    os.truncate(directory / "shard.00001.mds", 100)
    with pytest.raises(FormatError, match=r"shard.00001.mds.*was cut or replaced"):
        pool.samples(ORDER)


def test_hashes_are_checked_where_they_are_asked_for(directory: Path, visits: list[int]) -> None:
    pool = pool_of(directory, validate_samples=True)
    assert pool.samples(ORDER) == pool.samples(ORDER)
    assert visits == [50, 50]
    shard = directory / "shard.00001.mds"
    with shard.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x01")
    with pytest.raises(ChecksumError):
        pool.samples(np.arange(60))


def test_offsets_in_the_map_are_left_to_the_reader(
    directory: Path, visits: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "MAPPED_FROM_NBYTES", 1)
    pool = pool_of(directory)
    assert pool.samples(ORDER) == pool.samples(ORDER) == [SAMPLES[number] for number in ORDER]
    assert visits == [50, 50]


MANY = np.concatenate([ORDER[::step] for step in (1, -1) * 5])


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which shards were read one after another."""
    found: list[str] = []
    for name in ("samples", "columns_of"):
        read = getattr(ShardReader, name)

        def noted(self: ShardReader, rows: Any, read: Any = read) -> Any:
            found.append(self.name)
            return read(self, rows)

        monkeypatch.setattr(ShardReader, name, noted)
    return found


def assert_many_come(pool: ShardPool) -> None:
    expected = [SAMPLES[number] for number in MANY]
    assert pool.samples(MANY) == expected
    columns = pool.columns(MANY)
    assert columns["number"].tolist() == [sample["number"] for sample in expected]
    assert columns["blob"] == [sample["blob"] for sample in expected]
    assert columns["name"] == [sample["name"] for sample in expected]


@pytest.mark.parametrize("offsets_in_map", [False, True])
@pytest.mark.parametrize("size_limit", [1 << 20, 1 << 14])
def test_many_samples_are_decoded_from_all_maps_at_once(
    size_limit: int, offsets_in_map: bool, tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if offsets_in_map:
        monkeypatch.setattr(head, "MAPPED_FROM_NBYTES", 1)
    with MDSWriter(out=tmp_path / "set", columns=COLUMNS, size_limit=size_limit) as writer:
        for sample in SAMPLES:
            writer.write(sample)
    pool = pool_of(tmp_path / "set")
    assert_many_come(pool)
    assert not reads
    last = sorted((tmp_path / "set").glob("*.mds"))[-1]
    os.truncate(last, last.stat().st_size - 1)  # what is gone reads as zero, and no length is wrong
    for read in (pool.samples, pool.columns):
        with pytest.raises(FormatError, match=rf"{last.name}.*was cut or replaced"):
            read(MANY)


def test_many_samples_are_read_shard_by_shard_where_maps_alone_do_not_do(
    directory: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_many_come(pool_of(directory, validate_samples=True))
    shards = len(set(reads))
    assert len(reads) == 2 * shards > 10
    assert_many_come(ShardPool(pool_of(directory)._source, capacity=2))
    assert len(reads) == 4 * shards
    with monkeypatch.context() as few:
        few.setattr("streamshard.dataset.open_readers.MAX_OPEN_SHARDS", 1)
        few.setattr("streamshard.dataset.open_readers._MOST_HEADS", 2)
        # Shards are closed while others are opened.
        assert_many_come(ShardPool(pool_of(directory)._source, capacity=99))
    assert len(reads) == 6 * shards
    pool = pool_of(directory, remote=directory, local=directory.parent / "kept", cache_limit="1mb")
    opened: list[int] = []
    open_shard = pool._open_shard
    monkeypatch.setattr(pool, "_open_shard", lambda shard: (opened.append(shard), open_shard(shard))[1])
    assert_many_come(pool)
    assert len(reads) == 8 * shards == 4 * len(opened)


def test_a_file_that_was_short_for_a_moment_is_read_again(
    directory: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was taken from it meanwhile is worth nothing, though it is whole when it is looked at once more."""
    pool = pool_of(directory)
    assert_many_come(pool)
    assert not reads
    with monkeypatch.context() as short:
        short.setattr("streamshard.dataset.pool.is_any_short", lambda *_: True)
        assert_many_come(pool)
        assert len(reads) == 2 * len(set(reads)) > 10
    seek = os.lseek
    lengths = iter([5])
    monkeypatch.setattr(os, "lseek", lambda *place: next(lengths, None) or seek(*place))
    with pytest.raises(FormatError, match="now has 5; it was cut or replaced"):
        next(iter(pool._open.values())).check_whole()


def test_a_malformed_sample_among_many_is_named(directory: Path) -> None:
    pool = pool_of(directory)
    assert_many_come(pool)
    with (directory / "shard.00001.mds").open("r+b") as file:
        file.seek(4)
        file.seek(int.from_bytes(file.read(4), "little"))
        file.write(b"\xff\xff\xff\xff")
    for read in (pool.samples, pool.columns):
        with pytest.raises(FormatError, match=r"shard.00001.mds.*row 0, .*length words"):
            read(np.concatenate((MANY, pool._source.begins[1:2])))


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts open files where Linux lists them")
def test_two_pools_that_together_need_too_many_files_make_do_with_fewer(directory: Path) -> None:
    pools = [
        ShardPool(pool_of(directory)._source, capacity=6) for _ in range(2)
    ]  # of up to two files a shard
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 20, hard))
    others: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                others.append(os.open("/dev/null", os.O_RDONLY))
        for _ in range(14):
            os.close(others.pop())
        for _ in range(2):
            for pool in pools:
                assert pool.samples(ORDER) == [SAMPLES[number] for number in ORDER]
        assert all(0 < len(pool._open) <= 6 for pool in pools)
        for pool in pools:
            pool.close()
        with contextlib.suppress(OSError):
            while True:
                others.append(os.open("/dev/null", os.O_RDONLY))
        with pytest.raises(StorageError, match="Too many open files"):
            pools[0].samples(ORDER)
    finally:
        for each in others:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_cached_shard_for_which_no_more_files_may_be_open_is_named(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_descriptor: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    pool = pool_of(directory, local=tmp_path / "cache", remote=directory.as_uri())
    monkeypatch.setattr(os, "dup", refuse)
    with pytest.raises(StorageError, match=r"shard 'shard\.\d+\.mds': cannot open .*Too many open files"):
        pool.samples(ORDER)


def test_shards_whose_closing_was_interrupted_anywhere_are_opened_again(directory: Path) -> None:
    for line in itertools.count():
        pool = pool_of(directory)
        pool._capacity = 6
        with interrupted(OpenReaders.close_shard, line) as came:
            for shard in range(pool._source.num_shards):
                pool.places([shard])
        for shard in range(pool._source.num_shards):
            places = pool.places([shard])
            assert places is not None
            assert os.fstat(places[0][3]).st_size == places[0][2]
        assert pool.samples(ORDER) == [SAMPLES[number] for number in ORDER]
        pool.close()
        if not came.yes:
            break
    assert line > 3

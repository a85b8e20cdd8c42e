"""Where bytes come from: in place or through a cache, whole or compressed, checked, fetched once, bounded."""

from __future__ import annotations

import atexit
import gc
import os
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from streamshard import MDSWriter, Stream, StreamingDataLoader, StreamingDataset, World
from streamshard.dataset import feed, open_readers, pool
from streamshard.dataset.pool import ShardPool
from streamshard.errors import BlobNotFoundError, CacheTooSmallError, ChecksumError, FormatError
from streamshard.order.uses import live_shards
from streamshard.read import head
from streamshard.read.shard_reader import ShardReader
from streamshard.storage.cache import NodeCache
from tests.support.pretended_ranks import loader_of, numbers, read_part, write_numbers

SIZES = [10] * 12 + [3]
SAMPLES = 123


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory below which datasets without ``local`` keep their caches."""
    directory = tmp_path_factory.mktemp("default-cache")
    monkeypatch.setenv("STREAMSHARD_CACHE", str(directory))
    return directory


def tree(directory: Path) -> list[tuple[str, int, int]]:
    return sorted(
        (str(path.relative_to(directory)), path.stat().st_size, path.stat().st_mtime_ns)
        for path in directory.rglob("*")
    )


def cached(directory: Path, pattern: str) -> list[Path]:
    """Files of a cache, what it notes for itself left out."""
    return [path for path in directory.rglob(pattern) if ".streamshard" not in path.parts]


def through(remote: Path, cache: Path, workers: int = 0, **arguments: Any) -> StreamingDataLoader:
    arguments = {"shuffle": True, "shuffle_seed": 17, "batch_size": 8, **arguments}
    dataset = StreamingDataset(remote=remote.as_uri(), local=cache, **arguments)
    return StreamingDataLoader(dataset, num_workers=workers, collate_fn=numbers)


# In place


@pytest.mark.parametrize("how", ["local", "remote", "uri", "both"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_directory_named_alone_is_read_in_place_and_never_written_to(
    tmp_path: Path, own_cache: Path, how: str, workers: int
) -> None:
    directory = write_numbers(tmp_path / "set", SIZES)
    before = tree(directory)
    directory.chmod(0o555)
    where: dict[str, Any] = {
        "local": {"local": directory},
        "remote": {"remote": directory},
        "uri": {"remote": directory.as_uri()},
        "both": {"remote": directory, "local": directory},
    }[how]
    dataset = StreamingDataset(**where, shuffle=True, batch_size=8)
    loader = StreamingDataLoader(dataset, num_workers=workers, collate_fn=numbers)
    for _ in range(2):
        assert sorted(read_part([loader]).sequence) == list(range(SAMPLES))
    assert dataset[5] == {"number": 5}
    directory.chmod(0o755)
    assert tree(directory) == before
    assert os.listdir(own_cache) == []


@pytest.mark.parametrize("compression", ["zstd:1", "gz", "bz2"])
@pytest.mark.parametrize("workers", [0, 2])
def test_compressed_shards_are_unpacked_elsewhere(
    tmp_path: Path, own_cache: Path, compression: str, workers: int
) -> None:
    directory = write_numbers(tmp_path / "set", SIZES, compression=compression)
    before = tree(directory)
    directory.chmod(0o555)
    loader = loader_of(directory, batch_size=8, workers=workers)
    for _ in range(2):
        assert sorted(read_part([loader]).sequence) == list(range(SAMPLES))
    directory.chmod(0o755)
    assert tree(directory) == before
    assert len(list(own_cache.rglob("*.mds"))) == len(SIZES)
    assert not cached(own_cache, "*.mds.*")  # the compressed file is not kept


def test_a_raw_shard_beside_its_compressed_file_is_read_in_place(tmp_path: Path, own_cache: Path) -> None:
    directory = write_numbers(tmp_path / "set", SIZES, compression="zstd:1", keep_raw=True)
    assert sorted(read_part([loader_of(directory, batch_size=8)]).sequence) == list(range(SAMPLES))
    assert os.listdir(own_cache) == []


def test_a_split_is_a_directory_below_both_places(tmp_path: Path) -> None:
    write_numbers(tmp_path / "set" / "train", SIZES)
    assert len(list(StreamingDataset(local=tmp_path / "set", split="train"))) == SAMPLES
    loader = through(tmp_path / "set", tmp_path / "cache", split="train")
    assert sorted(read_part([loader]).sequence) == list(range(SAMPLES))
    with pytest.raises(BlobNotFoundError, match="train"):  # the message names the split that is there
        StreamingDataset(local=tmp_path / "set")


# Through a cache


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "places", [{"local": "set"}, {"remote": "set", "local": "cache"}, {"local": "packed"}]
)
def test_relative_places_stay_where_they_were_when_the_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, places: dict[str, str], workers: int
) -> None:
    write_numbers(tmp_path / "set", SIZES)
    write_numbers(tmp_path / "packed", SIZES, compression="zstd:1")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    dataset = StreamingDataset(**places, shuffle=True)
    loader = StreamingDataLoader(dataset, batch_size=8, num_workers=workers, collate_fn=numbers)
    monkeypatch.chdir(elsewhere)
    assert sorted(number for batch in loader for number in batch) == list(range(SAMPLES))
    assert os.listdir(elsewhere) == []


@pytest.mark.parametrize("workers", [0, 2])
def test_with_both_places_local_is_a_cache(tmp_path: Path, workers: int) -> None:
    remote = write_numbers(tmp_path / "remote", SIZES)
    before = tree(remote)
    loader = through(remote, tmp_path / "cache", workers)
    expected = read_part([loader_of(remote, batch_size=8)]).steps
    assert read_part([loader]).steps == expected
    assert tree(remote) == before
    assert len(list((tmp_path / "cache").rglob("*.mds"))) == len(SIZES)
    for shard in remote.glob("*.mds"):
        shard.unlink()  # a second run needs the index only
    assert read_part([through(remote, tmp_path / "cache", workers)]).steps == expected


def test_s15_a_shard_is_fetched_once_and_not_once_per_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = write_numbers(tmp_path / "remote", [100] * 4)
    opened, fetched = [], []
    opens, ensures = NodeCache.open, NodeCache.ensure
    monkeypatch.setattr(NodeCache, "open", lambda self, blob: opened.append(blob.name) or opens(self, blob))
    monkeypatch.setattr(
        NodeCache, "ensure", lambda self, blob: fetched.append(blob.name) or ensures(self, blob)
    )
    assert len(read_part([through(remote, tmp_path / "cache")]).sequence) == 400
    assert len(opened) == 4
    assert len(fetched) <= 8  # by a prefetching thread, and when it is opened


@pytest.mark.parametrize("keep_zip", [False, True])
def test_keep_zip_keeps_the_compressed_file(tmp_path: Path, keep_zip: bool) -> None:
    remote = write_numbers(tmp_path / "remote", SIZES, compression="zstd:1")
    read_part([through(remote, tmp_path / "cache", keep_zip=keep_zip)])
    assert len(list((tmp_path / "cache").rglob("*.zstd"))) == len(SIZES) * keep_zip
    assert len(list((tmp_path / "cache").rglob("*.mds"))) == len(SIZES)


@pytest.mark.parametrize("predownload", [1, 5, 1000])
@pytest.mark.parametrize("workers", [0, 2])
def test_predownload_changes_speed_and_nothing_else(tmp_path: Path, predownload: int, workers: int) -> None:
    remote = write_numbers(tmp_path / "remote", SIZES)
    loader = through(remote, tmp_path / "cache", workers, predownload=predownload)
    assert read_part([loader]).steps == read_part([loader_of(remote, batch_size=8)]).steps


def shard_nbytes(directory: Path) -> int:
    return max(path.stat().st_size for path in directory.glob("*.mds"))


@pytest.mark.parametrize("shuffle", [False, True])
def test_b086_the_cache_stays_below_its_limit(tmp_path: Path, shuffle: bool) -> None:
    remote = write_numbers(tmp_path / "remote", [500] * 10)
    limit = 3 * shard_nbytes(remote)
    loader = through(remote, tmp_path / "cache", cache_limit=limit, shuffle=shuffle, batch_size=100)
    most = 0
    for _ in range(2):
        seen = []
        for batch in loader:
            seen += batch
            most = max(most, sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*.mds")))
        assert sorted(seen) == list(range(5000))
    assert most <= limit + shard_nbytes(remote)


def test_b084_a_cache_limit_below_one_shard_is_refused_with_both_numbers(tmp_path: Path) -> None:
    remote = write_numbers(tmp_path / "remote", [500] * 4)
    limit = shard_nbytes(remote) // 2
    with pytest.raises(CacheTooSmallError) as caught:
        list(through(remote, tmp_path / "cache", cache_limit=limit))
    message = str(caught.value).replace(",", "")
    assert str(limit) in message or "KiB" in message


def test_b084_one_and_a_half_shards_are_enough_for_four_workers(tmp_path: Path) -> None:
    remote = write_numbers(tmp_path / "remote", [500] * 6)
    dataset = StreamingDataset(
        remote=remote.as_uri(),
        local=tmp_path / "cache",
        cache_limit=shard_nbytes(remote) * 3 // 2,
        shuffle=True,
        batch_size=100,
        download_timeout=20,
    )
    loader = StreamingDataLoader(dataset, num_workers=2, collate_fn=numbers)
    try:
        got = [number for batch in loader for number in batch]
    except CacheTooSmallError:
        return
    assert sorted(got) == list(range(3000))


def test_b087_shards_of_an_earlier_run_count_and_can_go(tmp_path: Path) -> None:
    remote = write_numbers(tmp_path / "remote", [200] * 12)
    read_part([through(remote, tmp_path / "cache", batch_size=100)])
    assert len(list((tmp_path / "cache").rglob("*.mds"))) == 12
    limit = 5 * shard_nbytes(remote)
    part = read_part([through(remote, tmp_path / "cache", batch_size=100, cache_limit=limit)])
    assert sorted(part.sequence) == list(range(2400))
    assert sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*.mds")) <= limit


# Damage


@pytest.mark.parametrize("damage", ["missing", "cut", "grown", "flipped header"])
@pytest.mark.parametrize("place", ["in place", "cached"])
def test_s01_a_shard_that_cannot_be_read_raises_and_names_itself(
    tmp_path: Path, damage: str, place: str
) -> None:
    """mosaicml-streaming ends the epoch early without workers, and hangs with them."""
    directory = write_numbers(tmp_path / "set", SIZES)
    expected = read_part([loader_of(directory, batch_size=8, shuffle=False)]).steps
    path = directory / "shard.00005.mds"
    whole = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(
            {"cut": whole[:-1], "grown": whole + b"x", "flipped header": whole[:5] + b"\xff" + whole[6:]}[
                damage
            ]
        )
    loader = (
        loader_of(directory, batch_size=8, shuffle=False)
        if place == "in place"
        else through(directory, tmp_path / "cache", shuffle=False, download_retry=1)
    )
    seen: list[list[int]] = []
    error = BlobNotFoundError if damage == "missing" else (FormatError, OSError)
    with pytest.raises(error, match=r"shard\.00005\.mds"):
        seen.extend(loader)
    assert seen == expected[:6]  # all before the first batch that needs the shard, and nothing after


def flip_last_byte(path: Path) -> bytes:
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    return whole


@pytest.mark.parametrize("validate_hash", [None, "xxh64"])
@pytest.mark.parametrize("compression", [None, "zstd:1"])
def test_s02_a_wrong_hash_raises_and_leaves_nothing_behind(
    tmp_path: Path, validate_hash: str | None, compression: str | None
) -> None:
    """mosaicml-streaming ends the epoch, keeps the bad file and hands out its content in the next run."""
    remote = write_numbers(tmp_path / "remote", SIZES, compression=compression)
    path = next(remote.glob("shard.00005*"))
    whole = flip_last_byte(path)
    how = {"validate_hash": validate_hash, "download_retry": 1}
    with pytest.raises((ChecksumError, OSError), match=r"shard\.00005"):
        list(through(remote, tmp_path / "cache", **how))
    assert not cached(tmp_path / "cache", "shard.00005.mds*")
    path.write_bytes(whole)
    part = read_part([through(remote, tmp_path / "cache", **how)])
    assert sorted(part.sequence) == list(range(SAMPLES))


def test_validate_hash_false_looks_at_no_hash(tmp_path: Path) -> None:
    remote = write_numbers(tmp_path / "remote", SIZES)
    flip_last_byte(remote / "shard.00005.mds")
    part = read_part([through(remote, tmp_path / "cache", validate_hash=False)])
    assert len(part.sequence) == SAMPLES
    assert max(part.sequence) > SAMPLES  # the flipped byte is a high one of the last number


def test_in_place_hashes_are_checked_where_an_algorithm_is_named(tmp_path: Path) -> None:
    directory = write_numbers(tmp_path / "set", SIZES)
    flip_last_byte(directory / "shard.00005.mds")
    assert len(list(StreamingDataset(local=directory))) == SAMPLES
    with pytest.raises(ChecksumError, match=r"shard\.00005\.mds.*xxh64"):
        list(StreamingDataset(local=directory, validate_hash="xxh64"))
    streams = [Stream(local=directory, validate_hash="xxh64")]
    with pytest.raises(ChecksumError, match=r"shard\.00005\.mds"):
        StreamingDataset(streams=streams)[52]
    (directory / "shard.00005.mds").unlink()
    with pytest.raises(BlobNotFoundError, match=r"shard\.00005\.mds.*incomplete"):
        StreamingDataset(streams=streams)[52]


def test_b073_a_flipped_byte_in_the_cache_is_found_by_a_new_index_and_fetched_again(tmp_path: Path) -> None:
    remote = write_numbers(tmp_path / "remote", SIZES)
    read_part([through(remote, tmp_path / "cache")])
    (copy,) = cached(tmp_path / "cache", "shard.00005.mds")
    copy.chmod(0o644)
    flip_last_byte(copy)
    index = remote / "index.json"
    index.write_text(index.read_text() + "\n")  # another digest: what is cached has to prove itself
    part = read_part([through(remote, tmp_path / "cache")])
    assert sorted(part.sequence) == list(range(SAMPLES))


@pytest.mark.parametrize("cut", [0, 1, 10, 60])
def test_s03_a_cut_file_in_the_cache_is_fetched_again(tmp_path: Path, cut: int) -> None:
    """mosaicml-streaming fails with a message about buffer sizes."""
    remote = write_numbers(tmp_path / "remote", SIZES)
    read_part([through(remote, tmp_path / "cache")])
    (copy,) = cached(tmp_path / "cache", "shard.00005.mds")
    copy.chmod(0o644)
    os.truncate(copy, cut)
    part = read_part([through(remote, tmp_path / "cache")])
    assert sorted(part.sequence) == list(range(SAMPLES))


# What is left behind


def test_s14_b098_nothing_is_left_in_temporary_places(
    tmp_path: Path, short_directory: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mosaicml-streaming leaves two lock files for each dataset, and looks through all of them at each start."""
    temporary = short_directory / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    directory = write_numbers(tmp_path / "set", SIZES)
    for workers in (0, 2):
        read_part([loader_of(directory, batch_size=8, workers=workers)])
        read_part([through(directory, tmp_path / "cache", workers)])
    gc.collect()
    assert os.listdir(temporary) == []
    assert os.listdir(own_cache) == []
    if before:
        assert {name for name in os.listdir("/dev/shm") if "streamshard" in name} == set()


def test_s16_epochs_leave_no_exit_hooks_threads_or_files(tmp_path: Path) -> None:
    """mosaicml-streaming keeps each epoch's sample numbers alive until the process ends."""
    remote = write_numbers(tmp_path / "remote", SIZES)
    loader = through(remote, tmp_path / "cache")
    read_part([loader])
    process = psutil.Process()
    before = (atexit._ncallbacks(), threading.active_count(), process.num_fds())  # type: ignore[attr-defined]
    for _ in range(20):
        read_part([loader])
        read_part([loader], steps=3)
    gc.collect()
    assert (atexit._ncallbacks(), threading.active_count(), process.num_fds()) == before  # type: ignore[attr-defined]


def test_b097_hundreds_of_datasets_leave_no_descriptors(tmp_path: Path) -> None:
    directory = write_numbers(tmp_path / "set", SIZES)
    StreamingDataset(local=directory)[7]
    process = psutil.Process()
    shared = len(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else 0
    before = process.num_fds()
    for number in range(300):
        dataset = StreamingDataset(local=directory)
        assert dataset[number % SAMPLES] == {"number": number % SAMPLES}
        assert next(iter(dataset)) == {"number": 0}
        del dataset
    gc.collect()
    assert process.num_fds() <= before + 10
    if shared:
        assert len(os.listdir("/dev/shm")) <= shared + 10


def test_hundreds_of_datasets_at_once_share_few_descriptors(tmp_path: Path) -> None:
    directory = write_numbers(tmp_path / "set", [2])
    process = psutil.Process()
    before = process.num_fds()
    kept = [StreamingDataset(local=directory) for _ in range(500)]
    assert process.num_fds() <= before + 20
    assert kept[499][1] == {"number": 1}


def test_b137_an_opened_dataset_is_arrays_and_not_a_list_per_sample(tmp_path: Path) -> None:
    """Python objects per sample are what grows in workers, page by page, as their counts are touched."""
    directory = write_numbers(tmp_path / "set", [20_000, 20_000])
    dataset = StreamingDataset(local=directory, shuffle=True, batch_size=1000)
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(2):
        for _ in StreamingDataLoader(dataset, collate_fn=len):
            pass
    gc.collect()
    assert len(gc.get_objects()) - before < 500


# The pool


def test_the_pool_keeps_no_more_shards_open_than_it_may(tmp_path: Path) -> None:
    directory = write_numbers(tmp_path / "set", SIZES)
    source = StreamingDataset(local=directory)._source
    shards = ShardPool(source, capacity=3)
    ids = np.arange(SAMPLES)[::-1].copy()
    assert numbers(shards.samples(ids)) == ids.tolist()
    assert shards.columns(ids)["number"].tolist() == ids.tolist()
    assert len(shards._open) == 3
    assert shards.sample(17) == {"number": 17}
    shards.close()
    assert not shards._open
    assert open_readers.MAX_OPEN_SHARDS == 256


@pytest.mark.parametrize("ids", [[], [5], [5, 5], [122, 0, 61, 0]])
def test_the_pool_gives_samples_in_the_order_asked_for(tmp_path: Path, ids: list[int]) -> None:
    directory = write_numbers(tmp_path / "set", SIZES)
    shards = ShardPool(StreamingDataset(local=directory)._source)
    assert numbers(shards.samples(np.array(ids, np.int64))) == ids


def test_few_rows_of_each_of_many_shards_are_decoded_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write_numbers(tmp_path / "set", [5] * 60)
    shards = ShardPool(StreamingDataset(local=directory)._source)
    ids = np.random.default_rng(3).permutation(300)[:150]
    assert numbers(shards.samples(ids)) == ids.tolist()
    assert shards.columns(ids)["number"].tolist() == ids.tolist()
    few_open = ShardPool(shards._source, capacity=9)
    for each in (shards, few_open):
        monkeypatch.setattr(each, "_one_by_one", lambda *located: None)
        monkeypatch.setattr(ShardReader, "samples", None)  # one call for all shards, none for one
    monkeypatch.setattr(shards, "_decoded_together", None)  # from the maps, and only else copied together
    for each in (shards, few_open):
        assert numbers(each.samples(ids)) == ids.tolist()


def test_a_malformed_sample_among_many_shards_is_named(tmp_path: Path) -> None:
    directory = write_strings(tmp_path / "set")
    shard = directory / "shard.00017.mds"
    content = bytearray(shard.read_bytes())
    content[-3:] = b"\xff\xff\xff"  # no UTF-8
    shard.write_bytes(content)
    shards = ShardPool(StreamingDataset(local=directory)._source)
    with pytest.raises(FormatError, match=r"shard.00017.mds.*, row 0, sample 17 of the dataset"):
        shards.samples(np.arange(120)[::-1].copy())
    assert len(shards.samples(np.arange(17))) == 17


def write_strings(directory: Path) -> Path:
    with MDSWriter(out=directory, columns={"text": "str"}, size_limit=60) as writer:
        for number in range(120):
            writer.write({"text": f"{number:05}"})
    return directory


def test_more_shards_are_kept_open_where_more_are_live_within_the_limits_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    streams = [Stream(local=write_numbers(tmp_path / f"{number}", [1] * 8)) for number in range(3)]
    source = StreamingDataset(streams=streams)._source
    monkeypatch.setattr(open_readers, "MAX_OPEN_SHARDS", 2)
    for files, live, kept in (
        (1 << 20, 0, 9),
        (1 << 20, 10, 15),
        (1 << 20, 20, 24),  # there are no more
        (80, 10, 10),
        (40, 0, 5),
        (8, 0, 2),
    ):
        monkeypatch.setattr(open_readers, "most_open_files", lambda files=files: files)
        assert ShardPool(source, live=live)._capacity == kept
    assert not caplog.records
    for _ in range(2):
        assert ShardPool(source, live=11)._capacity == 2
    (said,) = [record.getMessage() for record in caplog.records]
    assert "about 11 shards" in said
    assert "8 files open, so 2 shards" in said
    assert "ulimit -n 128" in said


def test_a_feed_expects_as_many_shards_as_its_rank_has_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected: list[int] = []
    monkeypatch.setattr(
        pool, "ShardPool", lambda source, live, **_: expected.append(live) or ShardPool(source, live=live)
    )
    for ranks in (1, 2):
        dataset = StreamingDataset(
            local=write_numbers(tmp_path / f"{ranks}", [5] * 40),
            shuffle=True,
            num_canonical_nodes=4,
            shuffle_block_size=15,
            batch_size=4,
            world=World(0, ranks),
        )
        next(iter(dataset))
    assert expected == [12, 6]


def test_shards_that_are_opened_again_are_not_checked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = StreamingDataset(local=write_numbers(tmp_path / "set", SIZES))._source
    parsed: list[str] = []
    parse = head.parse_header
    monkeypatch.setattr(head, "parse_header", lambda *a, **o: parsed.append("") or parse(*a, **o))
    shards = ShardPool(source, capacity=3)
    ids = np.arange(SAMPLES)[::-1].copy()
    for _ in range(2):
        assert numbers(shards.samples(ids)) == ids.tolist()
    assert len(parsed) == len(SIZES)
    assert shards._heads_nbytes == sum(each.nbytes for each in shards._heads.values()) == 4 * (123 + 13)
    # Beyond the budget the eldest are forgotten, and those of them that are open are closed, all but a few.
    monkeypatch.setattr(open_readers, "_HEADS_NBYTES", 200)
    monkeypatch.setattr(open_readers, "MAX_OPEN_SHARDS", 2)
    shards = ShardPool(source, capacity=9)
    assert numbers(shards.samples(ids)) == ids.tolist()
    assert shards._heads_nbytes == sum(each.nbytes for each in shards._heads.values()) <= 200
    assert set(shards._open) <= set(shards._heads)


@pytest.mark.parametrize(("nbytes", "count", "at_once"), [(6_000, 2_000, 680), (20_000, 400, 20)])
def test_large_samples_are_decoded_fewer_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nbytes: int, count: int, at_once: int
) -> None:
    with MDSWriter(out=tmp_path, columns={"number": "int", "blob": "bytes"}) as writer:
        for number in range(count):
            writer.write({"number": number, "blob": bytes(nbytes)})
    counts: list[int] = []
    for name in ("samples", "samples_at"):
        read = getattr(ShardPool, name)

        def counted(pool: ShardPool, *asked: Any, read: Any = read) -> Any:
            counts.append(len(asked[-1]))
            return read(pool, *asked)

        monkeypatch.setattr(ShardPool, name, counted)
    found = [each["number"] for each in StreamingDataset(local=tmp_path, shuffle=True, batch_size=20)]
    assert sorted(found) == list(range(count))
    assert max(counts) == at_once


@pytest.mark.parametrize(("at_most", "visits"), [(6 << 20, True), (100, False)])
def test_where_many_shards_are_live_more_is_decoded_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_most: int, visits: bool
) -> None:
    streams = [Stream(local=write_numbers(tmp_path / str(number), [30] * 4)) for number in range(20)]
    monkeypatch.setattr(feed, "_CHUNK_NBYTES", 100)
    monkeypatch.setattr(feed, "_CHUNK_NBYTES_OF_MANY", at_most)
    monkeypatch.setattr(feed, "_SAMPLES_PER_VISIT", 4)
    counts: list[int] = []
    read = ShardPool.samples

    def counted(pool: ShardPool, samples: NDArray[np.int64]) -> Any:
        counts.append(len(samples))
        return read(pool, samples)

    monkeypatch.setattr(ShardPool, "samples", counted)
    dataset = StreamingDataset(streams=streams, shuffle=True, batch_size=20)
    live = live_shards(dataset._states.order)
    assert live >= 20
    assert len(list(dataset)) == 20 * 4 * 30
    assert counts[0] == 20  # nobody waits for the first batch
    assert max(counts) == (4 * live // 20 * 20 if visits else 20)

"""Where nothing may be written, locked or shared: an epoch is read, or an error says at once what to set."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamshard import Stream, StreamingDataLoader, StreamingDataset
from tests.support.loading import epoch_of, joined, text_dataset
from tests.support.nursery import NOBODY, Nursery, Outcome, may_mount
from tests.support.small_server import SmallServer, small_server

SAMPLES, PER_SHARD = 96, 12
EPOCH = "hardships.read_epoch"
WHAT_TO_SET = r"make it writable, make room, .*local= or STREAMSHARD_CACHE, or none with cache='memory'"
# Whoever starts a job in such a place is told within 10 s: measured 0.1 to 0.7 s. Here, so that a busy machine does not
# matter: long before anything that waits for ``download_timeout`` could end.
TIMEOUT_S = 600.0

mounts = pytest.mark.skipif(not may_mount(), reason="needs the right to mount a file system in a name space")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs the right to become another user")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallServer]:
    directory = text_dataset(tmp_path_factory.mktemp("set") / "set", SAMPLES, samples_per_shard=PER_SHARD)
    with small_server() as server:
        for path in directory.iterdir():
            server.files[f"set/{path.name}"] = path.read_bytes()
        yield server


@pytest.fixture
def reachable(tmp_path: Path) -> Path:
    """A directory that other users can reach: pytest's own are closed to them."""
    for directory in (tmp_path, *tmp_path.parents):
        if directory.stat().st_uid == os.getuid() and directory.stat().st_mode & 0o055 != 0o055:
            directory.chmod(directory.stat().st_mode | 0o055)
    return tmp_path


def reading(server: SmallServer, workers: int, **dataset: Any) -> dict[str, Any]:
    return {
        "dataset": {"remote": f"http://{server.host}/set", "download_timeout": TIMEOUT_S, **dataset},
        "workers": workers,
    }


def check_epoch(outcome: Outcome) -> None:
    assert outcome.result == {"numbers": list(range(SAMPLES))}, outcome.printed


def check_told(outcome: Outcome, *words: str) -> None:
    assert outcome.error == "StorageError", outcome.printed
    for pattern in words:
        assert re.search(pattern, outcome.message, re.DOTALL), outcome.message
    assert outcome.seconds < TIMEOUT_S / 6


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_b094_an_epoch_without_file_locks(
    nursery: Nursery, server: SmallServer, tmp_path: Path, number: int, workers: int
) -> None:
    options = reading(server, workers, local=str(tmp_path / "cache"))
    outcome = nursery.run(EPOCH, options, no_locks=number)
    check_epoch(outcome)
    assert outcome.printed.count("this file system has no file locks") == max(1, workers)
    check_epoch(nursery.run(EPOCH, options))  # and locks, where there are some again, find nothing strange


@pytest.mark.parametrize("workers", [0, 2])
def test_b094_locks_that_fail_otherwise_are_named(
    nursery: Nursery, server: SmallServer, tmp_path: Path, workers: int
) -> None:
    options = reading(server, workers, local=str(tmp_path / "cache"))
    outcome = nursery.run(EPOCH, options, no_locks=errno.EIO)
    check_told(outcome, rf"{tmp_path}/cache: a file there could not be locked .*local=")


@pytest.mark.parametrize("workers", [0, 2])
@mounts
def test_b093_a_read_only_disk(nursery: Nursery, server: SmallServer, tmp_path: Path, workers: int) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    options = reading(server, workers, local=str(cache))
    check_told(
        nursery.run(EPOCH, options, read_only=str(cache)),
        rf"cache directory {cache}: .*Read-only file system.*{WHAT_TO_SET}",
    )
    check_epoch(nursery.run(EPOCH, options))
    before = len(server.seen)
    for limit in ({}, {"cache_limit": "20kb"}):
        filled = reading(server, workers, local=str(cache), **limit)
        check_epoch(nursery.run(EPOCH, filled, read_only=str(cache)))
    assert not [line for line in server.seen[before:] if ".mds" in line.split()[0]]


@pytest.mark.parametrize("workers", [0, 2])
@mounts
def test_a_full_disk_is_told_and_a_limit_that_fits_works(
    nursery: Nursery, server: SmallServer, tmp_path: Path, workers: int
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    options = reading(server, workers, local=str(cache))
    check_told(
        nursery.run(EPOCH, options, small_disk=[str(cache), 40 << 10]),
        rf"cache directory {cache}: .*No space left.*\d+ needed.*{WHAT_TO_SET}",
    )
    options["dataset"]["cache_limit"] = 4000
    check_epoch(nursery.run(EPOCH, options, small_disk=[str(cache), 400 << 10]))


@pytest.mark.parametrize("workers", [0, 2])
@as_root
def test_b093_another_users_directory(
    nursery: Nursery, server: SmallServer, reachable: Path, workers: int
) -> None:
    cache = reachable / "cache"
    options = reading(server, workers, local=str(cache))
    check_epoch(nursery.run(EPOCH, options))
    told = rf"cache directory {cache}: .*Permission denied.*{WHAT_TO_SET}"
    check_told(nursery.run(EPOCH, options, user=NOBODY), told)
    # Opened to others by its owner, it serves what it has.
    for path in [cache, *cache.rglob("*")]:
        path.chmod(path.stat().st_mode | (0o055 if path.is_dir() else 0o044))
    check_epoch(nursery.run(EPOCH, options, user=NOBODY))
    (cache / "shard.00003.mds").unlink()
    check_told(nursery.run(EPOCH, options, user=NOBODY), told)


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770])
@as_root
def test_b093_a_directory_that_its_owner_has_opened_to_others_is_shared(
    nursery: Nursery, server: SmallServer, short_directory: Path, mode: int
) -> None:
    short_directory.chmod(0o755)
    cache = short_directory / "cache"
    cache.mkdir()
    cache.chmod(mode)
    options = reading(server, 0, local=str(cache))
    if mode == 0o770:  # to its group alone, which they are not in
        told = rf"cache directory {cache}: .*Permission denied.*{WHAT_TO_SET}"
        check_told(nursery.run(EPOCH, options, user=NOBODY), told)
        return
    limited = reading(server, 0, local=str(cache), cache_limit=4000)
    check_epoch(nursery.run(EPOCH, limited))
    check_epoch(nursery.run(EPOCH, options, user=NOBODY))
    before = len(server.seen)
    check_epoch(nursery.run(EPOCH, options))
    check_epoch(nursery.run(EPOCH, options, user=12345))
    assert not [line for line in server.seen[before:] if ".mds" in line.split()[0]]
    for user in (NOBODY, 12345):
        check_epoch(nursery.run(EPOCH, limited, user=user))
    # Each evicts what the other has fetched; except where the sticky bit forbids it, which is no error.
    if mode == 0o777:
        assert sum(path.stat().st_size for path in cache.glob("*.mds")) <= 4000


@pytest.mark.parametrize("workers", [0, 2])
@as_root
def test_b093_no_home(nursery: Nursery, server: SmallServer, short_directory: Path, workers: int) -> None:
    short_directory.chmod(0o1777)
    nowhere = {"HOME": None, "XDG_CACHE_HOME": None, "TMPDIR": str(short_directory)}
    check_epoch(nursery.run(EPOCH, reading(server, workers), environment=nowhere, user=54321))
    assert [path.name for path in short_directory.iterdir() if "pymp" not in path.name] == [
        "streamshard-54321"
    ]
    check_told(
        nursery.run(
            EPOCH, reading(server, workers), environment={**nowhere, "HOME": "/nonexistent"}, user=NOBODY
        ),
        rf"cache directory /nonexistent/.cache/streamshard/\w+: .*{WHAT_TO_SET}",
    )


@mounts
def test_shared_memory_that_is_tiny_or_read_only(
    nursery: Nursery, server: SmallServer, tmp_path: Path
) -> None:
    alone = reading(server, 0, local=str(tmp_path / "cache"))
    with_workers = reading(server, 2, local=str(tmp_path / "cache"))
    hardships: list[dict[str, Any]] = [{"small_disk": ["/dev/shm", 16 << 10]}, {"read_only": "/dev/shm"}]
    for hardship in hardships:
        check_epoch(nursery.run(EPOCH, alone, **hardship))
        told = "workers cannot be started .*/dev/shm.*--shm-size.*num_workers=0"
        check_told(nursery.run(EPOCH, with_workers, **hardship), told)
    check_epoch(nursery.run(EPOCH, with_workers, small_disk=["/dev/shm", 1 << 20]))


@mounts
def test_batches_that_shared_memory_has_no_room_for_go_through_the_pipe(nursery: Nursery) -> None:
    options = {"rows": 1 << 17, "samples": 16, "batch_size": 4, "workers": 2}
    without = {**options, "no_memfd": True}
    outcome = nursery.run("hardships.read_arrays", without, small_disk=["/dev/shm", 1 << 20])
    assert outcome.result == list(range(16)), outcome.printed
    assert outcome.printed.count("no shared memory for a batch") == 2
    for given, hardship in ((without, {}), (options, {"small_disk": ["/dev/shm", 1 << 20]})):
        outcome = nursery.run("hardships.read_arrays", given, **hardship)
        assert (outcome.result, outcome.printed) == (list(range(16)), "")


@pytest.mark.parametrize("workers", [0, 2])
@mounts
def test_nothing_is_written_where_the_cache_is_in_memory(
    nursery: Nursery, server: SmallServer, tmp_path: Path, workers: int
) -> None:
    read_only = {"HOME": str(tmp_path), "XDG_CACHE_HOME": None}
    for limit in ({}, {"cache_limit": 3000, "shuffle": True}):
        options = reading(server, workers, cache="memory", **limit)
        outcome = nursery.run(EPOCH, options, environment=read_only, read_only=str(tmp_path))
        assert sorted(outcome.result["numbers"]) == list(range(SAMPLES)), outcome.printed
    assert list(tmp_path.iterdir()) == []


def test_compressed_shards_are_unpacked_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMSHARD_CACHE", str(tmp_path / "not here"))
    directory = text_dataset(tmp_path / "set", SAMPLES, samples_per_shard=PER_SHARD, compression="zstd")
    before = sorted(directory.iterdir())
    for stream in (Stream(local=directory, cache="memory"), Stream(remote=directory, cache="memory")):
        loader = StreamingDataLoader(StreamingDataset(streams=[stream]), 6)
        assert joined(epoch_of(loader)) == list(range(SAMPLES))
    assert sorted(directory.iterdir()) == before
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_a_cache_of_an_unknown_kind_or_in_two_places_is_refused(tmp_path: Path) -> None:
    directory = text_dataset(tmp_path / "set", 10)
    with pytest.raises(ValueError, match="cache='tape': expected 'disk' or 'memory'"):
        StreamingDataset(local=directory, cache="tape")
    with pytest.raises(ValueError, match=r"local=.*cache.* names a directory .*cache='memory' keeps none"):
        StreamingDataset(remote=directory.as_uri(), local=tmp_path / "cache", cache="memory")

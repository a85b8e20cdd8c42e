"""What is fetched where the cache has a limit: as little as any eviction could, and the limit holds."""

from __future__ import annotations

import logging
import mmap
import os
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from streamshard import StreamingDataLoader, StreamingDataset, World
from streamshard.storage.cache_directory import CacheDirectory
from streamshard.storage.local_store import LocalStore
from tests.support.belady import fetches_of_lru, fewest_fetches, requests_of
from tests.support.cache_client import ours_in
from tests.support.leftovers import deleted_but_held
from tests.support.pretended_ranks import numbers, write_numbers

EPOCHS = 3
pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a line for each shard that any process fetches."""
    path = tmp_path / "fetched"
    fetch_to = LocalStore.fetch_to

    def logged(self: LocalStore, key: str, *arguments: Any, **options: Any) -> int:
        with path.open("a") as file:
            file.write(f"{key}\n")
        return fetch_to(self, key, *arguments, **options)

    monkeypatch.setattr(LocalStore, "fetch_to", logged)
    return path


class _Watch:
    """Samples the disk use of a cache directory until the block ends."""

    def __init__(self, directory: Path) -> None:
        self.most = 0
        self._directory = directory
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        directory = CacheDirectory(self._directory)
        while not self._stop.wait(0.01):
            with (
                directory.room()
            ):  # or a file would count twice that is published or replaced during the look
                self.most = max(self.most, _shards_in(self._directory))

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()


def _shards_in(directory: Path) -> int:
    index = directory / "index.json"
    return ours_in(directory) - (index.stat().st_size if index.exists() else 0)


class Job:
    """Some ranks with one cache, in step as training is."""

    def __init__(
        self, remote: Path, cache: Path, *, ranks: int, workers: int, batch_size: int, **options: Any
    ):
        self.datasets = [
            StreamingDataset(
                remote=remote.as_uri(),
                local=cache,
                batch_size=batch_size,
                world=World(rank, ranks),
                shuffle=True,
                **options,
            )
            for rank in range(ranks)
        ]
        self.loaders = [
            StreamingDataLoader(dataset, num_workers=workers, collate_fn=numbers) for dataset in self.datasets
        ]

    def epoch(self) -> list[int]:
        found: list[int] = []
        for batches in zip(*self.loaders, strict=True):
            for batch in batches:
                found += batch
        return found


@pytest.mark.parametrize(
    ("shards", "size", "ranks", "workers"),
    [(64, 64, 2, 0), pytest.param(128, 192, 8, 2, marks=pytest.mark.slow)],
    ids=["2 ranks", "8 ranks of 2 workers"],
)
def test_three_epochs_fetch_what_the_best_eviction_would(
    tmp_path: Path, log: Path, shards: int, size: int, ranks: int, workers: int
) -> None:
    remote = write_numbers(tmp_path / "remote", [size] * shards)
    (nbytes,) = {path.stat().st_size for path in remote.glob("*.mds")}
    job = Job(
        remote,
        tmp_path / "cache",
        ranks=ranks,
        workers=workers,
        batch_size=64 // ranks,
        cache_limit=nbytes * shards // 4,
        num_canonical_nodes=2,
        shuffle_block_size=size,
    )
    with _Watch(tmp_path / "cache") as watch:
        for _ in range(EPOCHS):
            assert sorted(job.epoch()) == list(range(size * shards))
    assert 0 < watch.most <= nbytes * shards // 4
    requests = requests_of(job.datasets[0], EPOCHS, 64, size)
    best = fewest_fetches(requests, shards // 4)
    fetched = len(log.read_text().split())
    assert best <= fetched <= 1.02 * best
    assert fetches_of_lru(requests, shards // 4) > 1.1 * best


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_readers_have_open_or_mapped_is_within_the_limit(tmp_path: Path) -> None:
    remote = write_numbers(tmp_path / "remote", [200] * 16)
    (nbytes,) = {path.stat().st_size for path in remote.glob("*.mds")}
    cache, limit = tmp_path / "cache", 6 * nbytes
    job = Job(remote, cache, ranks=2, workers=1, batch_size=20, cache_limit=limit, num_canonical_nodes=2,
              shuffle_block_size=200)  # fmt: skip
    seen, most = 0, 0
    for _ in range(2):
        for batches in zip(*job.loaders, strict=True):
            seen += sum(map(len, batches))
            pids = [process.pid for process in (psutil.Process(), *psutil.Process().children())]
            with CacheDirectory(cache).room():  # as _Watch
                most = max(most, _shards_in(cache) + deleted_but_held(cache, pids))
    assert seen == 2 * 3200
    assert 4 * nbytes <= most <= limit
    # And it would be seen:
    (cache / "other").write_bytes(bytes(5000))
    with (cache / "other").open("rb") as held, mmap.mmap(held.fileno(), 0, access=mmap.ACCESS_READ):
        (cache / "other").unlink()
        assert deleted_but_held(cache, [os.getpid()]) >= 5000
    assert deleted_but_held(cache, [os.getpid()]) == 0


def test_without_a_limit_each_shard_is_fetched_once(tmp_path: Path, log: Path) -> None:
    remote = write_numbers(tmp_path / "remote", [64] * 32)
    job = Job(remote, tmp_path / "cache", ranks=2, workers=1, batch_size=16)
    for _ in range(EPOCHS):
        job.epoch()
    fetched = Counter(log.read_text().split())
    assert set(fetched.values()) == {1}
    assert len(fetched) == 32


def test_b086_a_limit_below_what_the_shuffle_keeps_in_use_works_and_is_told_with_both_numbers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    remote = write_numbers(tmp_path / "remote", [50] * 20)
    (nbytes,) = {path.stat().st_size for path in remote.glob("*.mds")}
    job = Job(remote, tmp_path / "cache", ranks=1, workers=0, batch_size=50, cache_limit=3 * nbytes)
    with caplog.at_level(logging.WARNING, "streamshard"), _Watch(tmp_path / "cache") as watch:
        assert sorted(job.epoch()) == list(range(1000))
    assert watch.most <= 3 * nbytes
    (message,) = [record.getMessage() for record in caplog.records if "cache_limit=" in record.getMessage()]
    assert f"{20 * nbytes:,}" in message
    assert f"{3 * nbytes:,}" in message


def test_the_caches_know_the_future_as_long_as_an_iteration_lasts(tmp_path: Path) -> None:
    remote = write_numbers(tmp_path / "remote", [50] * 20)
    dataset = StreamingDataset(
        remote=remote.as_uri(), local=tmp_path / "cache", cache_limit="1mb", shuffle=False, batch_size=50
    )
    (cache,) = [stream.cache for stream in dataset._source.streams]
    iterator = iter(dataset)
    assert cache.next_use is None
    next(iterator)
    hook = cache.next_use
    assert hook is not None
    near, far = hook("shard.00000.mds"), hook("shard.00019.mds")
    assert near is not None
    assert far is not None
    assert near < 1 < far
    assert hook("another.mds") is None
    del iterator
    assert cache.next_use is None

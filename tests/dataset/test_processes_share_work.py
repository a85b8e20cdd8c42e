"""Workers together fetch each shard once, fetch nothing that is not needed, and do not grow."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from streamshard import StreamingDataLoader, StreamingDataset
from streamshard.storage.blob import Blob, CachedFile
from streamshard.storage.cache import NodeCache
from tests.support.faulty_proxy import Fault, FaultyProxy
from tests.support.loading import epoch_of, joined, make_loader, numbers_of, text_dataset
from tests.support.seaweedfs import SeaweedServer
from tests.support.small_datasets import write_dataset

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]


def number_dataset(directory: Path, num_samples: int, samples_per_shard: int) -> Path:
    samples = [{"number": number} for number in range(num_samples)]
    write_dataset(directory, samples, {"number": "int"}, samples_per_shard=samples_per_shard)
    return directory


def cached(cache: Path) -> dict[str, tuple[int, int]]:
    """Shards in a cache directory, with what changes when one is fetched again."""
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in cache.glob("*.mds")}


def test_b147_sixteen_workers_on_an_empty_cache_fetch_each_shard_once(
    s3: SeaweedServer, s3_proxy: FaultyProxy, tmp_path: Path
) -> None:
    directory = text_dataset(tmp_path / "set", 160, samples_per_shard=20)
    bucket = s3.make_bucket()
    s3.filesystem().put(str(directory), f"{bucket}/set", recursive=True)
    dataset = StreamingDataset(
        remote=f"{bucket}/set",
        local=tmp_path / "cache",
        storage_options=s3.options_for(s3_proxy.endpoint_url),
        shuffle=True,
    )
    # A slow server, so that all workers want the same shards while the first ones are under way.
    s3_proxy.arm(Fault(latency_s=0.3), times=4)
    loader = StreamingDataLoader(dataset, 2, num_workers=16)
    assert sorted(joined(epoch_of(loader))) == list(range(160))
    shards = [f"shard.{number:05d}.mds" for number in range(8)]
    assert {name: s3_proxy.count("GET", name) for name in shards} == dict.fromkeys(shards, 1)
    assert s3_proxy.count("GET", "index.json") == 1


@pytest.mark.parametrize("cache", ["one for all", "one local directory by mistake"])
def test_several_datasets_and_jobs_at_once_in_one_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: str
) -> None:
    """Their files have the same names."""
    monkeypatch.setenv("STREAMSHARD_CACHE", str(tmp_path / "cache"))
    loaders = []
    for number in range(2):
        samples = [{"number": 1000 * number + row} for row in range(120)]
        write_dataset(tmp_path / str(number), samples, {"number": "int"}, samples_per_shard=10)
        for seed in range(2):
            dataset = StreamingDataset(
                remote=(tmp_path / str(number)).as_uri(),
                local=None if cache == "one for all" else tmp_path / "cache",
                shuffle=True,
                shuffle_seed=seed,
                cache_limit="6kb",
                batch_size=5,
            )
            loaders.append(StreamingDataLoader(dataset, num_workers=seed))
    found: list[list[int]] = [[] for _ in loaders]
    for batches in zip(*loaders, strict=True):
        for numbers, batch in zip(found, batches, strict=True):
            numbers += batch["number"].tolist()
    for number in range(2):
        for numbers in found[2 * number : 2 * number + 2]:
            assert sorted(numbers) == list(range(1000 * number, 1000 * number + 120))


def test_what_was_checked_is_read_though_another_file_is_put_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As two datasets do that have one cache directory by mistake."""
    for number in range(2):
        samples = [{"number": 1000 * number + row} for row in range(120)]
        write_dataset(tmp_path / str(number), samples, {"number": "int"}, samples_per_shard=10)
    opened = NodeCache.open

    def open_and_lose(self: NodeCache, blob: Blob) -> CachedFile:
        held = opened(self, blob)
        if held.path.suffix == ".mds":
            other = tmp_path / "other"
            other.write_bytes((tmp_path / "1" / held.path.name).read_bytes())
            other.replace(held.path)
        return held

    monkeypatch.setattr(NodeCache, "open", open_and_lose)
    dataset = StreamingDataset(remote=(tmp_path / "0").as_uri(), local=tmp_path / "cache", shuffle=True)
    assert sorted(sample["number"] for sample in dataset) == list(range(120))


@pytest.mark.parametrize("workers", [0, 2])
def test_b133_a_run_resumed_near_the_end_fetches_only_what_it_needs(tmp_path: Path, workers: int) -> None:
    directory = text_dataset(tmp_path / "set", 400, samples_per_shard=20)
    dataset = StreamingDataset(remote=directory.as_uri(), local=tmp_path / "cache")
    loader = StreamingDataLoader(dataset, 8, num_workers=workers)
    loader.load_state_dict(dataset.state_dict(num_samples=360))
    assert joined(epoch_of(loader)) == list(range(360, 400))
    assert sorted(cached(tmp_path / "cache")) == ["shard.00018.mds", "shard.00019.mds"]


def loader_workers() -> list[psutil.Process]:
    """The children of this process that are copies of it; others may be there: servers, what another test has left."""
    me = psutil.Process()
    found = []
    for child in me.children():
        with contextlib.suppress(psutil.ZombieProcess, psutil.NoSuchProcess):
            if child.cmdline() == me.cmdline():
                found.append(child)
    return found


def cpu_s(processes: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


@pytest.mark.parametrize("workers", [0, 2])
def test_b112_between_two_epochs_nothing_is_fetched_again_and_nobody_is_busy(
    tmp_path: Path, workers: int
) -> None:
    directory = number_dataset(tmp_path / "set", 50_000, 1000)
    dataset = StreamingDataset(remote=directory.as_uri(), local=tmp_path / "cache", shuffle=True)
    loader = StreamingDataLoader(dataset, 1024, num_workers=workers, persistent_workers=workers > 0)
    first = np.concatenate([batch["number"] for batch in loader])
    files = cached(tmp_path / "cache")
    assert len(files) == 50
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("streamshard")]
    processes = [psutil.Process(), *loader_workers()]
    assert len(processes) == 1 + workers
    begin, before = time.monotonic(), cpu_s(processes)
    threading.Event().wait(1.0)
    # A thread that spins would take all of a processor; on a busy machine it would still be most of its share.
    assert cpu_s(processes) - before < 0.5 * (time.monotonic() - begin)
    second = np.concatenate([batch["number"] for batch in loader])
    assert sorted(first) == sorted(second) == list(range(50_000))
    assert cached(tmp_path / "cache") == files


def private_nbytes(processes: list[psutil.Process]) -> int:
    return sum(process.memory_full_info().uss for process in processes)


def collect_garbage(worker: int) -> None:
    gc.collect()


def check_growth(tmp_path: Path, num_samples: int, workers: int, arguments: dict[str, Any]) -> None:
    directory = number_dataset(tmp_path / "set", num_samples, 2000)
    dataset = StreamingDataset(shuffle=True, **{"local": directory, **arguments})
    # A forked worker's first full collection copies what it inherited; it must not fall between two measurements.
    loader = StreamingDataLoader(
        dataset, 512, num_workers=workers, persistent_workers=True, worker_init_fn=collect_garbage
    )
    sizes = []
    for _ in range(3):
        count = sum(len(batch["number"]) for batch in loader)
        assert count == num_samples
        children = loader_workers()
        assert len(children) == workers
        sizes.append(private_nbytes(children))
    # The first epoch warms up allocators; from then on nothing may pile up.
    assert sizes[-1] < 1.05 * sizes[0]


def test_b137_workers_do_not_grow_from_epoch_to_epoch(tmp_path: Path) -> None:
    check_growth(tmp_path, 20_000, 2, {})


@pytest.mark.slow
def test_b137_workers_do_not_grow_over_a_million_samples(tmp_path: Path) -> None:
    remote = {"local": tmp_path / "cache", "remote": (tmp_path / "set").as_uri()}
    check_growth(tmp_path, 1_000_000, 4, remote)


@pytest.mark.parametrize("kind", ["plain", "streaming"])
@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterator_that_is_dropped_ends_its_threads_and_workers(
    tmp_path: Path, kind: str, workers: int
) -> None:
    directory = text_dataset(tmp_path / "set", 400, samples_per_shard=5)
    dataset = StreamingDataset(
        remote=directory.as_uri(), local=tmp_path / "cache", batch_size=8, predownload=8
    )
    loader = make_loader(kind, dataset, 8, num_workers=workers)
    iterator = iter(loader)
    numbers_of(next(iterator))
    children = loader_workers()
    assert len(children) == workers
    del iterator
    _, alive = psutil.wait_procs(children, timeout=60)
    assert alive == []
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("streamshard")]

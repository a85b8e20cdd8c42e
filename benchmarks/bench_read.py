"""Reading: an epoch in shuffled order, one process, sample by sample; and random access by number."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.contest import OURS, Contest, Party, Setting
from benchmarks.digest import digest_of_samples
from benchmarks.generate import dataset

BATCH_SIZE = 32
TEXT_SAMPLES = 1_000_000
BLOB_SAMPLES = 30_000
MOSAIC = "mosaicml-streaming"
_MODULE = "benchmarks.bench_read"


def text(setting: Setting) -> Iterator[Contest]:
    """{int, 150-byte str}: in shards of 64 MiB (few), and of 1 MiB (many, all of them live in the shuffle)."""
    count = setting.count(TEXT_SAMPLES)
    for size_limit in ("64mb", "1mb"):
        place = dataset(setting.directory, "text", count, size_limit=size_limit)
        yield _epoch(
            place, "text", f"text, shuffled, one process: {count:,} × {{int, 150-byte str}}", size_limit
        )


def blob(setting: Setting) -> Iterator[Contest]:
    """{int, 20-60 kB bytes, short str}."""
    count = setting.count(BLOB_SAMPLES)
    place = dataset(setting.directory, "blob", count)
    yield _epoch(
        place, "blob", f"blob, shuffled, one process: {count:,} × {{int, 20-60 kB bytes, str}}", "64mb"
    )


def access(setting: Setting) -> Iterator[Contest]:
    """``LocalDataset[i]`` at random numbers."""
    count = setting.count(TEXT_SAMPLES)
    place = dataset(setting.directory, "text", count)
    yield Contest(
        f"random access ds[i], LocalDataset: {count:,} × {{int, 150-byte str}}",
        _MODULE,
        [Party(OURS, "access_streamshard"), Party(MOSAIC, "access_mosaic", MOSAIC)],
        "samples_per_s",
        True,
        {"directory": str(place), "accesses": min(count, 200_000)},
    )


def _epoch(place: Path, kind: str, title: str, size_limit: str) -> Contest:
    return Contest(
        f"{title}, shards of {size_limit}",
        _MODULE,
        [
            Party(OURS, "epoch_streamshard"),
            Party(MOSAIC, "epoch_mosaic", MOSAIC),
            Party("bare loop", "epoch_bare", options={"kind": kind}),
        ],
        "samples_per_s",
        True,
        {"directory": str(place)},
    )


# The parties. Each imports only its own library.


def epoch_streamshard(directory: str, *, check: bool) -> dict[str, Any]:
    """Iterate a shuffled StreamingDataset."""
    from streamshard import StreamingDataset

    return _timed_epoch(
        lambda: StreamingDataset(local=directory, shuffle=True, batch_size=BATCH_SIZE), check=check
    )


def epoch_mosaic(directory: str, *, check: bool) -> dict[str, Any]:
    """Iterate a shuffled StreamingDataset of mosaicml-streaming."""
    from streaming import StreamingDataset  # type: ignore[import-not-found]

    return _timed_epoch(
        lambda: StreamingDataset(local=directory, shuffle=True, batch_size=BATCH_SIZE), check=check
    )


def epoch_bare(directory: str, kind: str, *, check: bool) -> dict[str, Any]:
    """Slice the same bytes in streamshard's order, known beforehand, from memory, and make the same dicts."""
    return _timed_epoch(lambda: _BareLoop(Path(directory), kind), check=check)


class _BareLoop:
    """All that is not slicing and making dicts is done by the constructor."""

    def __init__(self, directory: Path, kind: str) -> None:
        import numpy as np

        from streamshard.format.index import INDEX_BASENAME, parse_index
        from streamshard.order.batches import BatchPlan
        from streamshard.order.epoch import Order
        from streamshard.order.walk import Walk

        index = parse_index((directory / INDEX_BASENAME).read_bytes(), source=INDEX_BASENAME)
        order = Order([Walk(index.samples_per_shard, seed=9176)])
        plan = BatchPlan(num_samples=index.num_samples, global_batch_size=BATCH_SIZE, ranks=1)
        samples = order.rank_batches(plan, 0, 0, plan.num_batches).samples
        self._files = [(directory / shard.raw.basename).read_bytes() for shard in index.shards]
        offsets = [
            np.frombuffer(file, "<u4", shard.num_samples + 1, 4)
            for file, shard in zip(self._files, index.shards, strict=True)
        ]
        begins = np.concatenate([each[:-1] for each in offsets])
        ends = np.concatenate([each[1:] for each in offsets])
        shards = np.repeat(np.arange(index.num_shards), index.samples_per_shard)
        self._places = [each[samples].tolist() for each in (shards, begins, ends)]
        self._walk = {"text": self._text, "blob": self._blob}[kind]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self._walk()

    def _text(self) -> Iterator[dict[str, Any]]:
        # length of text | number | text
        files, number = self._files, int.from_bytes
        for shard, begin, end in zip(*self._places, strict=True):
            file = files[shard]
            yield {
                "number": number(file[begin + 4 : begin + 12], "little", signed=True),
                "text": file[begin + 12 : end].decode(),
            }

    def _blob(self) -> Iterator[dict[str, Any]]:
        # lengths of blob and name | blob | name | number
        files, number = self._files, int.from_bytes
        for shard, begin, end in zip(*self._places, strict=True):
            file = files[shard]
            cut = begin + 8 + number(file[begin : begin + 4], "little")
            yield {
                "blob": file[begin + 8 : cut],
                "name": file[cut : end - 8].decode(),
                "number": number(file[end - 8 : end], "little", signed=True),
            }


def access_streamshard(directory: str, accesses: int, *, check: bool) -> dict[str, Any]:
    """Index a LocalDataset."""
    from streamshard import LocalDataset

    return _timed_access(LocalDataset(directory), accesses, check=check)


def access_mosaic(directory: str, accesses: int, *, check: bool) -> dict[str, Any]:
    """Index a LocalDataset of mosaicml-streaming."""
    from streaming import LocalDataset

    return _timed_access(LocalDataset(local=directory), accesses, check=check)


def _timed_epoch(make: Callable[[], Any], *, check: bool) -> dict[str, Any]:
    """Time one epoch: construction, time to the first sample, and the rate from there on."""
    begin = time.perf_counter()
    samples = make()
    constructed = time.perf_counter()
    if check:
        return {"digest": digest_of_samples(samples)}
    cpu = time.process_time()
    start = time.perf_counter()
    iterator = iter(samples)
    total = next(iterator)["number"]
    first = time.perf_counter()
    count = 1
    for sample in iterator:
        total += sample["number"]
        count += 1
    end = time.perf_counter()
    cpu = time.process_time() - cpu
    if total != count * (count - 1) // 2:
        raise ValueError(f"the numbers of {count} samples add up to {total}: some are missing or twice there")
    return {
        "samples_per_s": (count - 1) / (end - first),
        "first_sample_s": first - start,
        "construct_s": constructed - begin,
        "cpu_s_per_million": cpu / count * 1e6,
    }


def _timed_access(samples: Any, accesses: int, *, check: bool) -> dict[str, Any]:
    import random

    numbers = random.Random(1).sample(range(len(samples)), accesses)
    if check:
        return {"digest": digest_of_samples(samples[number] for number in numbers)}
    for number in numbers[:1000]:
        samples[number]
    start = time.perf_counter()
    for number in numbers:
        samples[number]
    return {"samples_per_s": accesses / (time.perf_counter() - start)}

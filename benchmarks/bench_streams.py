"""Many streams beside one of equal size: construct, look batches up, jump, change the epoch, read. CPU time."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.bench_scale import BATCH_SIZE, PER_SHARD
from benchmarks.bench_scale import dataset as without_shards
from benchmarks.contest import Contest, Party, Setting
from benchmarks.memory import private_nbytes

_MODULE = "benchmarks.bench_streams"
ORDER_SHARDS = 100_000
READ_SHARDS = 4_000
READ_PER_SHARD = 200
MOST_STREAMS = 1_000
_LEAST_SHARDS = 4  # of a stream
_LIVE = 16  # shards at a time in each of the 64 lanes of one stream: as many as 1,000 streams have
_BATCHES = 1_000
_FIRST = 100


def streams(setting: Setting) -> Iterator[Contest]:
    """1, 10, 100 and 1,000 streams of equally many shards in total, or as many shards as ``samples`` says."""
    for work, shards, per_shard, place in (
        ("order", setting.count(ORDER_SHARDS), PER_SHARD, _for_order),
        ("read", setting.count(READ_SHARDS), READ_PER_SHARD, _for_reading),
    ):
        most = max(1, min(MOST_STREAMS, shards // _LEAST_SHARDS))
        counts = [count for count in (1000, 100, 10, 1) if count <= most and shards % count == 0]
        if counts[0] != most and shards % most == 0:
            counts.insert(0, most)
        parties = [
            Party(
                f"{count:,} stream{'s' * (count > 1)}",
                work,
                options={"folders": place(setting.directory, shards, count)},
            )
            for count in counts
        ]
        one = parties[-1].options
        parties.append(
            Party("1 stream, 1,024 shards live", work, options={**one, "block": _LIVE * per_shard})
        )
        if work == "read":
            few = {**parties[0].options, "files": 1024}
            parties.append(Party(f"{parties[0].name}, 1,024 open files", work, options=few))
        yield Contest(
            f"streams, {work}: {shards:,} shards of {per_shard:,} samples",
            _MODULE,
            parties,
            "cpu_s",
            False,
            {"shards": shards},
        )


def _for_order(directory: Path, shards: int, count: int) -> list[str]:
    """Give the folders of so many streams: indexes without the files."""
    if count == 1:
        return [os.fspath(without_shards(directory, shards))]
    return [os.fspath(without_shards(directory, shards // count, number)) for number in range(count)]


def _for_reading(directory: Path, shards: int, count: int) -> list[str]:
    """Give the folders of so many streams, made of the same files by links."""
    files = _texts(directory, shards)
    own = directory / f"texts-{shards}-{count}"
    folders = [own / f"{number:04}" for number in range(count)]
    if not (folders[-1] / "index.json").exists():
        entries = json.loads((files / "index.json").read_text())["shards"]
        for number, folder in enumerate(folders):
            folder.mkdir(parents=True, exist_ok=True)
            mine = entries[number * shards // count : (number + 1) * shards // count]
            for entry in mine:
                name = entry["raw_data"]["basename"]
                (folder / name).hardlink_to(files / name)
            (folder / "index.json").write_text(json.dumps({"shards": mine, "version": 2}))
    return [os.fspath(folder) for folder in folders]


def _texts(directory: Path, shards: int) -> Path:
    from benchmarks.generate import TEXT_COLUMNS, text_samples
    from streamshard import MDSWriter

    place = directory / f"texts-{shards}"
    if not (place / "index.json").exists():
        columns, each = TEXT_COLUMNS, READ_PER_SHARD
        with MDSWriter(out=os.fspath(place), columns=columns, size_limit=None, samples_per_shard=each) as out:
            for sample in text_samples(shards * each):
                out.write(sample)
    return place


def _opened(folders: list[str], block: int | None) -> Any:
    from streamshard import Stream, StreamingDataset

    return StreamingDataset(
        streams=[Stream(local=folder) for folder in folders],
        shuffle=True,
        shuffle_block_size=block,
        batch_size=BATCH_SIZE,
    )


class _Clock:
    """CPU seconds and those of the clock, step by step. What any training has loaded is not counted."""

    def __init__(self) -> None:
        import torch  # noqa: F401

        from streamshard import StreamingDataset  # noqa: F401

        self.found: dict[str, float] = {}
        self._begin = self._last = time.process_time(), time.perf_counter()

    def step(self, name: str) -> None:
        now = time.process_time(), time.perf_counter()
        self.found[f"{name}_cpu_s"] = now[0] - self._last[0]
        self.found[f"{name}_s"] = now[1] - self._last[1]
        self._last = now

    def read(self) -> dict[str, float]:
        return {
            "cpu_s": self._last[0] - self._begin[0],
            "seconds": self._last[1] - self._begin[1],
            **self.found,
        }


def order(folders: list[str], shards: int, block: int | None = None, check: bool = False) -> dict[str, Any]:
    """Construct; look up the first batch, 1,000 after it, one after a jump to 90 %, one of the next epoch.

    The indexes are parsed by this process. The product is the samples of an epoch of shards of 3.
    """
    if check:
        return {"samples of an epoch": _digest_of_small_epoch(len(folders), shards, block)}
    with tempfile.TemporaryDirectory() as cache:
        os.environ["STREAMSHARD_CACHE"] = cache
        clock = _Clock()
        before = private_nbytes()
        dataset = _opened(folders, block)
        clock.step("construct")
        lookup: Any = dataset._states.order
        plan = lookup.plan(0, 0, global_batch_size=BATCH_SIZE)
        lookup.rank_batches(plan, 0, 0, 1)
        clock.step("first_batch")
        last = min(_BATCHES + 1, plan.full_batches)
        found = lookup.rank_batches(plan, 0, 1, last).samples
        clock.step("next_batches")
        jump = lookup.plan(0, lookup.num_samples * 9 // 10, global_batch_size=BATCH_SIZE)
        lookup.rank_batches(jump, 0, 0, 1)
        clock.step("jump")
        lookup.rank_batches(lookup.plan(1, 0, global_batch_size=BATCH_SIZE), 1, 0, 1)
        clock.step("next_epoch")
        private = private_nbytes() - before
    if len(set(found.tolist())) != (last - 1) * BATCH_SIZE:
        raise ValueError("a sample comes twice in an epoch")
    if lookup.num_samples != shards * PER_SHARD:
        raise ValueError("not what was written")
    return {**clock.read(), "private_mb": private / 1e6}


def _digest_of_small_epoch(count: int, shards: int, block: int | None) -> str:
    import numpy as np

    from streamshard.order.epoch import Order
    from streamshard.order.lanes import default_lanes, default_window
    from streamshard.order.walk import Walk

    sizes = np.full(shards // count, 3)
    lanes = default_lanes(sizes.size, 1, count)
    walks = [
        Walk(
            sizes,
            seed=9176,
            stream=number,
            lanes=lanes,
            window=default_window(lanes, 1, count, is_mixed=True) if block is None else block // PER_SHARD,
            scattered=count > _LEAST_SHARDS**2,
        )
        for number in range(count)
    ]
    lookup = Order(walks)
    plan = lookup.plan(0, 0, global_batch_size=min(BATCH_SIZE, lookup.num_samples))
    samples = np.concatenate(
        [
            lookup.rank_batches(plan, 0, batch, min(plan.num_batches, batch + 37)).samples
            for batch in range(0, plan.num_batches, 37)
        ]
    )
    return hashlib.blake2b(np.sort(samples[: lookup.num_samples]).tobytes(), digest_size=16).hexdigest()


def read(
    folders: list[str], shards: int, block: int | None = None, files: int | None = None, check: bool = False
) -> dict[str, Any]:
    """Construct; read the first batch, 100 batches, 1,000 batches, in one process; beside these, two epochs.

    Or digest an epoch.

    Args:
        folders: of the streams.
        shards: of all of them.
        block: ``shuffle_block_size``.
        files: that may be open; None: as the system says.
        check: digest an epoch.
    """
    import resource
    from itertools import islice

    if files is not None:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    with tempfile.TemporaryDirectory() as cache:
        os.environ["STREAMSHARD_CACHE"] = cache
        if check:
            sums = [
                zlib.crc32(b"%d:%s" % (one["number"], one["text"].encode()))
                for one in _opened(folders, block)
            ]
            return {"count and sum of checksums": f"{len(sums)}:{sum(sums)}"}
        clock = _Clock()
        dataset = _opened(folders, block)
        clock.step("construct")
        samples = iter(dataset)
        total = 0
        for name, batches in (("first_batch", 1), ("first", _FIRST), ("then", _BATCHES)):
            count = sum(1 for _ in islice(samples, batches * BATCH_SIZE))
            clock.step(name)
            if name != "first_batch" and count:
                clock.found[f"{name}_us"] = 1e6 * clock.found[f"{name}_cpu_s"] / count
            total += count
        found = clock.read()
        rest = sum(1 for _ in samples)
        clock.step("epoch")
        again = sum(1 for _ in dataset)
        clock.step("second_epoch")
    whole = shards * READ_PER_SHARD
    most = min(whole, (1 + _FIRST + _BATCHES) * BATCH_SIZE)
    if (total, total + rest, again) != (most, whole, whole):
        raise ValueError(f"{total} samples came, {total + rest} in the epoch, {again} in the next one")
    # The first epoch from its beginning, construction included.
    found["epoch_cpu_s"] = found["cpu_s"] + clock.found["epoch_cpu_s"]
    found["second_epoch_cpu_s"] = clock.found["second_epoch_cpu_s"]
    return found

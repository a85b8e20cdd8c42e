"""Many shards: opening an index, its order, and the memory of a loader with workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.contest import Contest, Party, Setting
from benchmarks.machine import ROOT
from benchmarks.memory import Meter, private_nbytes

_MODULE = "benchmarks.bench_scale"
PER_SHARD = 10_000
SIZES = (100_000, 1_000_000)
BATCH_SIZE = 256
WORKERS = 4
_PER_FOLDER = 1000


def scale(setting: Setting) -> Iterator[Contest]:
    """10⁵ and 10⁶ shards, or as many as ``samples`` says and ten times as many."""
    small = setting.count(SIZES[0])
    sizes = (small, small * SIZES[1] // SIZES[0])
    places = {size: dataset(setting.directory, size) for size in sizes}
    names = {size: f"{size:,} shards, {size * PER_SHARD:,} samples" for size in sizes}
    for size in sizes:
        yield Contest(
            f"scale: opening an index of {size:,} shards",
            _MODULE,
            [
                Party("map a table", "open_index", options={"warm": True}),
                Party("parse", "open_index", options={"warm": False}),
                Party("json.loads alone", "only_json"),
            ],
            "seconds",
            False,
            {"directory": str(places[size])},
            checked=False,
        )
    yield Contest(
        "scale: order, jump to 90 %, next epoch",
        _MODULE,
        [Party(names[size], "order_of_index", options={"directory": str(places[size])}) for size in sizes],
        "seconds",
        False,
        checked=False,
    )
    for start in ("fork", "spawn"):
        yield Contest(
            f"scale: private memory of a loader with {WORKERS} workers by {start}, above one of 1 shard",
            _MODULE,
            [Party(names[size], "loader", options={"directory": str(places[size])}) for size in sizes],
            "above_mb",
            False,
            {"small": str(dataset(setting.directory, 1)), "start": start},
            checked=False,
        )


def dataset(directory: Path, shards: int, number: int | None = None) -> Path:
    """Make a dataset of many shards whose files are all one file under many names."""
    own = (
        directory / f"scale-{shards}" if number is None else directory / f"streams-{shards}" / f"{number:04}"
    )
    if (own / "index.json").exists():
        return own
    import numpy as np

    from streamshard import MDSWriter

    shard = directory / "scale-shard"
    if not shard.exists():
        with MDSWriter(out=os.fspath(shard), columns={"n": "int"}, size_limit=None) as writer:
            for value in range(PER_SHARD):
                writer.write({"n": value})
        for place in range(_PER_FOLDER):
            os.link(shard / "shard.00000.mds", shard / f"{place:03}")
    own.mkdir(parents=True)
    entry = json.loads((shard / "index.json").read_text())["shards"][0]
    (digest,) = entry["raw_data"]["hashes"].values()
    entry["raw_data"]["basename"] = "NAME"
    text = json.dumps(entry, sort_keys=True).replace(digest, "HASH")
    words = np.random.default_rng(shards).integers(0, 1 << 63, shards)
    with (own / "index.json").open("w") as file:
        file.write('{"shards": [')
        for place, word in enumerate(words.tolist()):
            name = f"{place // _PER_FOLDER:04}/{place % _PER_FOLDER:03}"
            file.write((", " if place else "") + text.replace("NAME", name).replace("HASH", f"{word:016x}"))
        file.write('], "version": 2}')
    for folder in range(-(-shards // _PER_FOLDER)):
        (own / f"{folder:04}").symlink_to(shard)
    return own


def _use_cache(directory: str) -> None:
    os.environ["STREAMSHARD_CACHE"] = directory


def open_index(directory: str, warm: bool) -> dict[str, float]:
    """Read, check and open an index, the first process of a node or a later one."""
    from streamshard.read.catalog import load_index
    from streamshard.storage import open_store

    store = open_store(directory)
    with tempfile.TemporaryDirectory() as cache:
        if warm:
            subprocess.run(
                [
                    sys.executable,
                    "-c",
                    f"from {_MODULE} import _leave_table as f; f({directory!r}, {cache!r})",
                ],
                check=True,
                cwd=ROOT,
            )
        meter = Meter()
        index, _ = load_index(store, tables=Path(cache))
        measured = meter.read()
    if not index.num_samples == index.num_shards * PER_SHARD > 0:
        raise ValueError("not what was written")
    return measured


def _leave_table(directory: str, cache: str) -> None:
    from streamshard.read.catalog import load_index
    from streamshard.storage import open_store

    load_index(open_store(directory), tables=Path(cache))


def only_json(directory: str) -> dict[str, float]:
    """Read an index and parse its text with the standard library, no check made."""
    meter = Meter()
    document = json.loads((Path(directory) / "index.json").read_bytes())
    measured = meter.read()
    if not document["shards"]:
        raise ValueError("not what was written")
    return measured


def order_of_index(directory: str) -> dict[str, float]:
    """Make the order of an index that is open, and its first batch, one after a jump, one of the next epoch."""
    from streamshard.order.batches import BatchPlan
    from streamshard.order.epoch import Order
    from streamshard.order.walk import Walk
    from streamshard.read.catalog import load_index
    from streamshard.storage import open_store

    with tempfile.TemporaryDirectory() as cache:
        _leave_table(directory, cache)
        index, _ = load_index(open_store(directory), tables=Path(cache))
    meter = Meter()
    order = Order([Walk(index.samples_per_shard, seed=9176)])
    seconds = []
    for epoch, position in ((0, 0), (0, order.num_samples * 9 // 10), (1, 0)):
        begin = time.perf_counter()
        size = min(BATCH_SIZE, order.num_samples - position)
        plan = BatchPlan(num_samples=order.num_samples, global_batch_size=BATCH_SIZE, ranks=1, start=position)
        batch = order.rank_batches(plan, epoch, 0, 1)
        seconds.append(time.perf_counter() - begin)
        if len(set(batch.samples.tolist())) != size:
            raise ValueError("a sample is twice in the batch")
    first, jump, epoch_change = seconds
    return {**meter.read(), "first_s": first, "jump_s": jump, "next_epoch_s": epoch_change}


def loader(directory: str, small: str, start: str) -> dict[str, float]:
    """Memory of a trainer and its workers that belongs to one process each, above that with a small dataset."""
    with tempfile.TemporaryDirectory() as cache:
        _leave_table(directory, cache)
        found = []
        for place in (small, directory):
            command = [sys.executable, "-c", f"from {_MODULE} import _train as f; f({place!r}, {start!r})"]
            environment = {**os.environ, "STREAMSHARD_CACHE": cache}
            done = subprocess.run(
                command, check=True, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
            )
            found.append(json.loads(done.stdout.splitlines()[-1]))
    below, above = found
    return {
        "above_mb": sum(above) - sum(below),
        "small_mb": sum(below),
        "trainer_mb": above[0],
        "largest_worker_mb": max(above[1:]),
    }


def _train(directory: str, start: str) -> None:
    """Read some batches with workers; print the private megabytes of this process and of each worker."""
    from streamshard import StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset(local=directory, shuffle=True, batch_size=BATCH_SIZE)
    # Those workers that have read all their batches of a small dataset must be there to be measured too.
    loader = StreamingDataLoader(
        dataset, num_workers=WORKERS, multiprocessing_context=start, persistent_workers=True
    )
    batches = iter(loader)
    for _ in range(4 * WORKERS):
        next(batches)
    workers = [int(task) for task in _children()]
    if len(workers) < WORKERS:
        raise ValueError(f"{len(workers)} workers found")
    print(json.dumps([private_nbytes(pid) / 1e6 for pid in (os.getpid(), *workers)]))


def _children() -> list[str]:
    listed = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [pid for pid in listed if b"resource_tracker" not in Path(f"/proc/{pid}/cmdline").read_bytes()]

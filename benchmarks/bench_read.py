"""Where ShardReader's bytes come from: pread, slices of a map, or decoding in the map. Warm page cache.

    python benchmarks/bench_read.py [--json] [--samples 200000] [--text 150]

Prints nanoseconds per row for random rows of one shard of {int, str}, and what ``samples()`` adds to
``SampleDecoder.many`` on the same bytes. Results are compared after timing. Not shown: a cold cache, network disks.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streamshard import LocalDataset, MDSWriter
from streamshard.format.decoder import SampleDecoder
from streamshard.format.shard import parse_header
from streamshard.read.catalog import load_index
from streamshard.read.shard_reader import ShardReader
from streamshard.storage import open_store


def best_ns(runs: dict[str, Callable[[], object]], rows: int, repeats: int = 15) -> dict[str, int]:
    """Best time of each, in nanoseconds per row; the runs take turns, so that a busy machine hits all alike."""
    best = dict.fromkeys(runs, 2**63)
    for _ in range(repeats):
        for name, run in runs.items():
            begun = time.perf_counter_ns()
            run()
            best[name] = min(best[name], time.perf_counter_ns() - begun)
    return {name: round(ns / rows) for name, ns in best.items()}


def measure_batches(
    calls: list[NDArray[np.int64]],
    reader: ShardReader,
    decoder: SampleDecoder,
    offsets: NDArray[np.int64],
    content: bytes,
    descriptor: int,
    view: memoryview,
) -> dict[str, float]:
    """Time the sources of bytes, decoding alone, and the reader, on the same rows."""
    spans = [(offsets[rows], offsets[rows + 1]) for rows in calls]
    pairs = [list(zip(b.tolist(), e.tolist(), strict=True)) for b, e in spans]
    ns = best_ns(
        {
            "pread": lambda: [b"".join([os.pread(descriptor, b - a, a) for a, b in p]) for p in pairs],
            "map_slices": lambda: [b"".join([view[a:b] for a, b in p]) for p in pairs],
            "decode": lambda: [decoder.many(content, b, e) for b, e in spans],
            "samples": lambda: [reader.samples(rows) for rows in calls],
        },
        sum(map(len, calls)),
    )
    assert reader.samples(calls[0]) == decoder.many(content, *spans[0])
    return {**ns, "samples_add": round(ns["samples"] / ns["decode"] - 1, 3)}


def measure(directory: Path, num_samples: int, text: int) -> dict[str, object]:
    with MDSWriter(out=directory, columns={"number": "int", "text": "str"}, size_limit=None) as writer:
        for i in range(num_samples):
            writer.write({"number": i, "text": f"{i} ".ljust(text, "x")})
    index, _ = load_index(open_store(directory))
    (info,) = index.shards
    path, decoder = directory / info.raw.basename, info.schema.decoder()
    content = path.read_bytes()
    header = parse_header(lambda a, b: content[a:b], len(content), shard=path.name, expected=info)
    offsets = header.offsets.astype(np.int64)
    generator = np.random.Generator(np.random.Philox(1))
    found: dict[str, object] = {}
    with ShardReader(path, info, decoder) as reader, path.open("rb") as file:
        view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        for batch in (8, 32, 256):
            calls = [generator.integers(0, num_samples, batch) for _ in range(20_000 // batch)]
            found[f"rows={batch}"] = measure_batches(
                calls, reader, decoder, offsets, content, file.fileno(), view
            )
        rows = generator.integers(0, num_samples, 20_000).tolist()
        dataset = LocalDataset(directory)
        found |= best_ns(
            {
                "sample": lambda: [reader.sample(row) for row in rows],
                "dataset_item": lambda: [dataset[row] for row in rows],
                "dataset_slice": lambda: dataset[:20_000],
            },
            len(rows),
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--samples", type=int, default=200_000)
    parser.add_argument("--text", type=int, default=150)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        found = measure(Path(scratch) / "data", arguments.samples, arguments.text)
    found["machine"] = (
        f"{platform.machine()} {platform.system()} {platform.release()} Python {platform.python_version()}"
    )
    if arguments.json:
        print(json.dumps(found))
    else:
        for key, value in found.items():
            print(f"{key:22} {value}")


if __name__ == "__main__":
    main()

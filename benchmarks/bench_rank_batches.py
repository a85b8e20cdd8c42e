"""How fast the order is computed, and what a huge one costs to begin.

    python benchmarks/bench_rank_batches.py [--json] [--quick]

Measures this package only: sample ids a second of one rank, with no file read. Equality is checked after timing:
each way of asking must give the same samples. The start over 10**9 samples in 10**5 shards runs in a process of its
own; memory is what is private to that process above the imports.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time

import numpy as np

from streamshard.order.batches import BatchPlan
from streamshard.order.epoch import Order
from streamshard.order.walk import Walk

START = """
import gc, json, time
import numpy as np
from streamshard.order.batches import BatchPlan
from streamshard.order.epoch import Order
from streamshard.order.walk import Walk

def private():
    with open("/proc/self/smaps_rollup") as rollup:
        return sum(int(line.split()[1]) for line in rollup if line.startswith("Private_")) / 1024

sizes = np.full({shards}, {samples} // {shards})
before = private()
begin = time.perf_counter()
order = Order([Walk(sizes, seed=17)])
made = time.perf_counter()
order.rank_batches(BatchPlan(order.num_samples, 4096), 0, 0, 1)
first = time.perf_counter()
after = private()
jump = time.perf_counter()
order.rank_batches(BatchPlan(order.num_samples, 4096), 3, 100, 101)
print(json.dumps(dict(
    construct_s=made - begin, first_batch_s=first - made, jump_s=time.perf_counter() - jump,
    private_mib=after - before,
)))
"""


def throughput(
    samples: int, shards: int, shuffle: str, size: int, batches: int, ranks: int = 1
) -> dict[str, object]:
    """Time one rank's epoch, asked for in calls of ``batches`` batches."""
    order = Order([Walk(np.full(shards, samples // shards), seed=17, shuffle=shuffle)])
    plan = BatchPlan(order.num_samples, size, ranks)
    last = min(plan.num_batches, 400 * batches)
    begin = time.perf_counter()
    parts = [
        order.rank_batches(plan, 0, first, min(first + batches, last), 1, ranks // 2).samples
        for first in range(0, last, batches)
    ]
    seconds = time.perf_counter() - begin
    found = np.concatenate(parts)
    at_once = Order([Walk(np.full(shards, samples // shards), seed=17, shuffle=shuffle)])
    if not np.array_equal(found, at_once.rank_batches(plan, 0, 0, last, 1, ranks // 2).samples):
        raise SystemExit("the order depends on how it is asked for")
    return {
        "shuffle": shuffle,
        "global_batch_size": size,
        "ranks": ranks,
        "batches_a_call": batches,
        "samples_per_s": found.size / seconds,
        "us_a_batch": seconds / last * 1e6,
    }


def main() -> None:
    """Run all measurements and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    options = parser.parse_args()
    samples, shards = (20_000, 50) if options.quick else (1_000_000, 1000)
    rows = [
        throughput(samples, shards, "sliding", size, batches, ranks)
        for size, batches, ranks in ((4096, 1, 1), (32, 128, 1), (32, 1, 1), (256, 64, 8), (2048, 64, 64))
    ]
    rows += [throughput(samples, shards, shuffle, 32, 128) for shuffle in ("block", "shard", "full", "none")]
    huge = (10**6, 10**3) if options.quick else (10**9, 10**5)
    code = START.format(samples=huge[0], shards=huge[1])
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    start = {"samples": huge[0], "shards": huge[1], **json.loads(done.stdout)}
    report = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": platform.machine(),
        "samples": samples,
        "shards": shards,
        "throughput": rows,
        "start": start,
    }
    if options.json:
        print(json.dumps(report))
        return
    for row in rows:
        print(
            f"{row['shuffle']:8} G={row['global_batch_size']:<5} ranks={row['ranks']:<3} "
            f"batches a call={row['batches_a_call']:<4} {row['samples_per_s'] / 1e6:6.2f} M samples/s a rank "
            f"{row['us_a_batch']:8.1f} us a batch"
        )
    print("start:", ", ".join(f"{name}={value:,.4g}" for name, value in start.items()))


if __name__ == "__main__":
    main()

"""The order of an epoch: from the shards' sizes to the first batch, in a fresh process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.contest import OURS, Contest, Party, Setting
from benchmarks.memory import Meter

MOSAIC = "mosaicml-streaming"
SAMPLES = 1_000_000_000
PEER_SAMPLES = 100_000_000
PER_SHARD = 10_000
BATCH_SIZE = 256
_MODULE = "benchmarks.bench_order"


def order(setting: Setting) -> Iterator[Contest]:
    """10⁹ samples in 10⁵ shards alone, then 10⁸ in 10⁴ beside mosaicml-streaming, whose arrays grow with N."""
    largest = setting.count(SAMPLES)
    sizes = [("at its start", 0.0), ("at 90 % of the epoch", 0.9)]
    yield Contest(
        f"order, at two positions: first {BATCH_SIZE} samples of {largest:,} in {_shards(largest):,} shards",
        _MODULE,
        [Party(f"{OURS}, {where}", "order_streamshard", options={"at": at}) for where, at in sizes],
        "seconds",
        False,
        {"samples": largest},
        cache="none",
        checked=False,
    )
    beside = min(largest, PEER_SAMPLES)
    yield Contest(
        f"order: first {BATCH_SIZE} samples of {beside:,} in {_shards(beside):,} shards",
        _MODULE,
        [Party(OURS, "order_streamshard", options={"at": 0.0}), Party(MOSAIC, "order_mosaic", MOSAIC)],
        "seconds",
        False,
        {"samples": beside},
        cache="none",
        checked=False,
        work="order of an epoch",
        goals={MOSAIC: 30},
        unable={
            "litdata": "orders chunks when an epoch begins; samples of a chunk when it is read",
            "webdataset": "has no order of samples: shuffles in a buffer",
            "zephon": "makes its order as it goes, in work of 16,384 samples",
        },
    )


def _shards(samples: int) -> int:
    return max(1, samples // PER_SHARD)


def _sizes(samples: int, shards: int | None) -> Any:
    """Sizes of shards, within 10 % of their mean, int64."""
    import numpy as np

    shards = shards or _shards(samples)
    cuts = np.arange(shards + 1) * (samples / shards)
    cuts[1:-1] += np.random.default_rng(1).uniform(-0.05, 0.05, shards - 1) * (samples / shards)
    cuts = cuts.astype(np.int64)
    cuts[-1] = samples
    return np.diff(cuts)


def order_streamshard(samples: int, at: float = 0.0, shards: int | None = None) -> dict[str, float]:
    """Make the order and the first batch from a position on."""
    from streamshard.order.batches import BatchPlan
    from streamshard.order.epoch import Order
    from streamshard.order.walk import Walk

    sizes = _sizes(samples, shards)
    meter = Meter()
    made = Order([Walk(sizes, seed=9176)])
    plan = BatchPlan(
        num_samples=samples, global_batch_size=min(BATCH_SIZE, samples), ranks=1, start=int(at * samples)
    )
    batch = made.rank_batches(plan, 0, 0, 1)
    measured = meter.read()
    if len(set(batch.samples.tolist())) != min(BATCH_SIZE, samples - int(at * samples)):
        raise ValueError("a sample is twice in the batch")
    return measured


def order_mosaic(samples: int, shards: int | None = None) -> dict[str, float]:
    """Call what StreamingDataset calls for an epoch, with its defaults for one rank on one node, one worker."""
    from types import SimpleNamespace

    import numpy as np
    from streaming.base.batching.random import generate_work_random_batching  # type: ignore[import-not-found]

    sizes = _sizes(samples, shards)
    dataset = SimpleNamespace(
        num_canonical_nodes=1,
        batch_size=BATCH_SIZE,
        partition_algo="relaxed",
        epoch_size=samples,
        initial_physical_nodes=1,
        shuffle=True,
        shuffle_block_size=4_000_000,
        shuffle_algo="py1e",
        shuffle_seed=9176,
        # Each sample once; the dataset itself joins this from one array per shard, which costs more.
        resample_streams=lambda epoch: (sizes, np.arange(samples)),
    )
    world = SimpleNamespace(num_nodes=1, ranks_per_node=1, workers_per_rank=1)
    meter = Meter()
    work = generate_work_random_batching(dataset, world, 0, 0)
    measured = meter.read()
    if np.unique(work.ravel()[:BATCH_SIZE]).size != min(BATCH_SIZE, samples):
        raise ValueError("a sample is twice in the batch")
    return measured

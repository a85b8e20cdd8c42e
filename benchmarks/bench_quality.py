"""How well each order is shuffled against the shards it needs at a time, over whole epochs of synthetic datasets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

from benchmarks.contest import OURS, Party, Setting
from benchmarks.survey import Survey

MOSAIC = "mosaicml-streaming"
GRAIN = "grain"
SHARDS = (4, 40, 400, 4000)
SIZES = ("equal", "unequal")
SAMPLES = 1_024_000  # of the largest dataset
PER_SHARD = 1_024  # of the others, on the average
RANKS, RANK_BATCH = 8, 32
LANES = (1, 8, 64)
FINE_LANES = (1, 2, 4, 8, 16, 32, 64)
WINDOWS = (1, 2, 4, 8, 16, 32, 64, 128)
FINE_WINDOWS = (
    1,
    2,
    3,
    4,
    6,
    8,
    12,
    16,
    24,
    32,
    48,
    64,
    96,
    128,
)  # where there are few shards, a step is a large part
FAR_WINDOWS = (*WINDOWS, 256, 512, 1024, 2048)  # where there are many, 128 is far from all
SEED = 9176
_MODULE = "benchmarks.bench_quality"


def quality(setting: Setting) -> Iterator[Survey]:
    """All orders at all their settings on the same datasets, in global batches of 256."""
    samples = setting.count(SAMPLES)
    yield Survey(
        f"shuffle quality: up to {samples:,} samples in global batches of {RANKS * RANK_BATCH}",
        _MODULE,
        [
            Party(OURS, "quality_streamshard"),
            Party(MOSAIC, "quality_mosaic", MOSAIC),
            Party(GRAIN, "quality_grain", GRAIN),
        ],
        {"samples": samples},
    )


def sizes_of_shards(shards: int, kind: str, per_shard: int) -> Any:
    """Sizes of shards: all the same, or spread evenly over 0.2 to 1.8 of the mean, int64; one sum for both kinds."""
    import numpy as np

    if kind == "equal":
        return np.full(shards, per_shard, dtype=np.int64)
    drawn = np.random.default_rng(1).uniform(0.2, 1.8, shards)
    ends = np.round(np.cumsum(drawn) * (shards * per_shard / drawn.sum())).astype(np.int64)
    return np.diff(ends, prepend=0)


def samples_per_shard(samples: int, shards: int) -> int:
    """Mean samples of a shard of the dataset with that many shards, where the largest one has ``samples``."""
    return min(PER_SHARD, samples // shards)


def _datasets(samples: int) -> Iterator[tuple[dict[str, Any], Any]]:
    for shards, kind in product(SHARDS, SIZES):
        if 8 * shards <= samples:  # with fewer samples in a shard there is nothing to shuffle
            sizes = sizes_of_shards(shards, kind, samples_per_shard(samples, shards))
            yield {"shards": shards, "sizes": kind, "samples": int(sizes.sum())}, sizes


def _grid(
    shards: int, lanes: tuple[int, ...] = LANES, windows: tuple[int, ...] = WINDOWS
) -> Iterator[tuple[int, int]]:
    """Lanes and windows to try: from one shard in each lane to all of them."""
    for count in lanes:
        yield from ((count, window) for window in windows if window == 1 or count * window < shards)
        yield count, -(-shards // count) + 1  # a lane may have pieces of one shard more


# What the comparison of whole grids takes; the other measures are kept for the defaults.
_GRID = (
    *("overall_shards", "effective_shards", "ideal_shards"),
    *("first_to_median", "last_to_median", "least_to_median"),
    *("live_shards_max", "live_shards_mean", "carried_shards_max"),
    *("needed_shards_max", "needed_shards_mean", "fetches"),
)


def _judge(epochs: Callable[[int], Any], sizes: Any, *, whole: bool = True) -> dict[str, float | None]:
    from streamshard.order.quality import shuffle_quality

    following = epochs(1) if whole else None
    found = shuffle_quality(epochs(0), sizes, RANKS * RANK_BATCH, next_epoch=following).summary()
    # NaN is no JSON; five digits are enough for everybody.
    return {
        name: float(f"{value:.5g}") if value == value else None
        for name, value in found.items()
        if whole or name in _GRID
    }


def quality_streamshard(samples: int) -> list[dict[str, Any]]:
    """Every shuffle with its defaults; ``sliding``, ``block`` and ``shard`` over the grid."""
    from streamshard.order.batches import BatchPlan
    from streamshard.order.epoch import Order
    from streamshard.order.walk import Walk

    rows = []
    for dataset, sizes in _datasets(samples):
        tries: list[tuple[str, int | None, int | None]] = [
            (shuffle, None, None) for shuffle in ("sliding", "block", "shard", "full")
        ]
        grid = (FINE_LANES, FINE_WINDOWS) if dataset["shards"] <= 400 else (LANES, FAR_WINDOWS)
        tries += [("sliding", *point) for point in _grid(dataset["shards"], *grid)]
        few = WINDOWS if dataset["shards"] <= 400 else (2, 16)
        tries += [("block", *point) for point in _grid(dataset["shards"], windows=few)]
        tries += [("shard", lanes, None) for lanes, window in _grid(dataset["shards"]) if window == 1]
        for shuffle, lanes, window in tries:
            walk = Walk(sizes, seed=SEED, shuffle=shuffle, lanes=lanes, window=window)
            order = Order([walk])
            plan = BatchPlan(order.num_samples, RANKS * RANK_BATCH)
            epoch = partial(_epoch_of_streamshard, order, plan)
            of = {"order": shuffle, "lanes": walk.lanes, "window": walk.window, "default": lanes is None}
            judged = _judge(epoch, sizes, whole=lanes is None)
            rows.append({**dataset, **of, "announced": walk.live_shards(), **judged})
    return rows


def _epoch_of_streamshard(order: Any, plan: Any, number: int) -> Any:
    return order.rank_batches(plan, number, 0, plan.num_batches).samples


def quality_mosaic(samples: int) -> list[dict[str, Any]]:
    """What StreamingDataset does for an epoch: one node, 8 ranks, one worker each."""
    import warnings

    warnings.filterwarnings("ignore", "Shuffle block size was smaller")
    rows = []
    for dataset, sizes in _datasets(samples):
        # Defaults for one node: 64 canonical nodes for py1s, 1 for the others, blocks of 4,000,000 samples.
        tries = [("naive", 1, None), ("py1s", 64, None)]
        tries += [("py1e", 1, None), ("py1br", 1, None)]
        fits = [
            point for point in _grid(dataset["shards"]) if point[0] == 1 or 2 * point[0] <= dataset["shards"]
        ]
        tries += [(name, *point) for name in ("py1e", "py1br") for point in fits]
        tries += [("py1s", lanes, 1) for lanes, window in fits if window == 1]
        for name, lanes, window in tries:
            block = 4_000_000 if window is None else window * (dataset["samples"] // dataset["shards"])
            epoch = partial(_epoch_of_mosaic, name, sizes, lanes, block)
            of = {"order": name, "lanes": lanes, "window": window, "default": window is None}
            rows.append({**dataset, **of, **_judge(epoch, sizes)})
    return rows


def _epoch_of_mosaic(name: str, sizes: Any, lanes: int, block: int, number: int) -> Any:
    import numpy as np
    from streaming.base.partition import get_partitions  # type: ignore[import-not-found]
    from streaming.base.shuffle import get_shuffle  # type: ignore[import-not-found]

    places = get_partitions("relaxed", int(sizes.sum()), lanes, 1, RANKS, 1, RANK_BATCH)
    # (node, rank, worker, batch, place) -> batch, rank, place
    in_turn = places[0, :, 0].transpose(1, 0, 2).ravel()
    ids = get_shuffle(name, sizes, lanes, SEED, number, block)[in_turn[in_turn >= 0]]
    # Where canonical nodes do not divide the samples, some are given twice: the first time counts.
    return ids[np.sort(np.unique(ids, return_index=True)[1])]


def quality_grain(samples: int) -> list[dict[str, Any]]:
    """Grain's IndexSampler: a permutation of the whole dataset, whatever its shards."""
    import numpy as np
    from grain.samplers import IndexSampler  # type: ignore[import-not-found]
    from grain.sharding import NoSharding  # type: ignore[import-not-found]

    rows = []
    known: dict[int, list[Any]] = {}
    for dataset, sizes in _datasets(samples):
        total = int(sizes.sum())
        if total not in known:
            sampler = IndexSampler(total, NoSharding(), shuffle=True, num_epochs=2, seed=SEED)
            both = np.fromiter((sampler[i].record_key for i in range(2 * total)), np.int64, 2 * total)
            known = {total: [both[:total], both[total:]]}
        of = {"order": "index_shuffle", "lanes": 1, "window": None, "default": True}
        rows.append({**dataset, **of, **_judge(known[total].__getitem__, sizes)})
    return rows

"""The order is a promise: a saved position must mean the same samples in every later release.

Values in ``golden_order.json`` are never changed, only joined by new ones:
``python -m tests.order.test_golden`` adds what is missing.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from streamshard.order.batches import BatchPlan
from streamshard.order.epoch import BATCHINGS, Order
from streamshard.order.walk import Walk

GOLDEN = Path(__file__).with_name("golden_order.json")
SEEDS = (0, 17, (1 << 63) + 9176)
UNEVEN = (np.arange(230) * 37 % 41).tolist()  # 230 shards of 0 to 40 samples
LARGE = [70_000, 65_536, 65_535, 3, 80_001]  # pieces on both sides of 2**16
SMALL = {
    **{
        f"{shuffle}, seed {seed}": (UNEVEN, {"shuffle": shuffle, "seed": seed})
        for seed in SEEDS
        for shuffle in ("sliding", "block", "shard", "full", "none")
    },
    "sliding, 12 lanes, window 5": (UNEVEN, {"shuffle": "sliding", "seed": 17, "lanes": 12, "window": 5}),
    "sliding, block size 300, stream 3": (
        UNEVEN,
        {"shuffle": "sliding", "seed": 17, "block_size": 300, "stream": 3},
    ),
    "sliding, large pieces": (LARGE, {"shuffle": "sliding", "seed": 17, "lanes": 1, "window": 2}),
    "full, large": (LARGE, {"shuffle": "full", "seed": 17}),
}
HUGE = {
    "sliding": (10**6, {"seed": 17}),
    "shard": (10**6, {"seed": 17, "shuffle": "shard"}),
    "full": (10, {"seed": 17, "shuffle": "full"}),
    "none": (10, {"seed": 17, "shuffle": "none"}),
}


def small(case):
    sizes, walk = SMALL[case]
    order = Order([Walk(np.array(sizes), **walk)])
    plan = BatchPlan(order.num_samples, 96, 3)
    parts = [
        order.rank_batches(plan, epoch, 0, plan.num_batches, 1, rank) for epoch in (0, 5) for rank in range(3)
    ]
    whole = np.concatenate([part.samples for part in parts]).astype("<i8")
    return {"first": whole[:12].tolist(), "sha256": hashlib.sha256(whole.tobytes()).hexdigest()}


def huge(case):
    """A batch of one of 64 ranks in the midst of epoch 10**6 of 10**12 samples."""
    shards, walk = HUGE[case]
    order = Order([Walk(np.full(shards, 10**12 // shards), **walk)])
    plan = BatchPlan(10**12, 64 * 6, 64, start=987_654_321_000)
    return order.rank_batches(plan, 10**6, 3, 4, 1, 41).samples.tolist()


def mixed(batching):
    """A batch of one of 64 ranks in the midst of epoch 10**6, which takes 10**12 samples of three streams."""
    streams = [(10**4, 6 * 10**7), (3000, 10**8), (10, 10**9)]  # of which the last one is walked ten times
    walks = [Walk(np.full(shards, size), seed=17, stream=n) for n, (shards, size) in enumerate(streams)]
    order = Order(walks, [6 * 10**11, 3 * 10**11, 10**11], batching=batching)
    plan = order.plan(10**6, 0, global_batch_size=64 * 6, ranks=64)
    batch = 2_345_678_901
    return order.rank_batches(plan, 10**6, batch, batch + 1, 1, 41).samples.tolist()


@pytest.fixture(scope="module")
def golden():
    return json.loads(GOLDEN.read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", SMALL)
def test_the_order_is_what_it_always_was(case, golden):
    assert small(case) == golden[case]


@pytest.mark.parametrize("case", HUGE)
def test_the_order_of_1e12_samples_is_what_it_always_was(case, golden):
    found = huge(case)
    assert found == golden[f"10**12, {case}"]
    assert all(0 <= sample < 10**12 for sample in found)


@pytest.mark.parametrize("batching", BATCHINGS)
def test_the_order_of_1e12_samples_of_three_streams_is_what_it_always_was(batching, golden):
    assert mixed(batching) == golden[f"10**12 of three streams, {batching}"]


def test_the_far_end_of_1e12_unshuffled_samples_can_be_checked_by_eye():
    order = Order([Walk(np.full(10, 10**11), seed=0, shuffle=None)])
    got = order.rank_batches(BatchPlan(10**12, 1000, 4, start=10**12 - 1500), 0, 1, 2, 1, 3)
    assert got.samples.tolist() == list(range(10**12 - 125, 10**12))


def test_seeds_shuffles_and_streams_all_differ(golden):
    found = [value["sha256"] for case, value in golden.items() if "sha256" in value and "none" not in case]
    assert len(set(found)) == len(found) > 12


if __name__ == "__main__":
    known = json.loads(GOLDEN.read_text(encoding="utf-8")) if GOLDEN.exists() else {}
    for name in SMALL:
        known.setdefault(name, small(name))
    for name in HUGE:
        known.setdefault(f"10**12, {name}", huge(name))
    for name in BATCHINGS:
        known.setdefault(f"10**12 of three streams, {name}", mixed(name))
    GOLDEN.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")

"""Which shards a node meets in an epoch: the promise that a cache on one node serves that node's samples."""

import numpy as np
import pytest

from streamshard.order.batches import BatchPlan
from streamshard.order.epoch import Order
from streamshard.order.walk import Walk

SHARDS, PER_SHARD = 1000, 100


def shards_of_node(order, nodes, node, epoch=0, ranks_per_node=2, rank_batch=32):
    ranks = nodes * ranks_per_node
    plan = BatchPlan(order.num_samples, ranks * rank_batch, ranks)
    met = [
        order.rank_batches(plan, epoch, 0, plan.full_batches, 1, rank).samples // PER_SHARD
        for rank in range(node * ranks_per_node, (node + 1) * ranks_per_node)
    ]
    return np.unique(np.concatenate(met))


@pytest.fixture(scope="module")
def order():
    return Order([Walk(np.full(SHARDS, PER_SHARD), seed=17)])


@pytest.mark.parametrize("nodes", [2, 4, 8, 16, 32, 64])
def test_a_node_meets_its_own_part_of_the_shards(order, nodes):
    ideal = SHARDS / nodes
    ratios = [shards_of_node(order, nodes, node).size / ideal for node in {0, nodes // 3, nodes - 1}]
    # 1.00 to 1.07 as measured; plain striding has up to 8.
    assert max(ratios) < 1.15


@pytest.mark.parametrize("nodes", [3, 5, 6, 12])
def test_a_number_of_nodes_that_does_not_divide_the_lanes_shares_some_of_them(order, nodes):
    ideal = SHARDS / nodes
    assert max(shards_of_node(order, nodes, node).size / ideal for node in (0, 1, nodes - 1)) < 1.5


@pytest.mark.parametrize("nodes", [2, 8])
def test_a_node_meets_the_same_shards_in_every_epoch(order, nodes):
    first, later = (set(shards_of_node(order, nodes, 1, epoch).tolist()) for epoch in (0, 5))
    assert len(first & later) / len(first | later) > 0.95


def test_few_shards_are_live_at_once(order):
    # Default window: about 128 over the whole job, however long one looks.
    plan = BatchPlan(order.num_samples, 256)
    for first in range(0, plan.num_batches - 1, 37):
        batch = order.rank_batches(plan, 0, first, first + 1).samples
        assert np.unique(batch // PER_SHARD).size <= 64 * 2 + 64


@pytest.mark.parametrize(
    ("shuffle", "lanes"), [("sliding", 64), ("sliding", 8), ("block", 8), ("shard", 64), ("none", 1)]
)
def test_no_more_shards_are_live_than_is_announced(shuffle, lanes):
    # A shard is live from the first to the last batch that needs it.
    walk = Walk(np.full(SHARDS, PER_SHARD), seed=17, shuffle=shuffle, lanes=lanes)
    order = Order([walk])
    plan = BatchPlan(order.num_samples, 64)
    shards = order.rank_batches(plan, 0, 0, plan.full_batches).samples // PER_SHARD
    batch = np.arange(shards.size) // 64
    first, last = np.full(SHARDS, shards.size), np.full(SHARDS, -1)
    np.minimum.at(first, shards, batch)
    np.maximum.at(last, shards, batch)
    live = np.array([((first <= now) & (now <= last)).sum() for now in range(0, plan.full_batches, 10)])
    # What is announced, and one more for those that end and begin in one batch.
    assert np.percentile(live, 90) <= walk.live_shards() + 1
    if shuffle == "sliding":
        assert live.max() > walk.live_shards() * 0.7


def test_lanes_do_not_all_turn_to_a_new_shard_in_the_same_batch(order):
    plan = BatchPlan(order.num_samples, 256)
    met: set[int] = set()
    arrivals = []
    for first in range(plan.full_batches):
        batch = set((order.rank_batches(plan, 0, first, first + 1).samples // PER_SHARD).tolist())
        arrivals.append(len(batch - met))
        met |= batch
    # 1,000 shards arrive over 390 batches; after the start never a quarter of the lanes at once.
    assert max(arrivals[5:-5]) <= 16

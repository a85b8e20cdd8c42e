"""``sampling_method="fixed"``: every epoch takes the same samples."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamshard.order.epoch import Order
from streamshard.order.fixed import FixedWalk, walk_of
from streamshard.order.keys import SHARD_ORDER, Key
from streamshard.order.permutation import permutation
from streamshard.order.walk import Walk

SHUFFLES = ("sliding", "block", "shard", "full", "none")


def first_in_run_order(sizes, count, seed, stream, shuffle):
    shards = (
        range(len(sizes)) if shuffle == "none" else permutation(Key(SHARD_ORDER, seed, stream), len(sizes))
    )
    begins = np.cumsum([0, *sizes])
    listed = [int(begins[shard]) + row for shard in shards for row in range(sizes[shard])]
    return listed[:count]


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=30).filter(any),
    st.integers(1, 400),
    st.sampled_from(SHUFFLES),
    st.integers(0, 2**64 - 1),
    st.integers(1, 40),
)
def test_an_epoch_is_whole_passes_and_the_first_samples_of_the_run(sizes, samples, shuffle, seed, size):
    walk = walk_of(np.array(sizes), samples, seed=seed, stream=2, shuffle=shuffle)
    order = Order([walk], [samples])
    whole, rest = divmod(samples, sum(sizes))
    wanted = Counter(first_in_run_order(sizes, rest, seed, 2, shuffle))
    for sample in range(sum(sizes)):
        wanted[sample] += whole
    for epoch in range(3):
        for ranks in {1, min(3, size)}:
            plan = order.plan(epoch, 0, global_batch_size=size, ranks=ranks)
            parts = [
                order.rank_batches(plan, epoch, 0, plan.full_batches, 1, rank).samples
                for rank in range(ranks)
            ]
            tail = order.plan(epoch, plan.full_batches * size, global_batch_size=size)
            last = order.rank_batches(tail, epoch, 0, tail.num_batches).samples
            assert Counter(np.concatenate([*parts, last]).tolist()) == +wanted


def test_epochs_are_shuffled_anew():
    walk = walk_of(np.full(20, 10), 110, seed=1)
    order = Order([walk], [110])
    epochs = []
    for epoch in range(2):
        plan = order.plan(epoch, 0, global_batch_size=10)
        epochs.append(order.rank_batches(plan, epoch, 0, plan.num_batches).samples.tolist())
    assert sorted(epochs[0]) == sorted(epochs[1])
    assert epochs[0] != epochs[1]


def test_indices_may_be_asked_for_across_parts_and_epochs():
    walk = walk_of(np.full(6, 5), 70, seed=1)
    assert isinstance(walk, FixedWalk)
    whole = walk.samples(walk.spots(0, np.arange(210)))
    for first in (0, 29, 30, 59, 60, 69, 70, 139):
        part = walk.samples(walk.spots(first, np.arange(0, 210 - first, 7)))
        assert part.tolist() == whole[first::7].tolist()
    assert [walk.pass_of(index) for index in (0, 29, 30, 60, 69, 70)] == [
        (0, 30),
        (0, 30),
        (30, 30),
        (60, 10),
        (60, 10),
        (70, 30),
    ]


def test_where_it_comes_to_the_same_the_walk_is_a_plain_one():
    assert type(walk_of(np.full(6, 5), 60, seed=1)) is Walk
    assert type(walk_of(np.full(6, 5), None, seed=1)) is Walk


def test_it_cannot_give_another_number():
    with pytest.raises(ValueError, match="same 8 samples in every epoch cannot give 9"):
        Order([walk_of(np.full(6, 5), 8, seed=1)], [9])
    with pytest.raises(ValueError, match="at least 1"):
        FixedWalk(np.full(6, 5), 0, seed=1)


def test_it_is_pinned():
    walk = walk_of(np.full(4, 4), 22, seed=17)
    order = Order([walk], [22])
    plan = order.plan(1, 0, global_batch_size=11)
    assert order.rank_batches(plan, 1, 0, 2).samples.tolist() == PINNED


PINNED = [6, 5, 7, 15, 12, 13, 1, 9, 2, 11, 0, 12, 13, 4, 4, 14, 7, 8, 6, 10, 5, 3]

"""A global batch in one go is what its ranks get one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from streamshard.order.epoch import BATCHINGS, Order
from streamshard.order.timeline import Quotas
from streamshard.order.walk import Walk


@st.composite
def orders(draw: st.DrawFn) -> Order:
    shards = draw(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=6), min_size=1, max_size=3))
    shuffle = draw(st.sampled_from(["sliding", "full", "none"]))
    walks = [
        Walk(np.array(sizes, dtype=np.int64), seed=3, stream=number, shuffle=shuffle)
        for number, sizes in enumerate(shards)
    ]
    samples = [draw(st.integers(0, 40)) for _ in walks]
    samples[0] += 1
    return Order(walks, Quotas(tuple(samples)), batching=draw(st.sampled_from(BATCHINGS)))


@settings(max_examples=150, deadline=None)
@given(order=orders(), data=st.data())
def test_a_global_batch_is_the_parts_of_its_ranks(order: Order, data: Any) -> None:
    ranks = data.draw(st.integers(1, 4))
    epoch = data.draw(st.integers(0, 3))
    start = data.draw(st.integers(0, order.size(epoch) - 1))
    plan = order.plan(
        epoch,
        start,
        global_batch_size=ranks * data.draw(st.integers(1, 5)),
        ranks=ranks,
        remainder=data.draw(st.sampled_from(["pad", "exact"])),
    )
    heard = [0] * ranks
    for batch in range(plan.num_global_batches):
        for rank, (positions, ids) in enumerate(order.global_batch(plan, epoch, batch)):
            if not ids.size:
                continue
            own = heard[rank]
            heard[rank] += 1
            assert positions.tolist() == order.positions(plan, epoch, own, rank).tolist()
            given_ = order.rank_batches(plan, epoch, own, own + 1, rank=rank)
            assert ids.tolist() == given_.samples.tolist()
            assert ids.size - positions.size == plan.rank_padding(batch, rank)
    assert heard == [plan.rank_num_batches(rank) for rank in range(ranks)]

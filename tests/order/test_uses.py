"""When shards are needed next, against a look at the order itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamshard.order.epoch import Order
from streamshard.order.fixed import walk_of
from streamshard.order.uses import NextUses, live_nbytes, live_shards
from streamshard.order.walk import Walk

_BATCH = 16


def stretch(order: Order, epochs: range, start: int = 0) -> np.ndarray:
    """The sample ids of some epochs, the first from ``start`` on."""
    found = []
    for epoch in epochs:
        plan = order.plan(epoch, start, global_batch_size=_BATCH, remainder="exact")
        found.append(order.rank_batches(plan, epoch, 0, plan.num_batches).samples)
        start = 0
    return np.concatenate(found)


@st.composite
def walks(draw: st.DrawFn) -> tuple[Order, list[int]]:
    """An order of one stream and its shard sizes."""
    sizes = np.array(draw(st.lists(st.integers(0, 12), min_size=1, max_size=40).filter(any)), dtype=np.int64)
    shuffle = draw(st.sampled_from(["sliding", "block", "shard", "full", "none"]))
    lanes = draw(st.integers(1, 6))
    window = draw(st.integers(1, 5))
    share = draw(st.sampled_from([1, 1, 0.4, 1.7, 2.5]))
    samples = max(1, int(sizes.sum() * share))
    fixed = draw(st.booleans())
    seed = draw(st.integers(0, 99))
    walk = walk_of(sizes, samples if fixed else None, seed=seed, shuffle=shuffle, lanes=lanes, window=window)
    return Order([walk], [samples]), sizes.tolist()


@given(walks(), st.integers(0, 3), st.floats(0, 1))
def test_no_shard_is_used_before_it_is_said_to_be_and_those_in_use_are_near(
    case: tuple[Order, list[int]], epoch: int, at: float
) -> None:
    order, sizes = case
    position = int(at * (order.num_samples - 1)) // _BATCH * _BATCH
    (distances,) = NextUses(order).distances(epoch, 0, position)
    coming = stretch(order, range(epoch, epoch + 3), position)
    shard_of = np.repeat(np.arange(len(sizes)), sizes)[coming]
    # Inside a batch samples are sorted, and rows of lanes are rounded down: a batch and a row are allowed.
    allowed = _BATCH + order.walks[0].lanes
    for shard, distance in enumerate(distances.tolist()):
        uses = np.flatnonzero(shard_of == shard)
        if not uses.size:
            continue
        assert np.isfinite(distance)
        if distance >= 1:
            assert uses[0] >= distance - 1 - allowed


@pytest.mark.parametrize("shuffle", ["sliding", "block", "shard", "none"])
def test_the_next_use_is_told_to_within_a_shard(shuffle: str) -> None:
    shards, size = 96, 40
    order = Order([Walk(np.full(shards, size), seed=3, shuffle=shuffle, lanes=2, window=2)])
    uses = NextUses(order)
    for position in (0, 800, 1920, 3000, 3824):
        (distances,) = uses.distances(1, 0, position)
        shard_of = stretch(order, range(1, 3), position) // size
        for shard in range(shards):
            first = int(np.argmax(shard_of == shard))
            said = distances[shard] - 1 if distances[shard] >= 1 else 0
            assert abs(first - said) <= 2.5 * size


def test_what_is_in_use_longest_comes_last_and_what_no_lane_of_the_node_holds_never() -> None:
    order = Order([Walk(np.full(64, 20), seed=1, lanes=8, window=2)])
    (mine,) = NextUses(order, part=(0.0, 0.25)).distances(0, 0, 0)
    (everything,) = NextUses(order).distances(0, 0, 0)
    assert np.isfinite(everything).all()
    # Two lanes of eight and the one beside them.
    assert 24 <= np.isfinite(mine).sum() <= 27
    in_use = np.sort(everything[everything < 1])
    assert 16 <= len(in_use) <= 24
    assert (in_use > 0).all()


def test_a_shard_is_kept_for_readers_that_lag() -> None:
    order = Order([Walk(np.full(10, 20), seed=1, shuffle="none")])
    (strict,) = NextUses(order).distances(0, 0, 45)
    (patient,) = NextUses(order, slack=10).distances(0, 0, 45)
    assert strict[1] > 100
    assert patient[1] < 1
    assert strict[0] > 100
    assert patient[0] > 100
    assert np.array_equal(strict[2:], patient[2:])


def test_a_stream_that_gives_nothing_is_not_needed() -> None:
    walks = [Walk(np.full(8, 20), seed=1, stream=number) for number in range(2)]
    first, second = NextUses(Order(walks, [160, 0])).distances(0, 0, 0)
    assert np.isfinite(first).all()
    assert np.isinf(second).all()


def test_the_bytes_in_use_at_once_are_those_of_the_streams_in_use() -> None:
    walks = [Walk(np.full(8, 20), seed=1, stream=number, lanes=1, window=2) for number in range(2)]
    assert live_nbytes(Order(walks), [100.0, 10.0]) == 220
    assert live_nbytes(Order(walks, [0, 160]), [100.0, 10.0]) == 20


def test_the_shards_in_use_at_once_are_those_of_a_part_of_the_lanes() -> None:
    walks = [Walk(np.full(80, 20), seed=1, stream=number, lanes=4, window=3) for number in range(3)]
    order = Order(walks, [160, 160, 0])
    assert live_shards(order) == 2 * walks[0].live_shards() == 24
    assert live_shards(order, parts=2) == 12

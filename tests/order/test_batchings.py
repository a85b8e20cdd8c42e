"""Batches of one stream each: who gets what, how far it is elastic, and that nothing is dropped in silence."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamshard.errors import TopologyError
from streamshard.order.batches import BatchPlan
from streamshard.order.epoch import Order
from streamshard.order.walk import Walk
from tests.support.tiers import many

UNITS = ("per_stream", "device_per_stream")
FEW = settings(max_examples=40, deadline=None)
MANY = many(100)


@st.composite
def mixes(draw):
    count = draw(st.integers(2, 5))
    sizes = [draw(st.lists(st.integers(0, 9), min_size=1, max_size=20).filter(any)) for _ in range(count)]
    samples = draw(st.lists(st.integers(0, 120), min_size=count, max_size=count).filter(any))
    shuffle = draw(st.sampled_from(["sliding", "block", "shard", "full", "none"]))
    return sizes, samples, shuffle, draw(st.integers(0, 2**64 - 1))


def order_of(mix, batching):
    sizes, samples, shuffle, seed = mix
    walks = [
        Walk(np.array(of_stream), seed=seed, stream=stream, shuffle=shuffle)
        for stream, of_stream in enumerate(sizes)
    ]
    return Order(walks, samples, batching=batching)


def batches_of(order, plan, epoch, rank, step=1, first=0):
    got = order.rank_batches(plan, epoch, first, plan.num_batches, step, rank)
    spans = zip(got.bounds[:-1].tolist(), got.bounds[1:].tolist(), got.padding.tolist(), strict=True)
    return [(got.samples[a : b - pads].tolist(), got.samples[b - pads : b].tolist()) for a, b, pads in spans]


def streams_in(order, samples):
    return {order.stream_of(sample) for sample in samples}


def counts_of(order, samples):
    counts = [0] * len(order.walks)
    for sample in samples:
        counts[order.stream_of(sample)] += 1
    return counts


def check_one_epoch(mix, data, batching):
    order = order_of(mix, batching)
    ranks = data.draw(st.integers(1, 5))
    size = ranks * data.draw(st.integers(1, 6))
    if batching == "per_stream":
        size += data.draw(st.integers(0, ranks - 1))
    epoch = data.draw(st.integers(0, 3))
    plan = order.plan(epoch, 0, global_batch_size=size, ranks=ranks)
    of_rank = [batches_of(order, plan, epoch, rank) for rank in range(ranks)]
    assert {len(batches) for batches in of_rank} == {plan.num_batches}
    seen = [x for batches in of_rank for real, _ in batches for x in real]
    assert counts_of(order, seen) == list(order.samples_per_epoch)
    base = np.cumsum([0, *(walk.num_samples for walk in order.walks)])
    for stream, walk in enumerate(order.walks):
        n = order.samples_per_epoch[stream]
        wanted = walk.samples(walk.spots(epoch * n, np.arange(n))) + base[stream]
        assert Counter(x for x in seen if order.stream_of(x) == stream) == Counter(wanted.tolist())
    for number in range(plan.num_batches):
        parts = [batches[number] for batches in of_rank]
        for real, pads in parts:
            assert len(streams_in(order, real + pads)) == 1
            assert len(pads) <= 1
        if batching == "per_stream" or number >= plan.full_batches:
            assert len(streams_in(order, [x for real, pads in parts for x in real + pads])) == 1
        assert len({len(real) + len(pads) for real, pads in parts}) <= (1 if size % ranks == 0 else 2)
    for step in (2, 3):  # as workers read
        dealt = [
            batches_of(order, plan, epoch, 0, step, first) for first in range(min(step, plan.num_batches))
        ]
        merged = [each for row in itertools.zip_longest(*dealt) for each in row if each is not None]
        assert merged == of_rank[0]


@FEW
@given(mixes(), st.data(), st.sampled_from(UNITS))
def test_each_batch_is_of_one_stream_and_each_stream_gives_its_number(mix, data, batching):
    check_one_epoch(mix, data, batching)


@pytest.mark.slow
@MANY
@given(mixes(), st.data(), st.sampled_from(UNITS))
def test_each_batch_is_of_one_stream_in_many_mixes(mix, data, batching):
    check_one_epoch(mix, data, batching)


@FEW
@given(mixes(), st.data())
def test_per_stream_is_one_sequence_of_global_batches_for_all_ranks_of_one_global_batch_size(mix, data):
    order = order_of(mix, "per_stream")
    size = data.draw(st.integers(1, 12))
    alone = order.plan(1, 0, global_batch_size=size)
    wanted = [real for real, _ in batches_of(order, alone, 1, 0)]
    for ranks in {min(size, ranks) for ranks in (2, 3, size)}:
        plan = order.plan(1, 0, global_batch_size=size, ranks=ranks)
        of_rank = [batches_of(order, plan, 1, rank) for rank in range(ranks)]
        assert [[x for real, _ in row for x in real] for row in zip(*of_rank, strict=True)] == wanted


@FEW
@given(mixes(), st.data(), st.sampled_from(UNITS))
def test_the_streams_take_turns_in_their_shares(mix, data, batching):
    order = order_of(mix, batching)
    ranks = data.draw(st.integers(1, 4))
    size = ranks * data.draw(st.integers(1, 4))
    plan = order.plan(0, 0, global_batch_size=size, ranks=ranks)
    unit = size if batching == "per_stream" else size // ranks
    units = [n // unit for n in order.samples_per_epoch]
    taken = [0] * len(units)
    rows = zip(*[batches_of(order, plan, 0, rank) for rank in range(ranks)], strict=True)
    for number, row in enumerate(itertools.islice(rows, plan.full_batches)):
        for stream, count in enumerate(counts_of(order, [x for real, _ in row for x in real])):
            assert count % unit == 0
            taken[stream] += count // unit
        passed = (number + 1) * size // unit
        for stream, count in enumerate(taken):
            assert abs(count - passed * units[stream] / sum(units)) <= 1.5


@FEW
@given(mixes(), st.data(), st.sampled_from(UNITS))
def test_what_drop_leaves_out_and_pad_repeats_is_less_than_the_table_says(mix, data, batching):
    order = order_of(mix, batching)
    ranks = data.draw(st.integers(1, 5))
    size = ranks * data.draw(st.integers(1, 4))
    padded = order.plan(0, 0, global_batch_size=size, ranks=ranks)
    repeats = [0] * len(order.walks)
    for rank in range(ranks):
        for _, pads in batches_of(order, padded, 0, rank):
            repeats = [a + b for a, b in zip(repeats, counts_of(order, pads), strict=True)]
    assert all(count < ranks for count in repeats)
    if not padded.full_batches:
        return  # drop would drop everything, which is refused
    dropping = order.plan(0, 0, global_batch_size=size, ranks=ranks, remainder="drop")
    left_out = order.left_out(dropping, 0)
    assert all(0 < count < size for count in left_out.values())
    given_ = [x for rank in range(ranks) for real, _ in batches_of(order, dropping, 0, rank) for x in real]
    wanted = [n - left_out.get(stream, 0) for stream, n in enumerate(order.samples_per_epoch)]
    assert counts_of(order, given_) == wanted


def test_b120_a_stream_smaller_than_a_batch_is_given_and_with_drop_it_is_counted():
    order = Order(
        [Walk(np.array([3]), seed=1), Walk(np.array([16]), seed=1, stream=1)], batching="per_stream"
    )
    plan = order.plan(0, 0, global_batch_size=8, ranks=2)
    assert (plan.full_batches, plan.tails, order.left_out(plan, 0)) == (2, (3,), {})
    seen = [x for rank in range(2) for real, _ in batches_of(order, plan, 0, rank) for x in real]
    assert sorted(seen) == list(range(19))
    dropping = order.plan(0, 0, global_batch_size=8, ranks=2, remainder="drop")
    assert (dropping.num_batches, order.left_out(dropping, 0)) == (2, {0: 3})
    assert order.standing(dropping, 0, dropping.position_after(2)).cursors == (0, 16)


@FEW
@given(mixes(), st.data(), st.sampled_from(UNITS))
def test_with_exact_all_ranks_stand_at_one_position_after_every_step(mix, data, batching):
    order = order_of(mix, batching)
    ranks = data.draw(st.integers(1, 5))
    size = ranks * data.draw(st.integers(1, 4))
    plan = order.plan(0, 0, global_batch_size=size, ranks=ranks, remainder="exact")
    of_rank = [batches_of(order, plan, 0, rank) for rank in range(ranks)]
    numbers = [plan.rank_num_batches(rank) for rank in range(ranks)]
    assert max(numbers) == plan.num_batches
    assert max(numbers) - min(numbers) <= 1
    alone = order.plan(0, 0, global_batch_size=size, remainder="pad")
    positions = [
        order.positions(plan, 0, step, rank).tolist()
        for step in range(plan.num_batches)
        for rank in range(ranks)
    ]
    covered: list[int] = []
    for step in range(plan.num_batches):
        for rank in range(ranks):
            real, pads = of_rank[rank][step]
            assert (len(real), pads) == (plan.rank_batch_size(step, rank), [])
            assert len(positions[step * ranks + rank]) == len(real)
            covered += positions[step * ranks + rank]
        assert sorted(covered) == list(range(plan.position_after(step + 1)))
    # And a run that goes on from there, with other ranks, misses and repeats nothing.
    step = data.draw(st.integers(0, plan.num_batches))
    seen = [x for batches in of_rank for real, _ in batches[:step] for x in real]
    rest = (
        order.plan(0, plan.position_after(step), global_batch_size=size) if step < plan.num_batches else None
    )
    if rest is not None and batching == "per_stream":
        seen += [x for real, _ in batches_of(order, rest, 0, 0) for x in real]
        assert Counter(seen) == Counter(x for real, _ in batches_of(order, alone, 0, 0) for x in real)


def test_short_batches_that_are_dealt_out_exactly_come_with_the_larger_first():
    with pytest.raises(ValueError, match="larger batches must come first"):
        BatchPlan(13, 4, 4, remainder="exact", short=(1, 4))


def test_device_batches_must_be_equal():
    order = order_of(([[9], [9]], [9, 9], "sliding", 1), "device_per_stream")
    with pytest.raises(TopologyError, match="2 ranks do not divide global_batch_size=5"):
        order.plan(0, 0, global_batch_size=5, ranks=2)


def test_drop_that_would_drop_everything_is_refused():
    order = order_of(([[3], [3]], [3, 3], "sliding", 1), "per_stream")
    words = r"drop everything: .* 6 samples, of no stream enough to fill a batch .*\(3, 3\), and a global batch has 4"
    with pytest.raises(TopologyError, match=words):
        order.plan(0, 0, global_batch_size=4, remainder="drop")
    with pytest.raises(
        TopologyError, match=r"drop everything: the epoch has 6 samples and a global batch has 8"
    ):
        order.plan(0, 0, global_batch_size=8, remainder="drop")


def test_of_one_stream_the_method_means_nothing():
    walk = Walk(np.full(20, 7), seed=3)
    plans = {}
    for batching in ("random", *UNITS):
        order = Order([walk], batching=batching)
        plan = order.plan(0, 0, global_batch_size=12, ranks=3)
        plans[batching] = [batches_of(order, plan, 0, rank) for rank in range(3)]
    assert plans["random"] == plans["per_stream"] == plans["device_per_stream"]


@FEW
@given(mixes(), st.data(), st.sampled_from(("random", "stratified", *UNITS)))
def test_positions_and_replacements_belong_to_the_place_not_to_the_world(mix, data, batching):
    order = order_of(mix, batching)
    size = 6
    looked_at = data.draw(st.integers(0, 5))  # of each six positions one
    seen = {}
    for ranks in (1, 2, 3) if batching != "device_per_stream" else (2,):
        plan = order.plan(0, 0, global_batch_size=size, ranks=ranks)
        found = {}
        covered = []
        for number, rank in itertools.product(range(plan.num_batches), range(ranks)):
            [(real, pads)] = batches_of(order, plan, 0, rank, first=number, step=plan.num_batches)[:1]
            positions = order.positions(plan, 0, number, rank).tolist()
            assert len(positions) == len(real)
            covered += positions
            for slot in range(len(real) + len(pads)):
                if slot < len(real) and positions[slot] % 6 != looked_at:
                    continue
                others = list(order.replacements(plan, 0, number, rank, slot))
                sample = (real + pads)[slot]
                walk = order.walks[order.stream_of(sample)]
                assert len(set(others) - {sample}) == len(others) == walk.num_samples - 1
                assert len(streams_in(order, [*others, sample])) == 1
                if slot < len(real):
                    found[positions[slot]] = (sample, others)
        assert sorted(covered) == list(range(order.num_samples))
        seen[ranks] = found
    assert all(found == seen[max(seen)] for found in seen.values())


@pytest.mark.parametrize("batching", ["random", *UNITS])
def test_replacements_are_the_places_before_it_in_its_streams_pass_nearest_first(batching):
    order = order_of(([[4, 4, 4], [6, 6], [5]], [12, 12, 5], "sliding", 17), batching)
    passes = []
    first = 0
    for walk, taken in zip(order.walks, order.samples_per_epoch, strict=True):
        passes.append((walk.samples(walk.spots(3 * taken, np.arange(taken))) + first).tolist())
        first += walk.num_samples
    plan = order.plan(3, 0, global_batch_size=4, ranks=2)
    for number, rank in itertools.product(range(plan.full_batches), range(2)):
        [(real, _)] = batches_of(order, plan, 3, rank, first=number, step=plan.num_batches)[:1]
        for slot, sample in enumerate(real):
            whole = passes[order.stream_of(sample)]
            place = whole.index(sample)
            wanted = [
                whole[place - back] for back in range(1, len(whole))
            ]  # from the first place to the last
            assert list(order.replacements(plan, 3, number, rank, slot)) == wanted


@pytest.mark.parametrize("batching", UNITS)
def test_the_order_is_pinned(batching):
    order = order_of(([[4, 4, 4], [6, 6], [5]], [12, 12, 5], "sliding", 17), batching)
    plan = order.plan(2, 0, global_batch_size=4, ranks=2)
    assert [[real for real, _ in batches_of(order, plan, 2, rank)] for rank in range(2)] == PINNED[batching]


PINNED = {
    "per_stream": [
        [[0, 11], [22, 23], [2, 3], [16, 14], [27, 28], [21, 12], [10, 1], []],
        [[7, 5], [17, 13], [8, 9], [18, 20], [26, 25], [15, 19], [6, 4], [24]],
    ],
    "device_per_stream": [
        [[0, 7], [11, 5], [27, 26], [2, 3], [14, 20], [12, 19], [21, 15], []],
        [[22, 17], [23, 13], [16, 18], [8, 9], [1, 4], [28, 25], [10, 6], [24]],
    ],
}

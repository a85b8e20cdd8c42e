"""Several streams: shares are exact, and everything that holds for one stream holds for the mix."""

import itertools
import json
import pickle
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamshard.order.batches import BatchPlan
from streamshard.order.epoch import Order
from streamshard.order.mixing import RUN, SampleLabels
from streamshard.order.position import State
from streamshard.order.walk import Walk
from tests.support.slow_order import SlowMixture, SlowStream, mixed_batch
from tests.support.tiers import many

FEW = settings(max_examples=15, deadline=None)
MANY = many(100)


@st.composite
def mixes(draw):
    count = draw(st.integers(2, 4))
    sizes = [draw(st.lists(st.integers(0, 9), min_size=1, max_size=40).filter(any)) for _ in range(count)]
    samples = draw(st.lists(st.integers(0, 250), min_size=count, max_size=count).filter(any))
    shuffle = draw(st.sampled_from(["sliding", "sliding", "block", "shard", "full", "none"]))
    lanes = [draw(st.sampled_from([None, 1, 3, 4, 8])) for _ in range(count)]
    seed = draw(st.integers(0, 2**64 - 1))
    return sizes, samples, shuffle, lanes, seed, draw(st.sampled_from(["random", "stratified"]))


def order_of(mix):
    sizes, samples, shuffle, lanes, seed, batching = mix
    walks = [
        Walk(np.array(of_stream), seed=seed, stream=stream, shuffle=shuffle, lanes=lanes[stream])
        for stream, of_stream in enumerate(sizes)
    ]
    return Order(walks, samples, batching=batching)


def sequence_of(order, plan, epoch, batches=None):
    last = plan.num_batches if batches is None else batches
    ranks = []
    for rank in range(plan.ranks):
        got = order.rank_batches(plan, epoch, 0, last, 1, rank)
        spans = zip(got.bounds[:-1], got.bounds[1:], got.padding, strict=True)
        ranks.append([got.samples[begin : end - pads].tolist() for begin, end, pads in spans])
    return [x for batch in zip(*ranks, strict=True) for part in batch for x in part]


@pytest.mark.parametrize("permuted", [False, True])
def test_ranks_count_the_labels_before_over_several_runs(permuted):
    samples = [9000, 1, 4000, 0, 2500]
    labels = SampleLabels(samples, seed=5, permuted=permuted)
    slow = SlowMixture(samples, seed=5, epoch=3, permuted=permuted)
    total = sum(samples)
    streams, ranks = labels.at(3, 0, np.arange(total))
    assert list(zip(streams.tolist(), ranks.tolist(), strict=True)) == slow.spots
    for position in (0, 1, RUN - 1, RUN, RUN + 1, 9999, total - 1):
        fresh = SampleLabels(samples, seed=5, permuted=permuted)
        stream, rank = fresh.at(3, position, np.array([0]))
        assert (int(stream[0]), int(rank[0])) == slow.spots[position]
        wanted = Counter(stream for stream, _ in slow.spots[:position])
        assert fresh.before(3, position) == [wanted[stream] for stream in range(len(samples))]
    assert labels.before(3, total) == samples


def test_permuted_labels_differ_between_epochs_and_have_the_same_counts_in_each_run():
    labels = SampleLabels([5000, 5000], seed=5, permuted=True)
    one, other = (labels.at(epoch, 0, np.arange(RUN))[0] for epoch in (0, 1))
    assert one.tolist() != other.tolist()
    assert one.sum() == other.sum() == RUN // 2


def check_against_the_oracle(mix, data):
    sizes, samples, shuffle, lanes, seed, batching = mix
    order = order_of(mix)
    epoch = data.draw(st.integers(0, 4))
    size = data.draw(st.integers(1, 50))
    start = data.draw(st.integers(0, order.num_samples))
    slow = [
        SlowStream(of_stream, seed=seed, stream=stream, shuffle=shuffle, lanes=lanes[stream])
        for stream, of_stream in enumerate(sizes)
    ]
    mixture = SlowMixture(samples, seed=seed, epoch=epoch, permuted=batching == "random")
    wanted = [
        sample
        for begin in range(start, order.num_samples, size)
        for sample in mixed_batch(slow, samples, mixture, epoch, begin, min(begin + size, order.num_samples))
    ]
    for ranks in {1, min(3, size), size}:
        assert sequence_of(order, BatchPlan(order.num_samples, size, ranks, start), epoch) == wanted


@given(mixes(), st.data())
@FEW
def test_every_world_gets_what_the_design_says(mix, data):
    check_against_the_oracle(mix, data)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@given(mixes(), st.data())
@MANY
def test_every_world_gets_what_the_design_says_in_many_cases(mix, data):
    check_against_the_oracle(mix, data)


def check_resumes(mix, data):
    order = order_of(mix)
    epoch = data.draw(st.integers(0, 3))
    seen: list[int] = []
    position = 0
    while position < order.num_samples:
        size = data.draw(st.integers(1, 80))
        plan = BatchPlan(order.num_samples, size, data.draw(st.integers(1, size)), position)
        steps = data.draw(st.integers(1, plan.num_batches))
        seen += sequence_of(order_of(mix), plan, epoch, steps)
        position = plan.position_after(steps)
    assert Counter(seen) == Counter(sequence_of(order, BatchPlan(order.num_samples, 7), epoch))
    first_ids = np.cumsum([0, *(walk.num_samples for walk in order.walks)])
    of_stream = np.bincount(np.searchsorted(first_ids, seen, side="right") - 1, minlength=len(order.walks))
    assert of_stream.tolist() == list(order.samples_per_epoch)


@given(mixes(), st.data())
@FEW
def test_a_chain_of_resumes_sees_each_sample_as_often_as_one_run(mix, data):
    check_resumes(mix, data)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@given(mixes(), st.data())
@MANY
def test_a_chain_of_resumes_sees_each_sample_as_often_in_many_cases(mix, data):
    check_resumes(mix, data)


def test_epochs_follow_each_other_without_loss_in_every_stream():
    order = order_of(([[7, 7], [50]], [7, 25], "sliding", [None, None], 3, "random"))
    seen = Counter(x for epoch in range(2) for x in sequence_of(order, BatchPlan(32, 5), epoch))
    assert seen == Counter(range(64))


def test_cursors_are_where_the_streams_stand():
    order = order_of(([[20, 20], [60]], [40, 60], "sliding", [None, None], 3, "random"))
    for position in (0, 1, 17, 99, 100):
        seen = sequence_of(order, BatchPlan(100, 1), 2, position)
        ours = sum(sample < 40 for sample in seen)
        assert order.standing(BatchPlan(100, 1), 2, position).cursors == (80 + ours, 120 + position - ours)


def test_a_state_of_a_mix_survives_json():
    order = order_of(([[20, 20], [60]], [40, 60], "sliding", [None, None], 3, "random"))
    state = State.of(
        order,
        order.plan(2, 0, global_batch_size=1),
        2,
        37,
        settings={},
        names=["a", None],
        fingerprints=[{"layout": "x"}, {"layout": "y"}],
    )
    assert State.from_dict(json.loads(json.dumps(state.to_dict()))) == state


def test_an_order_pickles():
    order = order_of(([[20, 20], [60]], [40, 60], "sliding", [None, None], 3, "random"))
    before = sequence_of(order, BatchPlan(100, 8), 1)
    assert sequence_of(pickle.loads(pickle.dumps(order)), BatchPlan(100, 8), 1) == before


def test_calls_of_any_length_and_step_give_the_same():
    order = order_of(([[300] * 20, [200] * 50], [9000, 8000], "sliding", [None, None], 3, "random"))
    plan = BatchPlan(17_000, 60, 4)
    whole = order.rank_batches(plan, 0, 0, plan.num_batches, 1, 2)
    for number in (0, 50, 68, 69, plan.num_batches - 1):
        single = order.rank_batches(plan, 0, number, number + 1, 1, 2).samples
        assert single.tolist() == whole.samples[whole.bounds[number] : whole.bounds[number + 1]].tolist()
    parts = [order.rank_batches(plan, 0, worker, plan.num_batches, 3, 2) for worker in range(3)]
    each = [[p.samples[a:b].tolist() for a, b in itertools.pairwise(p.bounds)] for p in parts]
    joined = [x for row in itertools.zip_longest(*each) for batch in row if batch is not None for x in batch]
    assert joined == whole.samples.tolist()


def test_walks_that_do_not_go_together_are_refused():
    one, other = Walk(np.array([3]), seed=1), Walk(np.array([3]), seed=2, stream=1)
    with pytest.raises(ValueError, match="one seed"):
        Order([one, other])
    with pytest.raises(ValueError, match="a stream number each"):
        Order([one, one])
    with pytest.raises(ValueError, match="no streams"):
        Order([])
    with pytest.raises(ValueError, match="2 numbers for 1 streams"):
        Order([one], [1, 2])
    with pytest.raises(ValueError, match="random, stratified"):
        Order([one], batching="by_stream")


def test_the_mix_is_pinned():
    order = order_of(([[5] * 9, [7] * 8, [3]], [45, 20, 6], "sliding", [None] * 3, 17, "random"))
    assert sequence_of(order, BatchPlan(71, 8), 3)[:16] == [
        9,
        26,
        87,
        18,
        21,
        60,
        42,
        54,
        101,
        97,
        39,
        10,
        93,
        64,
        12,
        4,
    ]
    stratified = order_of(([[5] * 9, [7] * 8, [3]], [45, 20, 6], "sliding", [None] * 3, 17, "stratified"))
    assert sequence_of(stratified, BatchPlan(71, 8), 3)[:16] == [
        9,
        101,
        26,
        87,
        18,
        21,
        60,
        42,
        39,
        97,
        10,
        32,
        64,
        12,
        54,
        4,
    ]


def test_b103_a_stream_smaller_than_the_workers_appears_as_often_as_it_should():
    order = order_of(([[1], [100]], [1, 100], "sliding", [None, None], 0, "random"))
    plan = BatchPlan(101, 8, 2)
    seen = [
        x
        for r in range(2)
        for w in range(4)
        for x in order.rank_batches(plan, 0, w, plan.num_batches, 4, r).samples
    ]
    assert len(seen) == 102  # one pad
    assert set(seen) == set(range(101))


def test_b118_weights_set_the_shares():
    order = order_of(([[100], [100]], [180, 20], "sliding", [None, None], 0, "random"))
    seen = sequence_of(order, BatchPlan(200, 10), 0)
    assert sum(x < 100 for x in seen) == 180
    assert set(Counter(x for x in seen if x < 100).values()) <= {1, 2}


def test_b119_a_small_stream_repeats_evenly_and_a_large_one_does_not():
    order = order_of(([[10], [100]], [50, 50], "sliding", [None, None], 0, "random"))
    seen = Counter(sequence_of(order, BatchPlan(100, 10), 0))
    assert {seen[x] for x in range(10)} == {5}
    assert sum(seen[x] == 1 for x in range(10, 110)) == 50

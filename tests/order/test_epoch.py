"""Who gets which sample: properties over random datasets and worlds, and an oracle written from the design."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamshard.order.batches import BatchPlan
from streamshard.order.epoch import Order
from streamshard.order.shuffle import SHUFFLES
from streamshard.order.walk import Walk
from tests.support.slow_order import SlowStream, global_batch, rank_part
from tests.support.tiers import many

FEW = settings(max_examples=60, deadline=None)
MANY = many(600)


@st.composite
def cases(draw):
    """Keyword arguments of a walk, and samples per epoch."""
    most = draw(st.sampled_from([1, 3, 12]))
    sizes = draw(st.lists(st.integers(0, most), min_size=1, max_size=90).filter(any))
    walk = {
        "seed": draw(st.integers(0, 2**64 - 1)),
        "shuffle": draw(st.sampled_from(SHUFFLES)),
        "lanes": draw(st.sampled_from([None, None, 1, 2, 3, 4, 5, 8, 13, 16, 40])),
        "window": draw(st.sampled_from([None, None, 1, 2, 3, 4, 7, 20])),
    }
    samples = draw(st.one_of(st.just(sum(sizes)), st.integers(1, 3 * sum(sizes))))
    return sizes, walk, samples


@st.composite
def worlds(draw, samples):
    size = draw(st.integers(1, 60))
    ranks = draw(st.integers(1, size))
    start = draw(st.one_of(st.just(0), st.integers(0, samples)))
    return BatchPlan(samples, size, ranks, start, draw(st.sampled_from(["pad", "exact"])))


def order_of(sizes, walk, samples):
    return Order([Walk(np.array(sizes), **walk)], [samples])


def batches_of(order, plan, epoch, rank, first=0, last=None, step=1):
    """Samples without padding, and the padding, of each batch of a rank."""
    got = order.rank_batches(plan, epoch, first, plan.num_batches if last is None else last, step, rank)
    assert got.bounds[0] == 0
    assert got.bounds[-1] == got.samples.size
    parts = []
    for begin, end, pads in zip(got.bounds[:-1], got.bounds[1:], got.padding, strict=True):
        parts.append((got.samples[begin : end - pads].tolist(), got.samples[end - pads : end].tolist()))
    return parts


def sequence_of(order, plan, epoch):
    """The concatenation of all ranks' batches, padding apart, batch by batch."""
    ranks = [[real for real, _ in batches_of(order, plan, epoch, rank)] for rank in range(plan.ranks)]
    if plan.remainder == "exact" and plan.tails:  # the last batch is dealt, not cut
        last = [rank.pop() for rank in ranks]
        dealt = [x for row in itertools.zip_longest(*last) for x in row if x is not None]
        return [x for batch in zip(*ranks, strict=True) for part in batch for x in part] + dealt
    return [x for batch in zip(*ranks, strict=True) for part in batch for x in part]


def check_against_the_oracle(case, data):
    sizes, walk, samples = case
    order, slow = order_of(*case), SlowStream(sizes, **{k: v for k, v in walk.items() if v is not None})
    plan = data.draw(worlds(samples))
    epoch = data.draw(st.integers(0, 6))
    step = data.draw(st.integers(1, 4))
    for rank in range(plan.ranks):
        for first in range(min(step, plan.num_batches)):
            got = batches_of(order, plan, epoch, rank, first=first, step=step)
            for number, (real, pads) in zip(range(first, plan.num_batches, step), got, strict=True):
                begin = plan.start + number * plan.global_batch_size
                end = min(begin + plan.global_batch_size, samples)
                if end - begin == plan.global_batch_size:
                    cut = slice(*plan.rank_span(end - begin, rank))
                    assert (real, pads) == (global_batch(slow, samples, epoch, begin, end)[cut], [])
                else:
                    wanted, padding = rank_part(
                        slow, samples, epoch, begin, end, plan.ranks, rank, plan.remainder
                    )
                    assert (real + pads, len(pads)) == (wanted, padding)


@given(cases(), st.data())
@FEW
def test_every_rank_gets_what_the_design_says(case, data):
    check_against_the_oracle(case, data)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@given(cases(), st.data())
@MANY
def test_every_rank_gets_what_the_design_says_in_hundreds_of_cases(case, data):
    check_against_the_oracle(case, data)


def check_passes(case):
    sizes, walk, _ = case
    total = sum(sizes)
    order = order_of(sizes, walk, total)
    plan = BatchPlan(total, 7 if total > 7 else 1)
    lane_sets = []
    for epoch in range(3):
        assert sorted(sequence_of(order, plan, epoch)) == list(range(total))
        stream = order.walks[0]
        spots = stream.spots(epoch * total, np.arange(total))
        ids = stream.samples(spots)
        assert sorted(ids.tolist()) == list(range(total))
        lane_sets.append([frozenset(ids[spots.lane == lane].tolist()) for lane in range(stream.lanes)])
        if stream.shuffle not in ("full", "none"):
            for lane, held in enumerate(lane_sets[-1]):
                spans = stream.lane_samples(lane).tolist()
                assert held == {sample for begin, end in spans for sample in range(begin, end)}
    assert lane_sets[0] == lane_sets[1] == lane_sets[2]


@given(cases())
@FEW
def test_every_pass_is_a_permutation_and_lanes_keep_their_samples(case):
    check_passes(case)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@given(cases())
@MANY
def test_every_pass_is_a_permutation_and_lanes_keep_their_samples_in_hundreds_of_cases(case):
    check_passes(case)


def check_worlds(case, data):
    order = order_of(*case)
    samples = order.num_samples
    epoch = data.draw(st.integers(0, 4))
    size = data.draw(st.integers(1, 40))
    remainder = data.draw(st.sampled_from(["pad", "exact"]))
    alone = sequence_of(order, BatchPlan(samples, size), epoch)
    for ranks in {1, 2, 3, size // 2 or 1, size}:
        if ranks <= size:
            assert sequence_of(order, BatchPlan(samples, size, ranks, remainder=remainder), epoch) == alone
    other = data.draw(st.integers(1, 200))
    assert sorted(sequence_of(order, BatchPlan(samples, other), epoch)) == sorted(alone)


@given(cases(), st.data())
@FEW
def test_the_joined_ranks_give_one_sequence_for_all_worlds_and_one_multiset_for_all_batch_sizes(case, data):
    check_worlds(case, data)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@given(cases(), st.data())
@MANY
def test_one_sequence_and_one_multiset_in_hundreds_of_cases(case, data):
    check_worlds(case, data)


def check_resumes(case, data):
    sizes, walk, samples = case
    epoch = data.draw(st.integers(0, 4))
    seen: list[int] = []
    position = 0
    while position < samples:
        order = order_of(*case)  # a new process
        plan = data.draw(worlds(samples))
        plan = BatchPlan(samples, plan.global_batch_size, plan.ranks, position)
        steps = data.draw(st.integers(1, max(1, plan.num_batches)))
        workers = data.draw(st.integers(1, 3))
        for rank in range(plan.ranks):
            for worker in range(workers):
                for real, _ in batches_of(order, plan, epoch, rank, min(worker, steps), steps, workers):
                    seen += real
        position = plan.position_after(steps)
    slow = SlowStream(sizes, **{k: v for k, v in walk.items() if v is not None})
    wanted = Counter(slow.at(epoch * samples + p)[0] for p in range(samples))
    assert Counter(seen) == wanted


@given(cases(), st.data())
@FEW
def test_a_chain_of_resumes_on_other_worlds_sees_each_sample_once(case, data):
    check_resumes(case, data)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@given(cases(), st.data())
@MANY
def test_a_chain_of_resumes_sees_each_sample_once_in_hundreds_of_cases(case, data):
    check_resumes(case, data)


@given(cases(), st.data())
@FEW
def test_counts_agree_with_the_plan(case, data):
    order = order_of(*case)
    plan = data.draw(worlds(order.num_samples))
    for rank in range(plan.ranks):
        got = order.rank_batches(plan, 0, 0, plan.num_batches, 1, rank)
        sizes = np.diff(got.bounds)
        assert got.samples.size == plan.samples_of_rank(rank)
        assert (sizes > 0).sum() == plan.rank_num_batches(rank)
        assert sizes.tolist() == [plan.rank_batch_size(batch, rank) for batch in range(plan.num_batches)]
        assert got.padding.tolist() == [plan.rank_padding(batch, rank) for batch in range(plan.num_batches)]


@pytest.mark.parametrize("ranks", [2, 5, 64])
def test_pads_repeat_the_last_positions_and_come_last(ranks):
    order = order_of([10] * 20, {"seed": 1}, 200)
    plan = BatchPlan(200, 64, ranks)  # the last batch has 8 samples
    stream = order.walks[0]
    pads = [x for rank in range(ranks) for _, repeated in batches_of(order, plan, 0, rank) for x in repeated]
    wanted = stream.samples(stream.spots(200 - len(pads), np.arange(len(pads))))
    assert pads == wanted.tolist()
    assert len(pads) == -8 % ranks


def test_pads_wrap_around_where_an_epoch_is_smaller_than_the_ranks():
    order = order_of([3], {"seed": 1}, 3)
    plan = BatchPlan(3, 8, 8)
    got = [batches_of(order, plan, 0, rank)[0] for rank in range(8)]
    assert sorted(x for real, _ in got for x in real) == [0, 1, 2]
    assert all(len(real) + len(pads) == 1 for real, pads in got)


def test_exact_deals_the_last_samples_in_turn():
    order = order_of([10] * 5, {"seed": 4}, 50)
    whole = batches_of(order, BatchPlan(50, 18), 0, 0)[-1][0]
    assert whole != sorted(whole)
    for rank in range(4):
        plan = BatchPlan(50, 18, 4, remainder="exact")
        assert batches_of(order, plan, 0, rank)[-1] == (whole[rank::4], [])


def test_without_shuffle_position_is_sample_inside_batches_too():
    order = order_of([3, 0, 5, 4], {"seed": 1, "shuffle": None, "lanes": 4}, 12)
    assert [real for real, _ in batches_of(order, BatchPlan(12, 5), 3, 0)] == [
        [0, 1, 2, 3, 4],
        [5, 6, 7, 8, 9],
        [10, 11],
    ]
    assert [batches_of(order, BatchPlan(12, 4, 2), 0, rank)[1][0] for rank in range(2)] == [[4, 5], [6, 7]]


def test_up_sampling_uses_every_sample_evenly():
    order = order_of([5, 5, 4], {"seed": 8}, 35)
    counts = Counter(x for epoch in range(2) for x in sequence_of(order, BatchPlan(35, 6), epoch))
    assert set(counts.values()) == {5}  # 70 = 5 passes of 14


def test_down_sampling_goes_on_where_the_last_epoch_stopped():
    order = order_of([5, 5, 4], {"seed": 8}, 7)
    first, second = (sequence_of(order, BatchPlan(7, 3), epoch) for epoch in range(2))
    assert sorted(first + second) == list(range(14))


def test_epochs_and_seeds_differ_and_runs_agree():
    def run(seed):
        order = order_of([7] * 30, {"seed": seed}, 210)
        return [sequence_of(order, BatchPlan(210, 16), epoch) for epoch in range(3)]

    one, again, other = run(1), run(1), run(2)
    assert one == again
    assert len({tuple(epoch) for epoch in one + other}) == 6


def test_epochs_may_be_asked_for_in_any_order():
    order = order_of([7] * 30, {"seed": 1}, 210)
    forward = [sequence_of(order, BatchPlan(210, 16), epoch) for epoch in range(3)]
    assert [sequence_of(order, BatchPlan(210, 16), epoch) for epoch in (2, 0, 1)] == [
        forward[2],
        forward[0],
        forward[1],
    ]


def test_calls_of_any_length_give_the_same():
    order = order_of([50] * 200, {"seed": 3}, 10_000)
    plan = BatchPlan(10_000, 96, 3)
    whole = batches_of(order, plan, 0, 1)
    single = [batches_of(order, plan, 0, 1, n, n + 1)[0] for n in range(plan.num_batches)]
    assert single == whole


@pytest.mark.parametrize(("size", "ranks"), [(128, 8), (500, 7), (4096, 64), (4096, 90)])
def test_the_short_cut_of_many_ranks_gives_the_same_as_the_long_way(size, ranks):
    # Epochs of one and a half passes: batches also lie across the border of two passes.
    order = order_of([90] * 150, {"seed": 3}, 20_250)
    alone = sequence_of(order, BatchPlan(20_250, size), 1)
    assert sequence_of(order, BatchPlan(20_250, size, ranks), 1) == alone


def test_more_samples_than_are_handled_at_once_are_no_border():
    order = order_of([5000] * 140, {"seed": 3}, 700_000)
    got = order.rank_batches(BatchPlan(700_000, 300_000, 1), 0, 0, 3)
    assert np.array_equal(np.sort(got.samples), np.arange(700_000))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((BatchPlan(9, 2), 0, 0, 1), "plan is for 9 samples"),
        ((BatchPlan(10, 2), -1, 0, 1), "epoch=-1"),
        ((BatchPlan(10, 2), 0, 0, 6), "this plan has 5"),
        ((BatchPlan(10, 2), 0, -1, 3), "this plan has 5"),
        ((BatchPlan(10, 2), 0, 0, 3, 0), "step=0"),
        ((BatchPlan(10, 2), 0, 0, 3, 1, 1), "rank=1"),
    ],
)
def test_batches_that_are_not_in_the_plan_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        order_of([10], {"seed": 0}, 10).rank_batches(*arguments)


@pytest.mark.parametrize("samples", [[0], [-3], [1, 2], [1 << 60]])
def test_epochs_of_impossible_sizes_are_refused(samples):
    with pytest.raises(ValueError, match="samples_per_epoch"):
        Order([Walk(np.array([3]), seed=0)], samples)


def test_no_batches_are_asked_for_none_are_given():
    order = order_of([10], {"seed": 0}, 10)
    got = order.rank_batches(BatchPlan(10, 2), 0, 3, 3)
    assert (got.samples.size, got.bounds.tolist(), got.padding.size) == (0, [0], 0)


def test_b099_each_sample_once_for_all_ranks_and_workers():
    order = order_of([10] * 10, {"seed": 0}, 100)
    for ranks, workers in itertools.product((1, 2, 4), (1, 3)):
        plan = BatchPlan(100, 8, ranks)
        seen = [
            x
            for rank in range(ranks)
            for worker in range(workers)
            for real, _ in batches_of(order, plan, 0, rank, worker, None, workers)
            for x in real
        ]
        assert sorted(seen) == list(range(100))


@pytest.mark.parametrize("remainder", ["pad", "drop"])
def test_b100_all_ranks_get_the_same_number_of_batches(remainder):
    order = order_of([4, 6], {"seed": 0}, 10)
    plan = BatchPlan(10, 8, 4, remainder=remainder)
    counts = {order.rank_batches(plan, 0, 0, plan.num_batches, 1, rank).padding.size for rank in range(4)}
    assert counts == {2 if remainder == "pad" else 1}


def test_b101_one_shard_is_split_by_sample():
    order = order_of([64], {"seed": 0}, 64)
    plan = BatchPlan(64, 16, 4)
    assert {plan.samples_of_rank(rank) for rank in range(4)} == {16}
    assert sorted(sequence_of(order, plan, 0)) == list(range(64))


def test_b105_a_hundred_samples_are_25_full_batches():
    plan = BatchPlan(100, 4)
    order = order_of([30, 70], {"seed": 0}, 100)
    assert [len(real) for real, _ in batches_of(order, plan, 0, 0)] == [4] * 25


def test_b113_epochs_differ_and_going_to_one_directly_gives_the_same():
    walked, jumped = order_of([10] * 9, {"seed": 0}, 90), order_of([10] * 9, {"seed": 0}, 90)
    epochs = [sequence_of(walked, BatchPlan(90, 8), epoch) for epoch in range(6)]
    assert len({tuple(epoch) for epoch in epochs}) == 6
    assert sequence_of(jumped, BatchPlan(90, 8), 5) == epochs[5]


def test_b115_global_batches_are_the_same_sets_for_all_ranks():
    order = order_of([10] * 12, {"seed": 0}, 120)
    batches = []
    for ranks in (1, 2, 3, 4):
        plan = BatchPlan(120, 24, ranks)
        parts = [[real for real, _ in batches_of(order, plan, 0, rank)] for rank in range(ranks)]
        batches.append([{x for part in batch for x in part} for batch in zip(*parts, strict=True)])
    assert all(found == batches[0] for found in batches)


def test_b122_the_rest_after_five_batches_is_the_unread_tail_in_the_same_order():
    order = order_of([10] * 12, {"seed": 0}, 120)
    whole = sequence_of(order, BatchPlan(120, 8), 0)
    rest = sequence_of(order_of([10] * 12, {"seed": 0}, 120), BatchPlan(120, 8, start=40), 0)
    assert rest == whole[40:]


def test_b127_a_later_epoch_resumes_in_its_own_order():
    order = order_of([10] * 12, {"seed": 0}, 120)
    assert sequence_of(order, BatchPlan(120, 8, start=32), 2) == sequence_of(order, BatchPlan(120, 8), 2)[32:]


def test_b130_four_then_two_then_eight_ranks_see_each_sample_once():
    order = order_of([50] * 20, {"seed": 0}, 1000)
    seen, position = [], 0
    for ranks, steps in ((4, 10), (2, 10), (8, None)):
        plan = BatchPlan(1000, 4 * ranks, ranks, position)
        last = plan.num_batches if steps is None else steps
        for rank in range(ranks):
            seen += [x for real, _ in batches_of(order, plan, 0, rank, 0, last) for x in real]
        position = plan.position_after(last)
    assert sorted(seen) == list(range(1000))


def test_b131_stopping_at_every_position_loses_and_repeats_nothing():
    order = order_of([3, 5, 4, 3, 6, 4], {"seed": 0, "window": 2, "lanes": 2}, 25)
    whole = sequence_of(order, BatchPlan(25, 1), 0)
    for stop in range(1, 25):
        before = sequence_of(order, BatchPlan(25, stop), 0)[:stop]
        after = sequence_of(order, BatchPlan(25, 6, 2, stop), 0)
        assert sorted(before) == sorted(whole[:stop])
        assert sorted(before + after) == list(range(25))

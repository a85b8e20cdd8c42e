"""What epochs take of streams whose weights change within a run."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamshard.order.epoch import Order
from streamshard.order.timeline import Quotas, Splice, Timeline, shared_out
from streamshard.order.walk import Walk

HALF = (Fraction(1), Fraction(1))
FIRST = (Fraction(1), Fraction(0))


def sequence_of(order, epoch, size=10, ranks=1):
    plan = order.plan(epoch, 0, global_batch_size=size, ranks=ranks)
    return [
        x
        for rank in range(ranks)
        for x in order.rank_batches(plan, epoch, 0, plan.num_batches, 1, rank).samples
    ]


def order_of(quotas, batching="random"):
    walks = [Walk(np.full(8, 10), seed=3, stream=number) for number in range(len(quotas.per_epoch))]
    return Order(walks, quotas, batching=batching)


def test_weights_change_at_the_position_to_the_sample():
    order = order_of(Quotas((100, 0), FIRST, ((130, HALF),)), "stratified")
    labels = [x // 80 for epoch in range(3) for x in sequence_of(order, epoch, size=1)]
    assert not any(labels[:130])
    assert sum(labels[130:200]) == 35
    assert sum(labels[200:300]) == 50


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_each_segment_holds_each_stream_in_its_share_and_its_cursor_runs_on(data):
    weights = (
        st.lists(st.integers(0, 9), min_size=3, max_size=3)
        .filter(any)
        .map(lambda numbers: tuple(map(Fraction, numbers)))
    )
    size = data.draw(st.integers(1, 90))
    positions = sorted(data.draw(st.lists(st.integers(0, 400), max_size=5, unique=True)))
    changes = tuple((position, data.draw(weights)) for position in positions)
    first = data.draw(weights)
    quotas = Quotas(shared_out(size, first), first, changes)
    timeline = Timeline(quotas)
    cursors = (0, 0, 0)
    for epoch in range(12):
        segments = timeline.segments(epoch)
        assert (segments[0].begin, timeline.size(epoch)) == (0, size)
        for segment, following in zip(segments, [*segments[1:], None], strict=True):
            assert segment.cursors == cursors
            cursors = tuple(a + b for a, b in zip(cursors, segment.samples, strict=True))
            assert segment.end == (following.begin if following else size)
            now = [w for position, w in changes if position <= epoch * size + segment.begin]
            assert segment.samples == shared_out(segment.end - segment.begin, now[-1] if now else first)
    far = timeline.segments(10**9)
    assert sum(far[0].cursors) == 10**9 * size


def test_a_schedule_is_read_without_loss_in_every_stream():
    order = order_of(Quotas((60, 60), HALF, ((150, FIRST), (200, HALF))))
    seen = [x for epoch in range(4) for x in sequence_of(order, epoch, size=7)]
    for stream in range(2):
        read = [x - 80 * stream for x in seen if x // 80 == stream]
        walk = order.walks[stream]
        assert Counter(read) == Counter(walk.samples(walk.spots(0, np.arange(len(read)))).tolist())
    assert len(seen) == 480


def test_whole_batches_of_one_stream_change_only_with_the_epoch():
    order_of(Quotas((60, 60), HALF, ((240, FIRST),)), "per_stream")
    with pytest.raises(ValueError, match=r"not at the positions \[150\] of epochs of 120"):
        order_of(Quotas((60, 60), HALF, ((150, FIRST),)), "per_stream")
    many = Quotas((60, 60), HALF, tuple((121 + n, FIRST) for n in range(100)))
    with pytest.raises(ValueError, match=r"140\] and 80 more of epochs of 120.* use 'random'") as caught:
        order_of(many, "per_stream")
    assert len(str(caught.value)) < 500


def test_before_a_splice_all_is_as_it_was():
    quotas = Quotas((60, 40), (Fraction(60), Fraction(40)))
    timeline = Timeline(quotas, Splice(3, 50, (500, 7), (45, 5)))
    assert timeline.segments(2) == Timeline(quotas).segments(2)
    assert timeline.segments(3, 0) == Timeline(quotas).segments(3)
    [rest] = timeline.segments(3, 50)
    assert (rest.begin, rest.samples, rest.cursors) == (50, (30, 20), (500, 7))
    assert timeline.segments(4)[0].cursors == (530, 27)
    assert timeline.segments(6)[0].cursors == (650, 107)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (((0, 0),), "sum from 1"),
        (((-1, 2),), "numbers >= 0"),
        (((1, 2), FIRST, ((5, FIRST), (5, HALF))), "ascending"),
        (((1, 2), FIRST, ((-5, FIRST),)), "ascending"),
        (((1, 2), None, ((5, FIRST),)), "relative weights"),
        (((1, 2), (Fraction(1),)), "1 weights for 2 streams"),
        (((1, 2), (Fraction(0), Fraction(0))), "not all 0"),
    ],
)
def test_quotas_that_contradict_themselves_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        Quotas(*arguments)


@given(st.integers(0, 10**6), st.lists(st.fractions(0, 100), min_size=1, max_size=9).filter(any))
def test_sharing_out_is_exact_to_the_sample(size, weights):
    shares = shared_out(size, tuple(weights))
    assert sum(shares) == size
    total = sum(weights)
    assert all(abs(share - size * weight / total) < 1 for share, weight in zip(shares, weights, strict=True))


def test_a_schedule_and_a_splice_are_pinned():
    quotas = Quotas((60, 40), (Fraction(3), Fraction(2)), ((130, HALF),))
    changing = order_of(quotas)
    spliced = order_of(Quotas((60, 40), (Fraction(3), Fraction(2)))).spliced(
        Splice(1, 30, (78, 52), (18, 12))
    )
    plan = spliced.plan(1, 30, global_batch_size=10)
    rest = spliced.rank_batches(plan, 1, 0, plan.num_batches).samples
    assert (sequence_of(changing, 1)[28:48], rest[:18].tolist()) == PINNED


PINNED = (
    [91, 13, 71, 147, 77, 67, 122, 57, 42, 118, 28, 9, 35, 146, 59, 80, 25, 102, 151, 14],
    [71, 147, 77, 67, 122, 57, 42, 118, 28, 9, 70, 35, 146, 59, 80, 25, 102, 151],
)

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamshard.order.keys import SHARD_ORDER, Key
from streamshard.order.lanes import (
    bit_reversed,
    cut_lanes,
    default_lanes,
    default_window,
    interleave,
    lane_order,
    single_lanes,
)
from streamshard.order.permutation import permutation

sizes = (
    st.lists(st.integers(0, 20), min_size=1, max_size=60)
    .filter(any)
    .map(lambda s: np.array(s, dtype=np.int64))
)


@pytest.mark.parametrize(
    ("shards", "lanes"),
    [(1, 1), (2, 1), (3, 1), (4, 2), (7, 2), (8, 4), (15, 4), (16, 8), (127, 32), (128, 64), (10**6, 64)],
)
def test_default_lanes_are_the_largest_power_of_two_up_to_half_the_shards(shards, lanes):
    assert default_lanes(shards) == lanes


@pytest.mark.parametrize(("share", "lanes"), [(2, 64), (16, 64), (17, 32), (100, 8), (1000, 1), (5000, 1)])
def test_streams_of_a_small_share_have_fewer_lanes(share, lanes):
    assert default_lanes(1000, 10**6, share * 10**6) == lanes
    assert default_lanes(10, 10**6, share * 10**6) == min(4, lanes)


def test_the_default_window_keeps_about_128_shards_live_in_the_job():
    assert [default_window(lanes) for lanes in (1, 2, 4, 8, 64, 128)] == [128, 64, 32, 16, 2, 2]
    # Of two equal streams each may keep 64.
    assert default_window(8, samples=50, all_samples=100) == 8


@pytest.mark.parametrize(("count", "window"), [(2, 2), (16, 2), (17, 1), (1000, 1)])
def test_small_streams_that_are_mixed_in_each_batch_have_one_shard_live_in_a_lane(count, window):
    lanes = default_lanes(1000, 10**6, count * 10**6)
    assert default_window(lanes, 10**6, count * 10**6, is_mixed=True) == max(window, 128 // (count * lanes))
    assert default_window(lanes, 10**6, count * 10**6) == max(2, 128 // (count * lanes))


@given(sizes, st.integers(1, 70), st.integers(0, 2**64 - 1))
@settings(max_examples=100, deadline=None)
def test_lanes_hold_every_sample_once_in_pieces_of_single_shards(sizes, count, seed):
    lanes = cut_lanes(sizes, count, seed=seed, stream=0)
    spans = list(zip(lanes.piece_begins.tolist(), lanes.piece_counts.tolist(), strict=True))
    assert sorted(s for begin, n in spans for s in range(begin, begin + n)) == list(range(sizes.sum()))
    ends = np.cumsum(sizes)
    for begin, n in spans:
        assert n > 0
        assert np.searchsorted(ends, begin, side="right") == np.searchsorted(
            ends, begin + n - 1, side="right"
        )
    for lane in range(count):
        held = lanes.piece_counts[lanes.lane_pieces[lane] : lanes.lane_pieces[lane + 1]].sum()
        assert held == lanes.size(lane)
        assert held in (lanes.num_samples // count, lanes.num_samples // count + 1)


def test_lanes_differ_between_seeds_and_streams():
    cuts = [
        cut_lanes(np.full(50, 3), 4, seed=seed, stream=stream).piece_begins.tolist()
        for seed, stream in ((1, 0), (2, 0), (1, 1))
    ]
    assert cuts[0] != cuts[1] != cuts[2] != cuts[0]


@given(st.integers(1, 300), st.data())
@settings(max_examples=100, deadline=None)
def test_interleaving_gives_every_prefix_its_share(total, data):
    first = data.draw(st.integers(0, total))
    offset = data.draw(st.integers(0, total - 1))
    chosen = interleave(first, total, offset)
    assert chosen.sum() == first
    counts = np.cumsum(chosen)
    assert (np.abs(counts * total - first * np.arange(1, total + 1)) < total).all()


@given(st.integers(1, 200), st.integers(0, 2**64 - 1), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_a_row_visits_every_lane_once(count, seed, turn):
    assert sorted(lane_order(count, seed=seed, stream=0, turn=turn).tolist()) == list(range(count))


@pytest.mark.parametrize("turn", range(8))
def test_any_run_of_places_holds_each_half_quarter_and_eighth_of_the_lanes_in_its_share(turn):
    count = 64
    rows = np.tile(lane_order(count, seed=3, stream=0, turn=turn), 3)
    for parts in (2, 4, 8):
        width = count // parts
        for length in (8, 16, 24, 48, 64, 100):
            for begin in range(count):
                held = np.bincount(rows[begin : begin + length] // width, minlength=parts)
                # Within one for each level of halving.
                assert np.abs(held - length / parts).max() <= parts.bit_length() - 1


def test_which_lanes_meet_changes_from_pass_to_pass():
    orders = {tuple(lane_order(16, seed=3, stream=0, turn=turn).tolist()) for turn in range(20)}
    assert len(orders) == 20


def test_bit_reversal_spreads_lanes_evenly():
    assert [bit_reversed(lane, 8)[0] for lane in range(8)] == [0, 4, 2, 6, 1, 5, 3, 7]
    assert bit_reversed(0, 1) == (0, 1)
    assert [bit_reversed(lane, 6) for lane in range(6)] == [(0, 8), (4, 8), (2, 8), (6, 8), (1, 8), (5, 8)]


@given(
    st.lists(st.one_of(sizes, st.just(np.full(4, 200))), min_size=1, max_size=8), st.integers(0, 2**64 - 1)
)
@settings(deadline=None)
def test_single_lanes_of_many_streams_are_those_of_each(streams, seed):
    numbers = list(range(7, 7 + len(streams)))
    for number, counts, lanes in zip(
        numbers, streams, single_lanes(streams, numbers, seed=seed), strict=True
    ):
        begins = np.cumsum(counts) - counts
        order = [n for n in permutation(Key(SHARD_ORDER, seed, number), counts.size).tolist() if counts[n]]
        assert (lanes.num_samples, lanes.count) == (counts.sum(), 1)
        assert lanes.piece_begins.tolist() == begins[order].tolist()
        assert lanes.piece_counts.tolist() == counts[order].tolist()
        assert lanes.lane_pieces.tolist() == [0, len(order)]
        assert lanes.border_cuts.tolist() == [False, False]


def test_single_lanes_of_the_largest_streams_do_not_overflow():
    huge = np.full(2, 1 << 52, dtype=np.int64)
    for lanes in single_lanes([huge] * 3000, range(3000), seed=0):
        assert lanes.num_samples == 1 << 53
        assert sorted(lanes.piece_begins.tolist()) == [0, 1 << 52]


def test_borders_of_huge_streams_do_not_overflow():
    # 2**52 samples times 2**16 lanes passes 2**63 on the way.
    sizes = np.full(1024, 1 << 42, dtype=np.int64)
    lanes = cut_lanes(sizes, 1 << 16, seed=0, stream=0)
    assert lanes.piece_counts.sum() == 1 << 52
    assert lanes.piece_counts.min() > 0


def test_a_single_lane_is_the_shards_in_the_order_of_the_run_without_empty_ones():
    counts = np.array([3, 0, 5, 1, 0, 7, 0])
    begins = np.cumsum(counts) - counts
    for seed in range(20):
        order = [n for n in permutation(Key(SHARD_ORDER, seed, 4), 7).tolist() if counts[n]]
        lanes = cut_lanes(counts, 1, seed=seed, stream=4)
        assert lanes.num_samples == 16
        assert lanes.piece_begins.tolist() == begins[order].tolist()
        assert lanes.piece_counts.tolist() == counts[order].tolist()
        assert lanes.lane_pieces.tolist() == [0, 4]
        assert lanes.border_cuts.tolist() == [False, False]

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamshard.order.lanes import cut_lanes
from streamshard.order.shuffle import SHUFFLES, lane_pass, parse_shuffle
from streamshard.order.walk import Walk
from tests.support.slow_order import SlowStream

sizes = (
    st.lists(st.integers(0, 12), min_size=1, max_size=70)
    .filter(any)
    .map(lambda s: np.array(s, dtype=np.int64))
)


@pytest.mark.parametrize(
    ("given_name", "ours"),
    [
        ("py1e", "sliding"),
        ("py1br", "block"),
        ("py1s", "shard"),
        ("py2s", "shard"),
        ("naive", "full"),
        (None, "none"),
        *((name, name) for name in SHUFFLES),
    ],
)
def test_names_of_mosaicml_streaming_are_known(given_name, ours):
    assert parse_shuffle(given_name) == ours


@pytest.mark.parametrize("name", ["random", "", "PY1E", 3, ["py1e"]])
def test_an_unknown_shuffle_is_refused_with_the_known_ones(name):
    with pytest.raises(ValueError, match="sliding, block, shard, full, none, py1e"):
        parse_shuffle(name)


def passes_of(sizes, shuffle, lanes, window, turn=0):
    cut = cut_lanes(sizes, lanes, seed=5, stream=0)
    return [
        lane_pass(cut, lane, shuffle=shuffle, window=window, seed=5, stream=0, turn=turn)
        for lane in range(lanes)
    ]


@given(
    sizes,
    st.sampled_from(["sliding", "block", "shard"]),
    st.integers(1, 9),
    st.integers(1, 20),
    st.integers(0, 3),
)
@settings(max_examples=80, deadline=None)
def test_blocks_tile_the_lane_and_rows_are_found_in_them(sizes, shuffle, lanes, window, turn):
    for walk in passes_of(sizes, shuffle, lanes, window, turn):
        if not walk.num_samples:
            continue
        begins = [walk.block_begin(block) for block in range(walk.num_blocks + 1)]
        assert begins[0] == 0
        assert begins[-1] == walk.num_samples
        assert begins == sorted(begins)
        for row in range(walk.num_samples):
            block = walk.block_of(row)
            assert begins[block] <= row < begins[block + 1]


@given(
    sizes, st.sampled_from(["sliding", "block", "shard"]), st.integers(1, 5), st.integers(1, 20), st.data()
)
@settings(max_examples=80, deadline=None)
def test_rows_are_the_same_whatever_was_read_before(sizes, shuffle, lanes, window, data):
    for walk, fresh in zip(
        passes_of(sizes, shuffle, lanes, window), passes_of(sizes, shuffle, lanes, window), strict=True
    ):
        n = walk.num_samples
        if not n:
            continue
        whole = np.concatenate(fresh.rows(0, n))
        for _ in range(4):
            begin = data.draw(st.integers(0, n - 1))
            end = data.draw(st.integers(begin + 1, n))
            assert np.concatenate(walk.rows(begin, end)).tolist() == whole[begin:end].tolist()


@given(sizes, st.sampled_from(["sliding", "block", "shard"]), st.integers(1, 5), st.integers(1, 20))
@settings(max_examples=80, deadline=None)
def test_a_block_draws_only_from_its_pieces(sizes, shuffle, lanes, window):
    for walk in passes_of(sizes, shuffle, lanes, window):
        for block in range(walk.num_blocks if walk.num_samples else 0):
            begin, end = walk.block_begin(block), walk.block_begin(block + 1)
            if begin == end:
                continue
            held = np.concatenate(walk.rows(begin, end)).tolist()
            allowed = set()
            for piece in walk.block_pieces(block):
                first, count = walk.piece_span(piece)
                allowed.update(range(first, first + count))
            assert allowed.issuperset(held)


def uses_of(walk):
    """First and last row of each piece, in the order of first rows."""
    order = np.concatenate(walk.rows(0, walk.num_samples))
    uses = []
    for piece in sorted({piece for block in range(walk.num_blocks) for piece in walk.block_pieces(block)}):
        first, count = walk.piece_span(piece)
        rows = np.flatnonzero((order >= first) & (order < first + count))
        assert rows.size == count
        uses.append((int(rows[0]), int(rows[-1])))
    return sorted(uses)


@given(sizes, st.sampled_from(["sliding", "shard"]), st.integers(1, 9), st.integers(1, 20), st.integers(0, 2))
def test_never_more_pieces_of_a_lane_are_in_use_than_the_window_has(sizes, shuffle, lanes, window, turn):
    for walk in passes_of(sizes, shuffle, lanes, window, turn):
        if not walk.num_samples:
            continue
        uses = uses_of(walk)
        for first, _ in uses:
            in_use = sum(begin <= first <= end for begin, end in uses)
            assert in_use <= (window if shuffle == "sliding" else 1)


@given(sizes, st.sampled_from(["sliding", "block", "shard"]), st.integers(1, 9), st.integers(1, 20))
def test_no_piece_is_used_outside_the_rows_that_are_told(sizes, shuffle, lanes, window):
    for walk in passes_of(sizes, shuffle, lanes, window):
        if not walk.num_samples:
            continue
        order = np.concatenate(walk.rows(0, walk.num_samples))
        begins, first, last = walk.piece_rows()
        for piece, begin in enumerate(begins.tolist()):
            count = walk.piece_span(piece)[1]
            rows = np.flatnonzero((order >= begin) & (order < begin + count))
            assert first[piece] <= rows[0]
            assert rows[-1] < last[piece]


def test_equal_shards_are_mixed_evenly_from_the_first_row_to_the_last():
    # 4 tracks of 12 pieces; pieces run ahead by up to a quarter while the first and last two of each are played.
    (walk,) = passes_of(np.full(48, 400), "sliding", 1, 4)
    piece = np.concatenate(walk.rows(0, walk.num_samples)) // 400
    for begin in range(0, piece.size - 64, 64):
        counts = np.bincount(piece[begin : begin + 64])
        # 16 of each where none turns; tracks of another pace have 12 or 20.
        assert 64 * 64 / (counts**2).sum() > 3.7


def test_pieces_of_unlike_sizes_are_mixed_evenly_too():
    counts = np.random.default_rng(4).integers(100, 900, 60)
    (walk,) = passes_of(counts, "sliding", 1, 3)
    shard = np.repeat(np.arange(60), counts)[np.concatenate(walk.rows(0, walk.num_samples))]
    effective = [
        96 * 96 / (np.bincount(shard[begin : begin + 96]) ** 2).sum()
        for begin in range(0, shard.size - 96, 96)
    ]
    assert min(effective) > 2.6


def test_blocks_are_of_nearly_the_same_size_and_never_a_scrap():
    for lanes in (1, 2, 4, 8):
        for shards in range(1, 60):
            for walk in passes_of(np.full(shards * lanes, 4), "block", lanes, 6):
                counts = [len(walk.block_pieces(block)) for block in range(walk.num_blocks)]
                even = shards / len(counts)
                assert len(counts) == -(-shards // 6)
                assert all(abs(count - even) < 1 for count in counts[1:-1])
                assert all(even / 2 - 0.5 <= count <= even * 1.5 + 0.5 for count in counts)


def test_blocks_have_pieces_of_like_sizes():
    counts = np.random.default_rng(5).integers(100, 1000, 200)
    sizes_of_pairs = []
    for turn in (0, 1):
        (walk,) = passes_of(counts, "block", 1, 2, turn)
        for block in range(walk.num_blocks):
            one, other = sorted(walk.piece_span(piece)[1] for piece in walk.block_pieces(block))
            sizes_of_pairs.append(other / one)
    # Without, one pair in ten is 4 or more to 1.
    assert np.percentile(sizes_of_pairs, 90) < 3


def test_tracks_turn_to_new_shards_one_by_one():
    # 16 lanes of 20 shards with 64 samples, two at a time: 32 turns in 128 rows, so two in 8.
    begins = []
    for walk in passes_of(np.full(320, 64), "sliding", 16, 2):
        begins += [first for first, _ in uses_of(walk)]
    per_8_rows = np.bincount(np.array(begins) // 8)
    assert per_8_rows[0] == 32
    assert per_8_rows[16:-16].max() <= 6


@pytest.mark.parametrize(("shuffle", "window"), [("sliding", 2), ("sliding", 3), ("shard", 1)])
@pytest.mark.parametrize("turn", [0, 7])
def test_the_parts_of_a_shard_that_a_border_cuts_are_used_at_about_the_same_time(shuffle, window, turn):
    sizes, lanes = np.full(165, 64), 8  # 20 5/8 shards a lane
    cut = cut_lanes(sizes, lanes, seed=5, stream=0)
    assert cut.border_cuts.tolist() == [False, *[True] * 7, False]
    walks = passes_of(sizes, shuffle, lanes, window, turn)
    orders = [np.concatenate(walk.rows(0, walk.num_samples)) // 64 for walk in walks]
    for before, after in itertools.pairwise(orders):
        (shard,) = set(before.tolist()) & set(after.tolist())
        rows = [np.flatnonzero(order == shard) for order in (before, after)]
        # In use from the first row of both to the last row of both: not much longer than any other one.
        spans = max(rows[0][-1], rows[1][-1]) - min(rows[0][0], rows[1][0])
        assert spans <= 2.6 * 64 * window
        # Not in the first or last batches, where two lanes would have but one shard.
        assert min(rows[0][0], rows[1][0]) > 32 * window
        assert max(rows[0][-1], rows[1][-1]) < 20 * 64 - 32 * window + 64


@pytest.mark.parametrize(
    ("sizes", "lanes", "window"),
    [
        (
            np.random.default_rng(6).integers(50, 900, 60),
            2,
            3,
        ),  # some four steps before and after the middle ones
        (np.full(41, 500), 4, 4),
        (np.full(130, 150), 1, 40),
        (np.array([70_000, 66_000, 5, 9_000, 300, 4_000]), 1, 2),
    ],
)
@pytest.mark.parametrize("shuffle", ["sliding", "shard", "block"])
def test_lanes_of_many_steps_are_what_the_text_says(sizes, lanes, window, shuffle):
    slow = SlowStream(sizes.tolist(), seed=5, shuffle=shuffle, lanes=lanes, window=window)
    for lane, walk in enumerate(passes_of(sizes, shuffle, lanes, window, 1)):
        if shuffle == "sliding":
            assert walk.num_blocks > 3
        expected = [sample for block in slow.blocks(1, lane) for sample in block]
        assert np.concatenate(walk.rows(0, walk.num_samples)).tolist() == expected
        middle = walk.num_samples // 2
        (fresh,) = passes_of(sizes, shuffle, lanes, window, 1)[lane : lane + 1]
        assert np.concatenate(fresh.rows(middle, middle + 50)).tolist() == expected[middle : middle + 50]


@pytest.mark.parametrize("shuffle", ["sliding", "block", "shard"])
def test_pieces_of_more_than_65535_samples_are_shuffled_too(shuffle):
    walk = Walk(np.array([70_000, 66_000, 65_536, 3]), seed=2, shuffle=shuffle, lanes=1, window=2)
    order = np.concatenate(walk.lane_of_pass(0, 0).rows(0, walk.num_samples))
    assert np.array_equal(np.sort(order), np.arange(walk.num_samples))
    assert np.mean(np.diff(order) == 1) < 0.001

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamshard.order.lanes import cut_lanes
from streamshard.order.shuffle import SHUFFLES, lane_pass, parse_shuffle
from streamshard.order.walk import Walk

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


@given(sizes, st.integers(1, 9), st.integers(1, 20))
@settings(max_examples=80, deadline=None)
def test_every_sliding_block_brings_in_one_piece_and_retires_one(sizes, lanes, window):
    for walk in passes_of(sizes, "sliding", lanes, window):
        if not walk.num_samples:
            continue
        pieces = [walk.block_pieces(block) for block in range(walk.num_blocks)]
        assert pieces[0].start == 0
        assert all(
            (before.start + 1, before.stop + 1) == (after.start, after.stop)
            for before, after in itertools.pairwise(pieces)
        )
        # Live at once: never more than the window.
        assert all(len(live) <= window for live in pieces)


def test_sliding_blocks_of_equal_shards_are_all_as_big_as_a_shard_but_the_joined_ones():
    (walk,) = passes_of(np.full(15, 30), "sliding", 1, 4)
    sizes_of_blocks = np.diff([walk.block_begin(block) for block in range(walk.num_blocks + 1)])
    # k = 4 of 30: parts of 7, 8, 7, 8 samples; the joined ends hold 4 + 3 + 2 + 1 parts.
    assert set(sizes_of_blocks[1:-1].tolist()) == {30}
    assert 70 <= sizes_of_blocks[0] <= 80
    assert sizes_of_blocks.sum() == 450


def test_sliding_mixes_a_shard_over_exactly_its_window():
    (walk,) = passes_of(np.full(12, 40), "sliding", 1, 4)
    order = np.concatenate(walk.rows(0, walk.num_samples))
    for piece in range(walk.num_blocks + 3):
        first, count = walk.piece_span(piece)
        rows = np.flatnonzero((order >= first) & (order < first + count))
        assert rows.max() - rows.min() < 4 * 40 + 100  # the joined first and last blocks are the longer ones


def test_block_shuffle_never_leaves_a_scrap_at_an_end():
    for lanes in (1, 2, 4, 8):
        for shards in range(1, 60):
            for walk in passes_of(np.full(shards * lanes, 4), "block", lanes, 6):
                counts = [len(walk.block_pieces(block)) for block in range(walk.num_blocks)]
                assert len(counts) == 1 or all(3 <= count < 9 for count in counts)


def test_lanes_turn_to_new_shards_one_by_one():
    # 16 lanes of 20 shards with 64 samples: without the staggered cut all turn in the same row.
    begins = [walk.piece_span(0)[1] for walk in passes_of(np.full(320, 64), "shard", 16, 2)]
    assert sorted(begins) == sorted([64, *range(4, 64, 4)])


def test_lanes_of_few_pieces_keep_their_first_piece_whole():
    for walk in passes_of(np.full(8 * 8, 64), "shard", 8, 2):
        assert {walk.piece_span(piece)[1] for piece in range(8)} == {64}


@pytest.mark.parametrize("shuffle", ["sliding", "block", "shard"])
def test_pieces_of_more_than_65535_samples_are_shuffled_too(shuffle):
    walk = Walk(np.array([70_000, 66_000, 65_536, 3]), seed=2, shuffle=shuffle, lanes=1, window=2)
    order = np.concatenate(walk.lane_of_pass(0, 0).rows(0, walk.num_samples))
    assert np.array_equal(np.sort(order), np.arange(walk.num_samples))
    assert np.mean(np.diff(order) == 1) < 0.001

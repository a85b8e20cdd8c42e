import pickle

import numpy as np
import pytest

from streamshard.errors import TopologyError
from streamshard.order.walk import Walk


def ids(walk, first, count):
    return walk.samples(walk.spots(first, np.arange(count))).tolist()


def test_defaults_depend_on_the_shards_alone():
    walk = Walk(np.full(1000, 10), seed=1)
    assert (walk.num_samples, walk.lanes, walk.window, walk.shuffle) == (10_000, 64, 2, "sliding")
    assert (Walk(np.full(10, 10), seed=1).lanes, Walk(np.full(10, 10), seed=1).window) == (4, 32)


def test_block_size_in_samples_sets_the_window_in_shards():
    sizes = np.full(100, 10)
    windows = [Walk(sizes, seed=1, block_size=size).window for size in (1, 14, 15, 40, 44, 45, 1000, 10**9)]
    assert windows == [1, 1, 2, 4, 4, 5, 100, 10**8]


def test_a_window_beyond_any_number_of_shards_is_the_widest_that_a_walk_can_be_renewed_with():
    wide = Walk(np.full(20, 100), seed=1, lanes=2, block_size=1 << 53)
    assert wide.window == (1 << 31) - 1
    assert wide.renewed(stream=0, lanes=wide.lanes, window=wide.window).window == wide.window
    as_wide_as_the_lane = Walk(np.full(20, 100), seed=1, lanes=2, window=20)
    assert ids(wide, 0, 2000) == ids(as_wide_as_the_lane, 0, 2000)


@pytest.mark.parametrize("shuffle", [None, "none", "full", "naive"])
def test_without_lanes_the_number_of_canonical_nodes_means_nothing(shuffle):
    assert Walk(np.full(100, 10), seed=1, shuffle=shuffle, lanes=8).lanes == 1


def test_shards_without_samples_take_no_part():
    # mosaicml-streaming writes one when the first sample is bigger than the size limit.
    sizes = np.array([0, 3, 0, 4, 0])
    walk = Walk(sizes, seed=1)
    assert walk.num_shards == 2
    assert sorted(ids(walk, 0, 7)) == list(range(7))


@pytest.mark.parametrize("sizes", [[], [0], [0, 0, 0]])
def test_a_stream_without_samples_is_refused(sizes):
    with pytest.raises(ValueError, match=f"{len(sizes)} shards holds no samples"):
        Walk(np.array(sizes, dtype=np.int64), seed=0)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        (np.array([3, -1]), r"samples_per_shard\[1\]=-1"),
        (np.array([1.5, 2.0]), "expected integers"),
        (np.ones((2, 2), dtype=np.int64), r"shape \(shards,\)"),
        (np.array([1 << 62, 1 << 62, 1 << 62]), "not supported"),
        (np.array([(1 << 64) - 1], dtype=np.uint64), "not supported"),
    ],
)
def test_impossible_shard_sizes_are_refused(sizes, words):
    with pytest.raises(ValueError, match=words):
        Walk(sizes, seed=0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"seed": -1}, "seed=-1"),
        ({"seed": 1 << 64}, "seed="),
        ({"seed": 1.0}, "seed=1.0: expected an integer"),
        ({"seed": True}, "seed=True"),
        ({"seed": 0, "window": 0}, "window=0"),
        ({"seed": 0, "block_size": 0}, "shuffle_block_size=0"),
        ({"seed": 0, "block_size": 5, "window": 5}, "both given"),
        ({"seed": 0, "shuffle": "py9"}, "py9"),
        ({"seed": 0, "stream": -1}, "stream=-1"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        Walk(np.array([3]), **arguments)


@pytest.mark.parametrize("lanes", [0, -4, 1 << 40, 2.0])
def test_an_impossible_number_of_lanes_is_refused(lanes):
    with pytest.raises(TopologyError, match="num_canonical_nodes"):
        Walk(np.array([3]), seed=0, lanes=lanes)


def test_more_lanes_than_samples_work():
    walk = Walk(np.array([2, 3]), seed=0, lanes=40)
    assert sorted(ids(walk, 0, 5)) == list(range(5))


@pytest.mark.parametrize("shuffle", ["sliding", "block", "shard", "full", "none"])
def test_indices_of_any_size_lie_in_their_own_pass(shuffle):
    walk = Walk(np.array([5, 6, 3, 4]), seed=2, shuffle=shuffle)
    for turn in (0, 1, 10**6, 10**15):
        assert sorted(ids(walk, turn * 18, 18)) == list(range(18))
    assert ids(walk, 18 * 7 + 11, 30) == ids(walk, 18 * 7, 41)[11:]


def test_samples_may_be_chosen_in_any_order():
    walk = Walk(np.full(30, 7), seed=2)
    spots = walk.spots(100, np.arange(400))  # over three passes
    whole = walk.samples(spots)
    chosen = np.array([399, 0, 5, 5, 200, 109, 110])
    assert walk.samples(spots, chosen).tolist() == whole[chosen].tolist()


def test_a_walk_pickles_without_its_blocks():
    walk = Walk(np.full(200, 500), seed=2)
    before = len(pickle.dumps(walk))
    expected = ids(walk, 0, 5000)
    assert len(pickle.dumps(walk)) == before
    assert ids(pickle.loads(pickle.dumps(walk)), 0, 5000) == expected


def test_one_block_a_lane_is_held_and_no_table_of_all_samples(monkeypatch):
    # 1,000 shards of 1,000: reading everything must never hold more than the live blocks.
    walk = Walk(np.full(1000, 1000), seed=2)
    most = 0
    for first in range(0, 1_000_000, 50_000):
        ids(walk, first, 50_000)
        held = sum(lane._held.size for lane in walk._turn.lanes.values())
        most = max(most, held)
    assert len(walk._turn.lanes) == 64
    assert most <= 64 * 2100  # steps of 2,048 rows, but for rounding


def test_a_jump_computes_a_block_a_lane(monkeypatch):
    from streamshard.order import tracks

    made = []
    original = tracks.TrackPass._samples
    monkeypatch.setattr(
        tracks.TrackPass, "_samples", lambda self, block: made.append(block) or original(self, block)
    )
    walk = Walk(np.full(100_000, 20), seed=2)
    ids(walk, 1_234_567, 64)
    assert len(made) <= 2 * 64


def test_going_on_computes_every_block_once(monkeypatch):
    from streamshard.order import tracks

    made = []
    original = tracks.TrackPass._samples
    monkeypatch.setattr(
        tracks.TrackPass, "_samples", lambda self, block: made.append(block) or original(self, block)
    )
    walk = Walk(np.full(300, 40), seed=2)
    for first in range(0, walk.num_samples, 96):
        ids(walk, first, min(96, walk.num_samples - first))
    blocks = sum(walk.lane_of_pass(0, lane).num_blocks for lane in range(walk.lanes))
    assert len(made) == blocks


def test_visits_count_what_places_show():
    walk = Walk(np.full(23, 7), seed=2, lanes=8)
    spots = walk.spots(0, np.arange(walk.num_samples))
    places = np.array([0, 1, 8, 100, walk.num_samples - 1, walk.num_samples])
    counted = walk.visits(0, places)
    for place, row in zip(places, counted, strict=True):
        assert row.tolist() == np.bincount(spots.lane[:place], minlength=8).tolist()


def test_b133_a_jump_without_shuffle_touches_only_the_rest():
    walk = Walk(np.full(20, 100), seed=0, shuffle=None)
    assert ids(walk, 1800, 200) == list(range(1800, 2000))


def test_b142_an_order_of_1e8_samples_in_20000_shards_is_laid_out_without_a_table():
    walk = Walk(np.full(20_000, 5_000), seed=0)
    arrays = [getattr(walk._cut, name) for name in walk._cut.__slots__]
    assert sum(value.nbytes for value in arrays if isinstance(value, np.ndarray)) < 20_000 * 40
    assert len(set(ids(walk, 50_000_000, 4096))) == 4096

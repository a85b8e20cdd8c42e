"""Streams of a small share are found sample by sample: the same passes, windows and states as any others."""

import itertools
import pickle
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamshard.errors import StateError
from streamshard.order.batches import BatchPlan
from streamshard.order.crowd import Crowd
from streamshard.order.epoch import Order
from streamshard.order.lanes import default_lanes, default_window, is_scattered_by_default
from streamshard.order.passes import Passes, joined
from streamshard.order.permutation import mixed_words, scattered
from streamshard.order.position import State
from streamshard.order.quality import shuffle_quality
from streamshard.order.walk import Walk

SIZES = st.lists(st.integers(0, 40), min_size=1, max_size=40).filter(any)


def words_of(count, use=7):
    return mixed_words(np.full(count, use, dtype=np.uint64), np.arange(count))


@pytest.mark.parametrize("size", [*range(1, 40), 255, 256, 257, 1000, 65_537])
def test_a_scattered_permutation_visits_every_place_once(size):
    for word in words_of(5):
        images = scattered(np.arange(size), np.full(size, size), np.full(size, word, dtype=np.uint64))
        assert sorted(images.tolist()) == list(range(size))


def test_places_of_the_largest_permutations_stay_in_range_and_differ():
    size = 1 << 53
    places = np.concatenate((np.arange(1000), np.arange(size - 1000, size)))
    images = scattered(places, np.full(2000, size), np.full(2000, 99, dtype=np.uint64))
    assert len(set(images.tolist())) == 2000
    assert 0 <= images.min() < size // 100
    assert size - size // 100 < images.max() < size


@pytest.mark.parametrize("size", [16, 100, 1000])
def test_images_of_places_and_of_pairs_are_spread_evenly(size):
    keys = 50_000
    first, second = (scattered(np.full(keys, place), np.full(keys, size), words_of(keys)) for place in (0, 1))
    for values, bins in ((first, size), (second, size), ((first - second) % size - 1, size - 1)):
        counts = np.bincount(values, minlength=bins)
        chi = ((counts - keys / bins) ** 2 / (keys / bins)).sum()
        assert abs(chi - (bins - 1)) < 6 * np.sqrt(2 * (bins - 1))  # six standard deviations


@given(SIZES, st.integers(1, 5), st.integers(1, 8), st.sampled_from(["sliding", "shard"]), st.integers(0, 3))
def test_a_scattered_pass_has_every_sample_once(sizes, lanes, window, shuffle, turn):
    walk = Walk(np.array(sizes), seed=3, shuffle=shuffle, lanes=lanes, window=window, scattered=True)
    places = np.arange(walk.num_samples)
    ids = walk.samples(walk.spots(turn * walk.num_samples, places))
    assert sorted(ids.tolist()) == places.tolist()
    # Any part of them, asked for in any order, is the same: nothing is remembered that matters.
    for low, high in ((walk.num_samples // 2, walk.num_samples), (0, walk.num_samples // 2)):
        part = walk.samples(walk.spots(turn * walk.num_samples + low, places[: high - low]))
        assert part.tolist() == ids[low:high].tolist()


@given(st.integers(9, 60), st.integers(1, 8), st.integers(1, 400))
def test_a_window_has_few_shards_live(shards, window, seed):
    walk = Walk(np.full(shards, 16), seed=seed, lanes=1, window=window, scattered=True)
    ids = walk.samples(walk.spots(0, np.arange(walk.num_samples))) // 16
    first = np.array([np.flatnonzero(ids == shard)[0] for shard in range(shards)])
    last = np.array([np.flatnonzero(ids == shard)[-1] for shard in range(shards)])
    live = [int(((first <= place) & (place <= last)).sum()) for place in range(walk.num_samples)]
    assert max(live) <= 2 * window
    if window < shards:
        assert np.mean(live) <= window + 1


def test_passes_differ_and_so_do_streams_and_seeds():
    def ids(seed, stream, turn):
        walk = Walk(np.full(9, 30), seed=seed, stream=stream, lanes=1, window=2, scattered=True)
        return tuple(walk.samples(walk.spots(turn * 270, np.arange(270))).tolist())

    cases = itertools.product((0, 1, (1 << 64) - 1), (0, 5), (0, 1, (1 << 62) + 3))
    assert len({ids(*case) for case in cases}) == 18


def streams(sizes, scattered):
    return [
        Walk(np.array(size), seed=11, stream=number, lanes=lanes, window=window, scattered=scattered)
        for number, (size, lanes, window) in enumerate(sizes)
    ]


@settings(max_examples=60)
@given(
    st.lists(st.tuples(SIZES, st.integers(1, 4), st.integers(1, 4)), min_size=9, max_size=14),
    st.data(),
)
def test_a_crowd_gives_what_each_of_its_walks_gives_alone(sizes, data):
    walks = streams(sizes, True)
    numbers = sorted(data.draw(st.sets(st.integers(0, 20), min_size=len(walks), max_size=len(walks))))
    crowd = Crowd(walks, numbers, [1000 * number for number in numbers], 21)
    by_number = dict(zip(numbers, walks, strict=True))
    for _ in range(3):  # what is remembered of one look must not show in the next
        cursors = [0] * 21
        for number in numbers:
            cursors[number] = data.draw(st.integers(0, 1 << 62))
        for _ in range(2):
            asked = sorted(data.draw(st.lists(st.sampled_from(numbers), min_size=1, max_size=30)))
            met, counts = np.unique(asked, return_counts=True)
            begins = data.draw(st.lists(st.integers(0, 200), min_size=len(met), max_size=len(met)))
            labels = np.repeat(met, counts)
            ranks = np.concatenate([begin + np.arange(n) for begin, n in zip(begins, counts, strict=True)])
            mixed = np.array(data.draw(st.permutations(range(len(labels)))))
            spots = crowd.spots(tuple(cursors), labels[mixed], ranks[mixed])
            ids, keys = crowd.samples(spots), crowd.sort_keys(spots)
            for number in met.tolist():
                here = labels[mixed] == number
                order = np.argsort(ranks[mixed][here])
                walk = by_number[number]
                alone = walk.spots(cursors[number], ranks[mixed][here][order])
                assert (ids[here][order] - 1000 * number).tolist() == walk.samples(alone).tolist()
                assert keys[here][order].tolist() == walk.sort_keys(alone).tolist()


@settings(max_examples=40)
@given(
    st.lists(st.tuples(SIZES, st.integers(1, 3), st.integers(1, 3)), min_size=2, max_size=20),
    st.sampled_from(["random", "stratified", "per_stream", "device_per_stream"]),
    st.integers(1, 5),
    st.integers(0, 3),
    st.lists(st.booleans(), min_size=20, max_size=20),
)
def test_orders_of_scattered_and_other_streams_have_each_sample_once(sizes, batching, per_rank, epoch, which):
    walks = [
        walk.renewed(stream=walk.stream, lanes=walk.lanes, window=walk.window, scattered=chosen)
        for walk, chosen in zip(streams(sizes, False), which, strict=False)
    ]
    order = Order(walks, batching=batching)
    plan = order.plan(epoch, 0, global_batch_size=2 * per_rank, ranks=2, remainder="exact")
    parts = [order.rank_batches(plan, epoch, 0, plan.num_batches, 1, rank) for rank in range(2)]
    both = np.concatenate([part.samples for part in parts])
    assert sorted(both.tolist()) == list(range(order.num_samples))
    # Batch by batch, from a copy that remembers nothing, it is the same.
    copy = pickle.loads(pickle.dumps(order))
    for batch in range(plan.num_batches - 1, -1, -1):
        one = copy.rank_batches(plan, epoch, batch, batch + 1, 1, 1).samples
        assert one.tolist() == parts[1].part(batch, batch + 1).samples.tolist()


def test_tables_are_joined_and_cut_without_a_difference():
    walks = streams([([5, 9, 30, 2], lanes, 2) for lanes in (1, 2, 3, 1, 2)], True)
    passes = [walk.scattered_pass(turn, 100 * turn) for turn, walk in enumerate(walks)]
    together = Passes.of(passes)
    again = joined([together.part(1, 3), Passes.of(passes[4:]), together.part(0, 1)])
    assert len(again) == 4
    row = np.arange(15)
    for place, number in enumerate((1, 2, 4, 0)):
        lane = row % walks[number].lanes
        want = together.find(np.full(15, number), lane, row)
        assert again.find(np.full(15, place), lane, row).tolist() == want.tolist()


def many(count, shards, per_shard, scattered=True, is_mixed=True):
    samples = shards * per_shard
    lanes = default_lanes(shards, samples, samples * count)
    window = default_window(lanes, samples, samples * count, is_mixed=is_mixed)
    return [
        Walk(np.full(shards, per_shard), seed=1, stream=s, lanes=lanes, window=window, scattered=scattered)
        for s in range(count)
    ]


def test_a_batch_of_a_thousand_streams_holds_no_blocks():
    """Of the shards that are live, 7,500 rows each would be held as blocks: 60 MB."""
    order = Order(many(1000, 20, 5000))
    plan = order.plan(0, 0, global_batch_size=256)
    tracemalloc.start()
    try:
        found = order.rank_batches(plan, 0, 0, 1000)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(set(found.samples.tolist())) == found.samples.size == 256_000
    assert held - found.samples.nbytes < 12e6


@given(SIZES, st.integers(1, 3), st.integers(1, 4))
def test_the_uses_of_pieces_are_those_of_their_samples(sizes, lanes, window):
    walk = Walk(np.array(sizes), seed=3, lanes=lanes, window=window, scattered=True)
    passes = Passes.of([walk.scattered_pass(2)])
    for lane, spans in enumerate(walk.lane_samples(lane) for lane in range(lanes)):
        rows = np.arange(int((spans[:, 1] - spans[:, 0]).sum()))
        ids = passes.find(np.zeros_like(rows), np.full_like(rows, lane), rows)
        samples, begins, ends = walk.piece_rows(2, lane)
        piece = np.argsort(samples)[np.searchsorted(np.sort(samples), ids, side="right") - 1]
        assert (begins[piece] <= rows).all()
        assert (rows < ends[piece]).all()
        assert (ends - begins <= 4 * max(sizes) * window).all()


@pytest.mark.parametrize("count", [17, 60, 400])
def test_many_streams_mix_better_than_one_of_equal_size(count):
    """By shards in a batch, by its ends, and by how far apart the samples of a shard are."""

    def quality(walks):
        order = Order(walks)
        plan = order.plan(0, 0, global_batch_size=256)
        samples = order.rank_batches(plan, 0, 0, plan.full_batches).samples
        sizes = np.concatenate([walk.samples_per_shard for walk in walks])
        return shuffle_quality(samples, sizes, 256)

    shards = 1200 // count
    found = quality(many(count, shards, 48))
    one = quality([Walk(np.full(shards * count, 48), seed=1)])
    assert found.overall > one.overall
    assert min(found.first, found.last) > 0.9
    assert found.shard_spread > 2 * one.shard_spread
    assert found.same_shard_near < one.same_shard_near / 2
    assert found.live_shards.max() <= 1024 + 2 * count


def test_streams_of_less_than_a_sixteenth_are_scattered():
    assert not is_scattered_by_default(1, 16)
    assert is_scattered_by_default(999, 16_000)


def few():
    return streams([([10] * 4, 2, 2)] * 3, True)


def states_of(order, position=50):
    plan = order.plan(0, 0, global_batch_size=10)
    many_prints = [{"layout": f"{n}"} for n in range(len(order.walks))]
    names = [None] * len(order.walks)
    return State.of(order, plan, 0, position, settings={}, names=names, fingerprints=many_prints)


def test_states_say_which_streams_are_scattered_and_only_where_any_is():
    plain = states_of(Order(many(3, 4, 10, scattered=False))).to_dict()
    assert "scattered" not in plain["columns"]
    state = states_of(Order([*few()[:2], streams([([10] * 4, 2, 2)] * 3, False)[2]]))
    document = state.to_dict()
    assert document["columns"][-1] == "scattered"
    assert [row[-1] for row in document["streams"]] == [1, 1, 0]
    assert State.from_dict(document) == state


@pytest.mark.parametrize("value", [2, -1, None, "1", True])
def test_a_state_with_another_word_for_scattered_is_refused(value):
    document = states_of(Order(few())).to_dict()
    document["streams"][1][-1] = value
    with pytest.raises(StateError, match="stream 1: 'scattered'"):
        State.from_dict(document)


def test_a_window_for_which_the_tables_would_be_huge_is_refused():
    with pytest.raises(ValueError, match="window=9 of a scattered walk: expected at most 8"):
        Walk(np.full(30, 5), seed=0, window=9, scattered=True)
    document = states_of(Order(few())).to_dict()
    document["streams"][0][document["columns"].index("window")] = 100_000
    with pytest.raises(StateError, match="stream 0: 'window' is 100000, expected an integer from 1 to 8"):
        State.from_dict(document)


def test_what_has_no_lanes_of_blocks_says_so():
    walk = few()[0]
    with pytest.raises(ValueError, match="a scattered walk has no lanes of blocks"):
        walk.lane_of_pass(0, 0)
    assert not Walk(np.full(4, 10), seed=0, shuffle="full", scattered=True).scattered
    with pytest.raises(ValueError, match="not scattered"):
        Walk(np.full(4, 10), seed=0).scattered_pass(0)


def pinned(walks):
    order = Order(walks)
    return order.rank_batches(BatchPlan(order.num_samples, 32, 4), 3, 100, 101, 1, 2).samples.tolist()


def test_the_order_of_scattered_streams_is_pinned():
    assert pinned(many(40, 7, 50)) == [1488, 8844, 7254, 5607, 7425, 13422, 6809, 8591]
    # With a window of 2, as states of earlier builds have, and with ``shard``.
    two = many(40, 7, 50, is_mixed=False)
    assert pinned(two) == [1489, 8818, 7084, 5637, 7403, 13344, 6827, 8598]
    shard = [
        Walk(np.full(7, 50), seed=1, stream=s, shuffle="shard", lanes=2, scattered=True) for s in range(40)
    ]
    assert pinned(shard) == [1471, 8808, 7292, 5620, 7439, 13408, 6849, 8586]

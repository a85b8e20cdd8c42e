"""The measures of shuffle quality, on orders whose values can be worked out by hand, and on the default order."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamshard.order.batches import BatchPlan
from streamshard.order.epoch import Order
from streamshard.order.quality import shuffle_quality
from streamshard.order.walk import Walk

SHARDS, PER_SHARD, BATCH = 10, 40, 20
N = SHARDS * PER_SHARD
SIZES = np.full(SHARDS, PER_SHARD)


def expected_ideal(size=BATCH, sizes=SIZES):
    total = sizes.sum()
    return size / (1 + (size - 1) * (sizes * (sizes - 1)).sum() / (total * (total - 1)))


def test_file_order():
    found = shuffle_quality(np.arange(N), SIZES, BATCH, next_epoch=np.arange(N), near=0)
    assert found.effective_shards.tolist() == [1.0] * 20
    assert found.ideal_shards == pytest.approx([expected_ideal()] * 20)
    assert found.live_shards.tolist() == found.needed_shards.tolist() == [1] * 20
    assert found.carried_shards.tolist() == [1, 0] * 9 + [1]  # two batches a shard
    assert found.fetches == SHARDS
    assert found.file_displacement == found.epoch_displacement == 0
    # Two of m neighbours are (m + 1) / 3 apart on the average, two of all N (N + 1) / 3.
    assert found.shard_spread == pytest.approx((PER_SHARD + 1) / (N + 1))
    chance_together = (BATCH - 1) / (N - 1)
    assert found.met_again == pytest.approx(1 / chance_together)
    # Of 40 samples in two batches of one shard, 2 · 20 · 19 / 2 pairs are together, of 40 · 39 / 2.
    assert found.same_shard_together == pytest.approx(19 / 39 / chance_together)
    assert shuffle_quality(np.arange(N), SIZES, PER_SHARD).overall == pytest.approx(1)
    # 38 of the 39 neighbours in a shard are in one batch.
    assert found.neighbours_together == pytest.approx(38 / 39 / chance_together)


def test_perfect_interleave():
    # Every batch takes two samples of every shard: more even than chance.
    order = np.arange(N).reshape(SHARDS, PER_SHARD).T.ravel()
    found = shuffle_quality(order, SIZES, BATCH, near=0)
    assert found.effective_shards.tolist() == [10.0] * 20
    assert found.first == found.last == 1
    assert found.live_shards.tolist() == [10] * 20
    assert found.carried_shards.tolist() == [10] * 19
    assert found.shard_spread == pytest.approx(10 * (PER_SHARD + 1) / (N + 1))
    chance_together = (BATCH - 1) / (N - 1)
    assert found.same_shard_together == pytest.approx(1 / 39 / chance_together)
    assert found.neighbours_together == pytest.approx(20 / 39 / chance_together)
    assert math.isnan(found.met_again)
    assert math.isnan(found.epoch_displacement)


def test_uniform_permutations_are_one_on_the_average():
    rng = np.random.default_rng(5)
    sizes = rng.integers(1, 80, SHARDS)
    total = int(sizes.sum())
    runs = [
        shuffle_quality(rng.permutation(total), sizes, BATCH, next_epoch=rng.permutation(total))
        for _ in range(200)
    ]
    for name in (
        *("shard_spread", "file_displacement", "epoch_displacement", "same_shard_together"),
        *("same_shard_near", "neighbours_together", "neighbours_near", "met_again"),
    ):
        values = np.array([getattr(run, name) for run in runs])
        assert abs(values.mean() - 1) < 4 * values.std() / np.sqrt(values.size), name
    assert np.mean([run.overall for run in runs]) == pytest.approx(runs[0].ideal_shards[0], rel=0.01)
    # The ideal is exact for the mean of n / effective: the squares in it have a closed form, their inverse has not.
    inverse = np.concatenate([1 / run.effective_shards[:-1] for run in runs])
    assert inverse.mean() == pytest.approx(1 / runs[0].ideal_shards[0], rel=0.01)


def test_a_shard_that_idles_is_live_but_not_needed():
    # Shard 0: one batch at the start, one at the end; nine others between.
    sizes = np.full(10, 4)
    order = np.concatenate(([0, 1], np.arange(4, 40), [2, 3]))
    found = shuffle_quality(order, sizes, 2, idle=0.2)
    assert found.live_shards.tolist() == [1] + [2] * 18 + [1]
    assert found.needed_shards.tolist() == [1] * 20
    assert found.carried_shards.tolist() == [1] + [2, 1] * 9  # shard 0, and every second time another one
    assert found.fetches == 11
    assert shuffle_quality(order, sizes, 2, idle=1).needed_shards.tolist() == found.live_shards.tolist()


def test_idle_is_a_part_of_the_epoch():
    # Shard 0 is used in batches 0 and 5 of 10.
    order = [0, 4, 5, 6, 7, 1, 8, 9, 10, 11]
    fetches = [shuffle_quality(order, [4] * 3, 1, idle=idle).fetches for idle in (0.4, 0.5)]
    assert fetches == [4, 3]


def test_a_reversed_epoch_is_half_an_epoch_away():
    found = shuffle_quality(np.arange(N)[::-1], SIZES, BATCH, next_epoch=np.arange(N))
    mean, by_chance = N / 2, (N * N - 1) / (3 * N)
    assert found.file_displacement == pytest.approx(mean / by_chance, rel=1e-12)
    assert found.epoch_displacement == pytest.approx(mean / by_chance, rel=1e-12)


def test_near_counts_batches_apart():
    # Two shards take turns, batch by batch: pairs of one shard are 0, 2, 4 … batches apart.
    sizes = np.full(2, 20)
    order = np.arange(40).reshape(2, 5, 4).transpose(1, 0, 2).ravel()
    same = 2 * 20 * 19 / (40 * 39)
    together = 10 * 6
    found = [shuffle_quality(order, sizes, 4, near=near).same_shard_near for near in range(3)]
    pairs = [together, together + 9 * 16, together + 9 * 16 + 8 * 16]
    hits = [together, together, together + 8 * 16]
    assert found == pytest.approx([hit / (same * pair) for hit, pair in zip(hits, pairs, strict=True)])


def test_the_ends_are_judged_by_the_chance_of_pairs():
    # Nine batches with one sample of each shard, so no pair of one shard, then a batch of two samples.
    sizes = np.full(10, 11)
    full = np.arange(110).reshape(10, 11).T[:9].ravel()
    found = shuffle_quality(np.concatenate((full, [9, 20])), sizes, 10)
    assert found.effective_shards.tolist() == [10.0] * 9 + [2.0]
    assert found.first == found.last == 1
    found = shuffle_quality(np.concatenate((full, [9, 10])), sizes, 10)
    assert found.effective_shards[-1] == 1
    assert found.last == 0.5


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=8).filter(lambda sizes: sum(sizes) >= 2),
    st.integers(1, 9),
    st.integers(0, 3),
    st.randoms(use_true_random=False),
)
def test_pairs_counted_fast_are_pairs_counted_one_by_one(sizes, batch_size, near, random):
    total = sum(sizes)
    order, later = list(range(total)), list(range(total))
    random.shuffle(order)
    random.shuffle(later)
    order = order[: random.randint(2, total)]
    found = shuffle_quality(order, sizes, batch_size, next_epoch=later, near=near)
    shard = np.repeat(np.arange(len(sizes)), sizes)
    of = [shard[sample] for sample in order]
    batch = [place // batch_size for place in range(len(order))]
    pairs = [(i, j) for i in range(len(order)) for j in range(i)]
    same = [(i, j) for i, j in pairs if of[i] == of[j]]
    chance = sum(size * (size - 1) for size in sizes) / (total * (total - 1))

    def near_pairs(some, most):
        return sum(abs(batch[i] - batch[j]) <= most for i, j in some)

    for most, value in ((0, found.same_shard_together), (near, found.same_shard_near)):
        expected = chance * near_pairs(pairs, most)
        assert value == pytest.approx(near_pairs(same, most) / expected) if expected else math.isnan(value)
    if same:
        assert found.shard_spread == pytest.approx(np.mean([i - j for i, j in same]) / ((len(order) + 1) / 3))
    both = [later.index(sample) // batch_size for sample in order]
    assert found.fetches >= len(set(of))
    live = [
        sum(
            1
            for s in set(of)
            if of.index(s) // batch_size <= b <= (len(of) - 1 - of[::-1].index(s)) // batch_size
        )
        for b in range(batch[-1] + 1)
    ]
    assert found.live_shards.tolist() == live
    if len(order) == total:
        together = near_pairs(pairs, 0)
        later_batch = [place // batch_size for place in range(total)]
        later_together = sum(later_batch[i] == later_batch[j] for i, j in pairs)
        again = sum(batch[i] == batch[j] and both[i] == both[j] for i, j in pairs)
        expected = together * later_together / len(pairs)
        assert found.met_again == pytest.approx(again / expected) if expected else math.isnan(found.met_again)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"samples": [0, 1, 1]}, "sample 1 is given twice"),
        ({"samples": [0, 4]}, "ids from 0 to 4, but the shards hold samples 0 to 3"),
        ({"samples": [-1, 0]}, "ids from -1 to 0"),
        ({"samples": [0]}, "expected at least 2"),
        ({"samples": [0.0, 1.0]}, "samples: expected integers"),
        ({"next_epoch": [3, 3]}, "next_epoch: sample 3 is given twice"),
        ({"samples_per_shard": [5, -1]}, "none below 0"),
        ({"samples_per_shard": []}, "at least one number"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"near": -1}, "near=-1"),
        ({"idle": 0}, "idle=0"),
        ({"idle": float("nan")}, "idle=nan"),
    ],
)
def test_wrong_arguments_are_named(change, message):
    given = {"samples": [3, 2, 0, 1], "samples_per_shard": [2, 2], "batch_size": 2, **change}
    with pytest.raises(ValueError, match=message):
        shuffle_quality(
            given.pop("samples"), given.pop("samples_per_shard"), given.pop("batch_size"), **given
        )


def default_epoch(sizes, batch=256, seed=9176, epoch=0, shuffle="sliding"):
    walk = Walk(sizes, seed=seed, shuffle=shuffle)
    order = Order([walk])
    plan = BatchPlan(order.num_samples, batch)
    samples = order.rank_batches(plan, epoch, 0, plan.num_batches).samples
    return walk, shuffle_quality(samples, sizes, batch)


def sizes_of(shards, kind):
    if kind == "equal":
        return np.full(shards, 250)
    return np.random.default_rng(3).integers(50, 451, shards)


@pytest.mark.parametrize("kind", ["equal", "unequal"])
@pytest.mark.parametrize("shards", [4, 40, 400, 4000])
@pytest.mark.parametrize("epoch", [0, 3])
def test_the_ends_of_an_epoch_are_mixed_as_its_middle_is(shards, kind, epoch):
    walk, found = default_epoch(sizes_of(shards, kind), epoch=epoch)
    assert min(found.first, found.last) >= 0.7
    # Over the whole epoch, too, there is no hole.
    assert found.to_median.min() >= 0.7
    # What live_shards announces is what is needed, but for the shards that end and begin in one batch.
    assert found.live_shards.mean() <= walk.live_shards()
    assert found.live_shards.max() <= walk.live_shards() + 16
    # Hardly a shard waits for its second part, and none for long.
    assert found.fetches <= shards * 1.05


def in_use(walk, turn):
    """Shards of which some samples were given and some are to come, after each place of a pass."""
    places = np.arange(walk.num_samples)
    samples = walk.samples(walk.spots(turn * walk.num_samples, places))
    shard = np.repeat(np.arange(walk.samples_per_shard.size), walk.samples_per_shard)[samples]
    first = np.full(walk.samples_per_shard.size, walk.num_samples)
    last = np.full(walk.samples_per_shard.size, -1)
    np.minimum.at(first, shard, places)
    np.maximum.at(last, shard, places)
    return np.cumsum(np.bincount(first, minlength=places.size) - np.bincount(last, minlength=places.size))


@pytest.mark.parametrize("kind", ["equal", "unequal"])
@pytest.mark.parametrize(("shards", "per_shard"), [(40, 100), (400, 50), (1000, 40)])
@pytest.mark.parametrize(
    ("shuffle", "lanes", "window"),
    [
        ("sliding", None, None),
        ("sliding", 1, 16),
        ("sliding", 8, 4),
        ("sliding", 32, 3),
        ("sliding", 12, 5),
        ("sliding", 64, 4),
        ("shard", 64, None),
        ("block", None, None),
        ("block", 1, 16),
        ("block", 8, 8),
        ("block", 32, 3),
    ],
)
def test_no_more_shards_are_in_use_than_live_shards_says(shards, per_shard, kind, shuffle, lanes, window):
    sizes = np.full(shards, per_shard)
    if kind == "unequal":
        sizes = np.random.default_rng(1).integers(per_shard // 5, 2 * per_shard - per_shard // 5, shards)
    for seed in (1, 2):
        walk = Walk(sizes, seed=seed, shuffle=shuffle, lanes=lanes, window=window)
        most = max(in_use(walk, turn).max() for turn in (0, 1))
        assert most <= walk.live_shards()
        assert most >= 0.7 * walk.live_shards()

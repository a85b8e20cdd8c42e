import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamshard.order.keys import Key, words_of_each
from streamshard.order.permutation import SLICED_FROM, AheadOf, Bijection, permutation, permutations


@given(n=st.integers(0, 3000), seed=st.integers(0, 2**64 - 1))
@settings(max_examples=60, deadline=None)
def test_a_permutation_holds_each_number_once(n, seed):
    assert sorted(permutation(Key(3, seed), n).tolist()) == list(range(n))


@given(n=st.integers(2, 5000), seed=st.integers(0, 2**64 - 1))
@settings(max_examples=60, deadline=None)
def test_a_bijection_hits_each_number_once(n, seed):
    assert sorted(Bijection(Key(6, seed), n).span(0, n).tolist()) == list(range(n))


@pytest.mark.parametrize("n", [SLICED_FROM, SLICED_FROM + 1, 100_003, 1 << 17])
def test_a_large_bijection_hits_each_number_once(n):
    images = Bijection(Key(6, 1), n).span(0, n)
    assert np.array_equal(np.sort(images), np.arange(n))


def test_a_slice_of_a_bijection_is_the_slice_of_the_whole():
    walk = Bijection(Key(6, 9), 70_001)
    whole = walk.span(0, 70_001)
    assert np.array_equal(walk.span(33_000, 60_000), whole[33_000:60_000])
    scattered = np.array([70_000, 0, 5, 5, 33_333])
    assert np.array_equal(walk.at(scattered), whole[scattered])


@pytest.mark.parametrize("n", [10**12, (1 << 53) - 1, 1 << 53, (1 << 40) + 1])
def test_a_bijection_of_huge_ranges_stays_inside_and_repeats_nothing(n):
    images = Bijection(Key(6, 3), n).span(n - 5000, n)
    assert images.min() >= 0
    assert images.max() < n
    assert np.unique(images).size == 5000
    # Spread over the whole range: the mean of 5,000 uniform numbers is within 2 % of the middle.
    assert abs(float(images.astype(float).mean()) / n - 0.5) < 0.02


@pytest.mark.parametrize(
    "make", [permutation, lambda key, n: Bijection(key, n).span(0, n)], ids=["sort", "feistel"]
)
def test_all_orders_of_four_are_about_equally_frequent(make):
    seen = Counter(tuple(make(Key(3, seed), 4).tolist()) for seed in range(2400))
    assert set(seen) == set(itertools.permutations(range(4)))
    # 24 cells of 100 expected each: the 1-in-a-million point of chi-square with 23 degrees of freedom is 72.
    assert sum((count - 100) ** 2 / 100 for count in seen.values()) < 72


@pytest.mark.parametrize(
    "make", [permutation, lambda key, n: Bijection(key, n).span(0, n)], ids=["sort", "feistel"]
)
def test_neighbours_do_not_stay_neighbours(make):
    n = 100_000
    images = make(Key(3, 5), n)
    steps = np.abs(np.diff(images))
    assert (steps == 1).sum() < 20  # 2 expected
    assert abs(np.corrcoef(np.arange(n), images)[0, 1]) < 0.02


@pytest.mark.parametrize("changed", ["use", "seed", "stream", "turn", "place", "item"])
@pytest.mark.parametrize("value", [1, 1 << 32, (1 << 63) + 1])
def test_every_part_of_a_key_matters_in_both_its_words(changed, value):
    parts = {"use": 0, "seed": 0, "stream": 0, "turn": 0, "place": 0, "item": 0}
    one, other = Key(**parts), Key(**{**parts, changed: value})
    assert one.words(4).tolist() != other.words(4).tolist()


def test_keys_of_zeros_in_other_places_differ():
    # numpy.random.SeedSequence takes [7], [7, 0] and [7, 0, 0] for the same.
    keys = [Key(7, 0), Key(0, 7), Key(0, 0, 7), Key(0, 0, 0, 7), Key(0, 0, 0, 0, 7), Key(0, 0, 0, 0, 0, 7)]
    assert len({tuple(key.words(2).tolist()) for key in keys}) == len(keys)


def test_the_random_words_are_pinned():
    assert Key(1, 17, 2, 3, 4, 5).words(3).tolist() == [
        13203579967970289424,
        12397846399171844497,
        12597904114473950833,
    ]


def test_the_permutations_are_pinned():
    assert permutation(Key(3, 17), 12).tolist() == [9, 1, 4, 7, 10, 2, 8, 11, 5, 6, 3, 0]
    assert Bijection(Key(6, 17), 10**12).span(0, 4).tolist() == [
        595495100580,
        908514308629,
        390105989080,
        379694981040,
    ]


NUMBERS = st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 1, 2**32 - 1, 2**32, 2**63, 2**64 - 1]))


@given(st.lists(st.tuples(*[NUMBERS] * 6), max_size=5), st.integers(0, 70))
@settings(deadline=None)
def test_words_and_permutations_of_many_keys_are_those_of_each(parts, count):
    keys = [Key(*each) for each in parts]
    words = words_of_each(keys, count)
    assert (words.shape, words.dtype) == ((len(keys), count), np.uint64)
    assert words.tolist() == [key.words(count).tolist() for key in keys]
    found = permutations(keys, count)
    assert (found.shape, found.dtype) == ((len(keys), count), np.int64)
    assert found.tolist() == [permutation(key, count).tolist() for key in keys]


def test_many_words_begin_like_few():
    assert Key(1, 2).words(100)[:10].tolist() == Key(1, 2).words(10).tolist()


@pytest.mark.parametrize("steps", [[1] * 400, [700, 3, 900, 1], [5, 40_000, 5], [66_000]])
def test_spans_asked_for_in_turn_are_those_of_the_bijection(steps):
    bijection = Bijection(Key(6, 9), 66_000)
    ahead = AheadOf(bijection)
    begin = 0
    for step in steps:
        end = min(begin + step, bijection.n)
        assert ahead.span(begin, end).tolist() == bijection.span(begin, end).tolist()
        begin = end
    assert ahead.span(10, 12).tolist() == bijection.span(10, 12).tolist()
    assert ahead.span(65_999, 66_000).tolist() == bijection.span(65_999, 66_000).tolist()


def test_what_was_given_can_be_changed():
    ahead = AheadOf(Bijection(Key(6, 9), 70_000))
    ahead.span(0, 10)
    first = ahead.span(10, 20)
    first += 1
    assert ahead.span(10, 20).tolist() == Bijection(Key(6, 9), 70_000).span(10, 20).tolist()


def test_steps_that_differ_by_a_row_still_look_further_and_further_ahead(monkeypatch):
    bijection = Bijection(Key(6, 9), 100_000)
    asked: list[int] = []
    evaluate = bijection.span
    monkeypatch.setattr(
        bijection, "span", lambda begin, end: asked.append(end - begin) or evaluate(begin, end)
    )
    ahead = AheadOf(bijection)
    begin = 0
    for turn in range(40):
        end = begin + 2040 + turn % 3
        assert ahead.span(begin, end).tolist() == evaluate(begin, end).tolist()
        begin = end
    assert len(asked) < 9
    assert max(asked) == 1 << 14

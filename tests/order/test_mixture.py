"""Labels of several streams: every run of positions has the streams that the rule gives it, in any amount."""

import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamshard.order.mixing import RUN
from streamshard.order.mixture import Mixture
from tests.support.slow_order import SlowMixture

FEW = settings(max_examples=15, deadline=None)

shares = st.lists(st.integers(0, 400), min_size=1, max_size=9).filter(any)


@given(shares)
@FEW
def test_labels_are_those_of_the_rule_and_every_prefix_has_its_share(samples):
    mixture = Mixture(samples)
    labels = mixture.labels(0, mixture.total)
    slow = SlowMixture(samples, seed=0, epoch=0, permuted=False)
    assert labels.tolist() == [stream for stream, _ in slow.spots]
    counts = np.cumsum(labels[:, None] == np.arange(len(samples)), axis=0)
    share = np.arange(1, mixture.total + 1)[:, None] * np.array(samples) / mixture.total
    assert np.abs(counts - share).max() <= 1.5
    assert counts[-1].tolist() == samples


@given(shares, st.data())
@FEW
def test_any_part_of_the_labels_is_the_part_of_the_whole(samples, data):
    mixture = Mixture(samples)
    begin = data.draw(st.integers(0, mixture.total))
    end = data.draw(st.integers(begin, mixture.total))
    assert mixture.labels(begin, end).tolist() == mixture.labels(0, mixture.total)[begin:end].tolist()
    assert mixture.before(begin) == np.bincount(mixture.labels(0, begin), minlength=len(samples)).tolist()


def test_shares_of_1e12_positions_do_not_overflow():
    samples = [6 * 10**11, 3 * 10**11, 10**11]
    mixture = Mixture(samples)
    begin = 10**12 - 2 * RUN - 7
    labels = mixture.labels(begin, 10**12)
    left = [n - before for n, before in zip(samples, mixture.before(begin), strict=True)]
    assert np.bincount(labels, minlength=3).tolist() == left
    huge = Mixture([1 << 52, (1 << 52) - 1])
    assert np.abs(np.bincount(huge.labels(1 << 51, (1 << 51) + 5000)) - 2500).max() <= 1


@pytest.mark.parametrize("samples", [[0, 0], [3, -1]])
def test_shares_that_are_none_are_refused(samples):
    with pytest.raises(ValueError, match="at least > 0"):
        Mixture(samples)


def labels_by_the_rule(samples, begin, count):
    """Follow single positions from the root of the tree, in Python's integers."""
    nodes = [(n, stream, stream) for stream, n in enumerate(samples) if n]
    while len(nodes) > 1:
        light, heavy = (nodes.pop(nodes.index(min(nodes, key=lambda node: node[:2]))) for _ in range(2))
        if light[0] == heavy[0]:
            light, heavy = heavy, light
        nodes.append((light[0] + heavy[0], min(light[1], heavy[1]), (heavy, light)))
    found = []
    for position in range(begin, begin + count):
        node, p = nodes[0], position
        while not isinstance(node[2], int):
            total, _, (first, rest) = node
            taken = (p * first[0] + total // 2) // total
            is_first = ((p + 1) * first[0] + total // 2) // total > taken
            node, p = (first, taken) if is_first else (rest, p - taken)
        found.append(node[2])
    return found


@pytest.mark.parametrize(
    "samples",
    [
        [7 * 10**5] * 300,
        [3**i for i in range(30)],  # one branch below the other
        [1, 1, 2, 3, 5, 8, 13, 0, 10**9, 10**9 + 1],
        [10**13, 5, 10**12 + 1, 3 * 10**12],  # beyond what floats divide exactly in one go
        [(1 << 60) - 1, (1 << 60) + 1, 7],  # in integers, some positions at a time
        [0, 12_345, 0],
    ],
    ids=["alike", "deep", "unlike", "1e13", "2**61", "one"],
)
def test_few_and_many_positions_anywhere_have_the_labels_of_the_rule(samples):
    total = sum(samples)
    mixture = Mixture(samples)
    for begin in (0, total // 3, total - 1500):
        wanted = labels_by_the_rule(samples, begin, 1500)
        assert mixture.labels(begin, begin + 1500).tolist() == wanted
        assert mixture.labels(begin + 1000, begin + 1003).tolist() == wanted[1000:1003]
        counts = np.array(mixture.before(begin + 1500)) - mixture.before(begin)
        assert counts.tolist() == np.bincount(wanted, minlength=len(samples)).tolist()


@pytest.mark.parametrize("streams", [3, 1000])
def test_very_many_positions_at_once_have_the_labels_of_their_parts(streams):
    samples = [10**6 + 997 * stream % 10**5 for stream in range(streams)]
    mixture = Mixture(samples)
    begin = mixture.total // 7
    parts = [mixture.labels(place, place + 5000) for place in range(begin, begin + 70_000, 5000)]
    assert mixture.labels(begin, begin + 70_000).tolist() == np.concatenate(parts).tolist()


def test_going_on_and_going_back_give_what_a_fresh_mixture_does():
    samples = [90_000, 1, 40_000, 0, 25_000, 3]
    used = Mixture(samples)
    for begin, end in itertools.pairwise([0, 5000, 70_000, 70_001, 1000, 155_003, 4, 90_000]):
        low, high = sorted((begin, end))
        labels, counts = used.labels_and_counts(low, high)
        fresh = Mixture(samples).labels_and_counts(low, high)
        assert labels.tolist() == fresh[0].tolist()
        assert counts.tolist() == fresh[1].tolist()
    copy = pickle.loads(pickle.dumps(used))
    assert copy.labels(7, 5007).tolist() == used.labels(7, 5007).tolist()

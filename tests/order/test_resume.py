"""Going on from a state: nothing is lost or repeated within a pass, whatever may change has changed."""

import json
import re
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamshard.errors import StateError
from streamshard.order.epoch import BATCHINGS, Order
from streamshard.order.fixed import walk_of
from streamshard.order.position import State
from streamshard.order.resume import resume
from streamshard.order.timeline import Quotas, shared_out
from streamshard.order.walk import Walk
from tests.support.tiers import many

SETTINGS = {"shuffle_block_size": None}
SHUFFLES = ("sliding", "block", "shard", "full", "none")


@dataclass(frozen=True)
class Source:
    """A stream as a user has it: its name and its shards."""

    name: str
    sizes: tuple[int, ...]

    @property
    def samples(self):
        return sum(self.sizes)


class Run:
    """A run that reads batches of all ranks, is saved, and goes on; notes what was read of each stream."""

    def __init__(self, batching, shuffle):
        self.batching, self.shuffle = batching, shuffle
        self.read: dict[str, list[int]] = {}
        self.state = None
        self.walks: dict[str, Walk] = {}

    def go_on(self, sources, quotas, size, ranks, batches):
        """Read up to ``batches`` global batches with these streams, quotas and sizes; return the batches."""
        walks = [
            Walk(np.array(source.sizes), seed=5, stream=number, shuffle=self.shuffle)
            for number, source in enumerate(sources)
        ]
        names = [source.name for source in sources]
        prints = [{"layout": repr(source)} for source in sources]
        order = Order(walks, quotas, batching=self.batching)
        epoch = position = 0
        gone = ()
        if self.state is not None:
            saved = State.from_dict(json.loads(json.dumps(self.state)))
            resumed = resume(order, saved, settings=SETTINGS, names=names, fingerprints=prints)
            order, epoch, position, gone = resumed.order, resumed.epoch, resumed.position, resumed.gone
        for name, walk in zip(names, order.walks, strict=True):
            self.walks[name] = walk
        given = []
        while batches:
            plan = order.plan(epoch, position, global_batch_size=size, ranks=ranks)
            count = min(batches, plan.num_batches)
            parts = [order.rank_batches(plan, epoch, 0, count, 1, rank) for rank in range(ranks)]
            assert len({len(part.bounds) for part in parts}) == 1
            for number in range(count):
                batch = []
                for part in parts:
                    end = part.bounds[number + 1] - part.padding[number]
                    batch.append(part.samples[part.bounds[number] : end].tolist())
                given.append(batch)
            batches -= count
            last = plan.position_after(count)
            if batches:
                epoch, position = epoch + 1, 0
        self.state = State.of(
            order, plan, epoch, last, settings=SETTINGS, names=names, fingerprints=prints, gone=gone
        ).to_dict()
        firsts = np.cumsum([0] + [source.samples for source in sources])
        for batch in given:
            for sample in (sample for part in batch for sample in part):
                number = int(np.searchsorted(firsts, sample, side="right")) - 1
                self.read.setdefault(names[number], []).append(sample - int(firsts[number]))
        return given

    def check(self):
        """What was read of each stream is the beginning of its walk: pass after pass, each sample once."""
        for name, read in self.read.items():
            walk = self.walks[name]
            wanted = walk.samples(walk.spots(0, np.arange(len(read))))
            assert Counter(read) == Counter(wanted.tolist()), name
            whole = len(read) // walk.num_samples
            assert all(whole <= count <= whole + 1 for count in Counter(read).values())


POOL = [
    Source("a", (7, 3, 9, 9, 2)),
    Source("b", (5,) * 9),
    Source("c", (1,)),
    Source("d", (4, 0, 11, 6, 6, 6, 1)),
    Source("e", (30, 2)),
]


@st.composite
def quotas_for(draw, sources):
    if draw(st.booleans()):
        counts = draw(st.lists(st.integers(0, 60), min_size=len(sources), max_size=len(sources)).filter(any))
        return Quotas(tuple(counts))
    weights = draw(st.lists(st.integers(0, 9), min_size=len(sources), max_size=len(sources)).filter(any))
    weights = tuple(Fraction(weight) for weight in weights)
    size = draw(st.integers(1, 150))
    return Quotas(shared_out(size, weights), weights)


def run_a_chain(data, max_legs):
    run = Run(data.draw(st.sampled_from(BATCHINGS)), data.draw(st.sampled_from(SHUFFLES)))
    kept = data.draw(st.sampled_from(POOL))  # something must go on for a state to fit
    for _ in range(data.draw(st.integers(1, max_legs))):
        others = data.draw(st.lists(st.sampled_from([x for x in POOL if x != kept]), max_size=3, unique=True))
        sources = data.draw(st.permutations([kept, *others]))
        ranks = data.draw(st.integers(1, 4))
        size = ranks * data.draw(st.integers(1, 6))
        run.go_on(sources, data.draw(quotas_for(sources)), size, ranks, data.draw(st.integers(1, 12)))
        run.check()


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_each_stream_goes_on_from_its_own_cursor_whatever_changes(data):
    run_a_chain(data, 5)


@pytest.mark.slow
@many(150)
@given(st.data())
def test_each_stream_goes_on_from_its_own_cursor_in_many_chains(data):
    run_a_chain(data, 5)


def resumes_exactly(data, batching):
    shuffle = data.draw(st.sampled_from(SHUFFLES))
    sources = data.draw(st.lists(st.sampled_from(POOL), min_size=1, max_size=4, unique=True))
    quotas = data.draw(quotas_for(sources))
    if data.draw(st.booleans()) and batching in ("random", "stratified"):
        weights = [
            data.draw(st.lists(st.integers(0, 5), min_size=len(sources), max_size=len(sources)).filter(any))
            for _ in range(2)
        ]
        first, second = sorted(data.draw(st.lists(st.integers(1, 300), min_size=2, max_size=2, unique=True)))
        changes = ((first, tuple(map(Fraction, weights[0]))), (second, tuple(map(Fraction, weights[1]))))
        quotas = Quotas(quotas.per_epoch, quotas.weights or tuple(map(Fraction, quotas.per_epoch)), changes)
    ranks = data.draw(st.integers(1, 3))
    size = ranks * data.draw(st.integers(1, 6))
    total = data.draw(st.integers(2, 40))
    whole = Run(batching, shuffle)
    expected = whole.go_on(sources, quotas, size, ranks, total)
    whole.check()
    run = Run(batching, shuffle)
    got = []
    while len(got) < total:
        got += run.go_on(sources, quotas, size, ranks, data.draw(st.integers(1, total - len(got))))
    assert got == expected
    assert run.state == whole.state


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(BATCHINGS))
def test_a_run_that_changes_nothing_goes_on_as_if_it_had_not_stopped(data, batching):
    resumes_exactly(data, batching)


@pytest.mark.slow
@many(100)
@given(st.data(), st.sampled_from(BATCHINGS))
def test_many_runs_that_change_nothing_go_on_as_if_they_had_not_stopped(data, batching):
    resumes_exactly(data, batching)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(BATCHINGS))
def test_after_a_change_the_order_is_again_one_that_can_be_left_and_joined_anywhere(data, batching):
    sources = data.draw(st.permutations(POOL[:3]))
    size = 2 * data.draw(st.integers(1, 4))
    before, after = data.draw(quotas_for(sources)), data.draw(quotas_for(sources[:2]))
    runs = [Run(batching, "sliding") for _ in range(2)]
    leg = data.draw(st.integers(1, 9))
    for run in runs:
        run.go_on(sources, before, size, 2, leg)
    total = data.draw(st.integers(2, 30))
    expected = runs[0].go_on(sources[:2], after, size, 2, total)
    got = []
    while len(got) < total:
        got += runs[1].go_on(sources[:2], after, size, 2, data.draw(st.integers(1, total - len(got))))
    assert got == expected
    runs[1].check()


def test_a_stream_that_comes_back_goes_on_where_it_stopped():
    run = Run("random", "sliding")
    a, b = POOL[0], POOL[1]
    both, alone = Quotas((20, 20)), Quotas((20,))
    run.go_on([a, b], both, 5, 1, 4)
    run.go_on([a], alone, 5, 1, 9)
    assert len(run.state["gone"]) == 1
    run.go_on([b, a], both, 5, 1, 9)
    assert "gone" not in run.state
    run.check()


def test_without_weights_an_added_stream_joins_the_epoch_and_the_old_ones_end_it_once_each():
    run = Run("random", "sliding")
    a, b = POOL[0], POOL[1]
    run.go_on([a], Quotas((30,)), 5, 1, 2)
    rest = run.go_on([a, b], Quotas((30, 45)), 5, 1, 13)
    assert sorted(x for batch in rest for part in batch for x in part if x >= 30) == list(range(30, 75))
    assert Counter(run.read["a"]) == Counter(range(30))
    assert (run.state["epoch"], run.state["position"]) == (1, 0)


def test_with_weights_the_rest_of_the_epoch_is_shared_out_anew():
    run = Run("stratified", "sliding")
    sources = POOL[:2]
    weights = [(Fraction(9), Fraction(1)), (Fraction(1), Fraction(9))]
    run.go_on(sources, Quotas((90, 10), weights[0]), 10, 1, 5)
    assert [len(run.read[name]) for name in "ab"] == [45, 5]
    run.go_on(sources, Quotas((10, 90), weights[1]), 10, 1, 5)
    assert [len(run.read[name]) for name in "ab"] == [50, 50]
    assert (run.state["epoch"], run.state["position"]) == (1, 0)


def test_streams_may_be_named_later_and_are_then_known_by_name():
    walks = [Walk(np.array([5, 5]), seed=1)]
    order = Order(walks)
    plan = order.plan(0, 0, global_batch_size=2)
    prints = [{"layout": "x"}]
    saved = State.of(order, plan, 0, 4, settings={}, names=[None], fingerprints=prints)
    resumed = resume(order, saved, settings={}, names=["text"], fingerprints=prints)
    assert (resumed.epoch, resumed.position, resumed.notes) == (0, 4, ())


def pair(names, prints, **changed):
    walks = [Walk(np.array([5, 5]), seed=1, stream=n) for n in range(len(names))]
    return {"order": Order(walks), "names": names, "fingerprints": [{"layout": x} for x in prints], **changed}


def saved_of(names, prints):
    given = pair(names, prints)
    plan = given["order"].plan(0, 0, global_batch_size=2)
    return State.of(plan=plan, epoch=0, position=4, settings={}, **given)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (([None], "x"), ([None], "y"), r"stream 0 data \(layout\) was 'x' and is 'y'"),
        ((["t"], "x"), (["t"], "y"), r"stream 0 \(t\) data \(layout\) was 'x' and is 'y'"),
        (([None, None], "xy"), ([None, None], "xz"), r"stream 1 data .* give streams that were replaced"),
        ((["a", "b"], "xy"), (["c", "d"], "zw"), "name was 'a' and is 'c'"),
        ((["a", "b"], "xy"), (["a", "b"], "yx"), r"stream 0 \(a\) data"),
    ],
)
def test_other_data_is_refused(before, after, words):
    given = pair(*after)
    order = given.pop("order")
    with pytest.raises(StateError, match=words):
        resume(order, saved_of(*before), settings={}, **given)


@pytest.mark.parametrize(
    ("before", "after", "notes"),
    [
        (([None], "x"), ([None, None], "xy"), ["stream 1 is new"]),
        (
            ([None, None], "xy"),
            ([None], "y"),
            [r"stream 0 is no longer there; it goes on at its sample \d if"],
        ),
        ((["a", "b"], "xy"), (["a", "c"], "xz"), [r"stream 1 \(c\) is new", "stream 'b' is no longer there"]),
        (([None, None], "xy"), ([None, None], "yx"), ["mixed anew"]),
        (([None, None], "xx"), ([None, None], "xx"), []),
    ],
)
def test_streams_that_come_and_go_are_noted(before, after, notes):
    given = pair(*after)
    order = given.pop("order")
    text = "; ".join(resume(order, saved_of(*before), settings={}, **given).notes)
    for note in notes:
        assert re.search(note, text), text
    assert bool(text) is bool(notes)


def test_a_window_that_follows_from_shares_stays_and_one_that_was_asked_for_must_be_the_same():
    def order_of(window):
        return Order([Walk(np.full(40, 5), seed=1, lanes=2, window=window)])

    order, prints = order_of(4), [{"layout": "x"}]
    plan = order.plan(0, 0, global_batch_size=2)
    for asked, fits in ((None, True), (40, False)):
        own = {"shuffle_block_size": asked}
        saved = State.of(order, plan, 0, 4, settings=own, names=[None], fingerprints=prints)
        if fits:
            resumed = resume(order_of(8), saved, settings=own, names=[None], fingerprints=prints)
            assert resumed.order.walks[0].window == 4
        else:
            with pytest.raises(StateError, match="window was 4 and is 8"):
                resume(order_of(8), saved, settings=own, names=[None], fingerprints=prints)


def test_fixed_samples_cannot_change_in_a_run_but_go_on_in_it():
    sizes, prints = np.array([5, 5, 5]), [{"layout": "x"}]

    def order_of(samples):
        return Order([walk_of(sizes, samples, seed=1)], [samples])

    order = order_of(8)
    plan = order.plan(1, 0, global_batch_size=3)
    saved = State.of(order, plan, 1, 3, settings={}, names=[None], fingerprints=prints)
    again = resume(order_of(8), saved, settings={}, names=[None], fingerprints=prints)
    assert (again.epoch, again.position, again.order.splice) == (1, 3, None)
    with pytest.raises(StateError, match="sampling_method='fixed' takes the same samples"):
        resume(order_of(9), saved, settings={}, names=[None], fingerprints=prints)


@pytest.mark.parametrize(
    ("batching", "count", "scattered", "hashes"),
    [
        *((batching, 1000, True, "xxh64") for batching in BATCHINGS),
        *(
            ("device_per_stream", count, scattered, "xxh64")
            for count in (1, 31, 32)
            for scattered in (False, True)
        ),
        *(("random", count, False, "md5 xxh64") for count in (10, 31)),
        *(("random", count, True, "blake2b md5 sha1 sha256 xxh128 xxh64") for count in (3, 31, 100)),
    ],
)
def test_a_state_stays_small_and_survives_json(batching, count, scattered, hashes):
    samples = 400_000_000
    walks = [
        Walk(np.full(4, samples // 4), seed=2**64 - 1, stream=number, window=2, scattered=scattered)
        for number in range(count)
    ]
    order = Order(walks, batching=batching)
    epoch = 1_000_000
    plan = order.plan(epoch, 0, global_batch_size=2048, ranks=8)
    prints = [dict.fromkeys(["layout", *hashes.split()], f"{number:032x}") for number in range(count)]
    names = [f"s{number}" for number in range(count)]
    saved = State.of(
        order,
        plan,
        epoch,
        2048 * 100_000,
        settings={**SETTINGS, "batching_method": batching},
        names=names,
        fingerprints=prints,
    )
    text = json.dumps(saved.to_dict())
    assert len(text) <= 1024 + 96 * count
    assert State.from_dict(json.loads(text)) == saved
    changed = Order(walks, [samples] * (count - 1) + [samples - 5], batching=batching)
    resumed = resume(
        changed, saved, settings={**SETTINGS, "batching_method": batching}, names=names, fingerprints=prints
    )
    plan = resumed.order.plan(epoch, resumed.position, global_batch_size=2048, ranks=8)
    later = State.of(
        resumed.order,
        plan,
        epoch,
        resumed.position + 2048,
        settings={**SETTINGS, "batching_method": batching},
        names=names,
        fingerprints=prints,
    )
    assert later.begin > 0
    text = json.dumps(later.to_dict())
    assert len(text) <= 1024 + 96 * count
    assert State.from_dict(json.loads(text)) == later

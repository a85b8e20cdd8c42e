"""Chains of runs that change weights and streams on the way, and batches of one stream each."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamshard import StreamingDataLoader, World
from tests.support.chains import (
    FIRST,
    Case,
    ChangingLink,
    Library,
    Link,
    Source,
    changing_chains,
    orders,
    weighted_sources,
)
from tests.support.pretended_ranks import Part, read_part
from tests.support.tiers import TIMES

METHODS = ("random", "stratified", "per_stream", "device_per_stream")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    return Library(tmp_path_factory.mktemp("library"))


def check_changing_chain(library: Library, chain: list[ChangingLink]) -> None:
    """No sample of a stream is lost or repeated within its pass, whatever changes between a save and a load."""
    walks: dict[int, list[int]] = {}
    state: str | None = None
    here = Here()
    for number, (case, link) in enumerate(chain):
        loaders = library.ranks(case, link)
        alone = [library.loader(case, World(0, 1), {"global_batch_size": link.global_batch})]
        here.begin(loaders[0], state, case)
        steps = link.steps
        for _ in range(3):  # over the end of two epochs at most
            part = read_part(loaders, state=state, steps=steps)
            method = case.order["batching_method"]
            is_dealt = link.batch["remainder"] == "exact"  # the last batch, or several: to the ranks in turn
            if method != "device_per_stream" and not (method == "per_stream" and is_dealt):
                same = read_part(alone, state=state, steps=steps)
                how = sorted if is_dealt else list
                assert [how(step) for step in part.steps] == [how(step) for step in same.steps]
                assert part.state == same.state
            add(walks, part)
            check_walks(walks, case)
            here.add(part)
            state = part.state
            steps -= max(1, len(part.steps))
            if steps <= 0:
                break
        if number == len(chain) - 1:
            before = Here(here.epoch, here.total, here.given.copy())
            rest = library.ranks(case, link)
            part = read_part(rest, state=state)
            add(walks, part)
            before.check_rest(case, part)
            whole = read_part(rest)
            add(walks, whole)
            check_walks(walks, case)
            check_shares(case, whole.sequence)


@dataclass
class Here:
    """What the current epoch has been given: in all, and by each stream that has been there throughout."""

    epoch: int = 0
    total: int = 0
    given: Counter[int] = field(default_factory=Counter)

    def begin(self, loader: StreamingDataLoader, state: str | None, case: Case) -> None:
        """Note that a run goes on with other streams; it may have to begin the next epoch."""
        if state is not None:
            loader.load_state_dict(json.loads(state))
        self.move(loader.state_dict()["epoch"])
        for number in self.given.keys() - {source.number for source in case.sources}:
            del self.given[number]

    def add(self, part: Part) -> None:
        self.given.update(number // FIRST for number in part.sequence)
        self.total += len(part.sequence)
        self.move(json.loads(part.state)["epoch"])

    def move(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch, self.total, self.given = epoch, 0, Counter()

    def check_rest(self, case: Case, part: Part) -> None:
        """With its rest, an epoch has as much as the present weights ask for, unless it had more before."""
        counts = Counter(number // FIRST for number in part.sequence)
        if "epoch_size" in case.order or "proportion" in case.sources[0].weight:
            size = case.order.get("epoch_size") or sum(source.size for source in case.sources)
            assert self.total + len(part.sequence) == size
            return
        for source in case.sources:
            given = self.given[source.number]
            assert given + counts[source.number] == max(given, own_share(source))


def own_share(source: Source) -> int:
    """What a stream with ``choose``, ``repeat`` or no weight gives to an epoch."""
    share: int = source.weight.get("choose") or int(source.size * source.weight.get("repeat", 1))
    return share


def add(walks: dict[int, list[int]], part: Part) -> None:
    for number in part.sequence:
        walks.setdefault(number // FIRST, []).append(number % FIRST)


def check_walks(walks: dict[int, list[int]], case: Case) -> None:
    """Each sample of a stream was given as often as any other, or once more."""
    for source in case.sources:
        walk = walks.get(source.number, [])
        counts = Counter(walk)
        passes = len(walk) // source.size
        assert set(counts) <= set(range(source.size))
        assert all(passes <= counts[place] <= passes + 1 for place in range(source.size))


def check_shares(case: Case, numbers: list[int]) -> None:
    """The epoch after the last change is one of the present weights."""
    counts = Counter(number // FIRST for number in numbers)
    given_by = {source.number: source.weight.get("proportion", source.size) for source in case.sources}
    size = case.order.get("epoch_size")
    for source in case.sources:
        if size is None and "proportion" not in source.weight:
            assert counts[source.number] == own_share(source)
        else:
            whole = size or sum(each.size for each in case.sources)
            share = Fraction(whole * given_by[source.number], sum(given_by.values()))
            assert abs(counts[source.number] - share) < 1


@st.composite
def unmixed(draw: st.DrawFn) -> tuple[Case, list[Link]]:
    """Runs with batches of one stream each, and as much the same between them as their definition asks for."""
    sources, size = draw(weighted_sources())
    order = draw(orders(("per_stream", "device_per_stream")))
    if size is not None:
        order["epoch_size"] = size
    if order["batching_method"] == "per_stream":
        batch = {"global_batch_size": draw(st.integers(4, 12))}
        ranks = st.integers(1, 4)
    else:
        batch = {"batch_size": draw(st.integers(1, 5))}
        ranks = st.just(draw(st.integers(1, 4)))
    steps = st.integers(1, 9)
    chain = draw(st.lists(st.builds(lambda r, s: Link(r, batch, 0, s), ranks, steps), min_size=1, max_size=6))
    return Case(sources, order, []), chain


def check_unmixed(library: Library, case: Case, chain: list[Link]) -> None:
    """Each batch is of one stream, and a chain of runs gives what one run gives."""
    batch = {"global_batch_size": chain[0].global_batch}
    ranks = chain[0].ranks if case.order["batching_method"] == "device_per_stream" else 1
    uninterrupted = library.ranks(case, Link(ranks, batch, 0, 0))
    epochs = [read_part(uninterrupted) for _ in range(2)]
    check_walks_of_all(case, epochs)
    epoch, at = 0, 0
    state: str | None = None
    for number, link in enumerate(chain):
        steps = link.steps if number < len(chain) - 1 else 1 << 20
        loaders = library.ranks(case, link)
        while steps > 0 and epoch < 2:
            part = read_part(loaders, state=state if at or epoch else None, steps=steps)
            check_one_stream(case, part)
            assert part.steps == epochs[epoch].steps[at : at + len(part.steps)]
            at += len(part.steps)
            steps -= len(part.steps)
            state = part.state
            if at == len(epochs[epoch].steps):
                assert state == epochs[epoch].state
                epoch, at = epoch + 1, 0
            else:
                assert steps == 0
                assert json.loads(state)["epoch"] == epoch
            if steps > 0:
                loaders = library.ranks(case, link)
    assert epoch == 2


def check_walks_of_all(case: Case, epochs: list[Part]) -> None:
    walks: dict[int, list[int]] = {}
    for part in epochs:
        add(walks, part)
        check_walks(walks, case)
        check_shares(case, part.sequence)


def check_one_stream(case: Case, part: Part) -> None:
    units = part.steps
    if case.order["batching_method"] == "device_per_stream":
        units = [batch for batches in part.batches for batch in batches]
    assert all(len({number // FIRST for number in unit}) <= 1 for unit in units)
    assert len({len(batches) for batches in part.batches}) == 1


def run(count: int, cases: st.SearchStrategy[Any], check: Callable[[Any], None]) -> None:
    how = settings(
        max_examples=count, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
    )
    how(given(cases)(check))()


@pytest.mark.parametrize("method", METHODS)
def test_chains_that_change_weights_and_streams_lose_and_repeat_nothing(
    library: Library, method: str
) -> None:
    run(10, changing_chains([method]), lambda chain: check_changing_chain(library, chain))


def test_chains_with_batches_of_one_stream_go_on_as_if_never_stopped(library: Library) -> None:
    run(15, unmixed(), lambda drawn: check_unmixed(library, *drawn))


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_hundreds_of_chains_of_both_kinds(library: Library) -> None:
    run(round(60 * TIMES), changing_chains(METHODS), lambda chain: check_changing_chain(library, chain))
    run(round(40 * TIMES), unmixed(), lambda drawn: check_unmixed(library, *drawn))

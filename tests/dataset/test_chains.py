"""Random mixtures read by chains of runs in which everything changes that may change, against the plain list."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamshard import World
from tests.support.chains import FIRST, Case, Library, Link, cases, epoch_samples
from tests.support.pretended_ranks import Part, read_part
from tests.support.tiers import TIMES

# Chains may change the global batch so that nothing of a rest fills it.
pytestmark = pytest.mark.filterwarnings("ignore:remainder='drop' leaves nothing:UserWarning")

EPOCHS = 2


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    return Library(tmp_path_factory.mktemp("library"))


def plain_list(library: Library, case: Case) -> list[list[int]]:
    """Each epoch sample by sample, as one rank without interruption gives it."""
    loader = library.loader(case, World(0, 1), {"global_batch_size": 1})
    return [[number for batch in loader for number in batch] for _ in range(EPOCHS)]


def check_plain_list(case: Case, epochs: list[list[int]]) -> None:
    """Each stream gives its share to each epoch, and every sample of it once before any a second time."""
    num_samples = epoch_samples(case.sources, case.order.get("epoch_size"))
    assert [len(epoch) for epoch in epochs] == [num_samples] * EPOCHS
    for epoch in epochs:
        check_shares(epoch, exact_shares(case, num_samples))
    check_walks(case, [number for epoch in epochs for number in epoch])


def check_shares(numbers: list[int], shares: list[Fraction]) -> None:
    """Streams 0, 1, … give their shares, exactly where those are whole."""
    counts = Counter(number // FIRST for number in numbers)
    for stream, share in enumerate(shares):
        assert abs(counts[stream] - share) < 1
        assert share.denominator > 1 or counts[stream] == share


def check_walks(case: Case, numbers: list[int]) -> None:
    """Of each stream every sample comes once before any comes a second time; in order without a shuffle."""
    for source in case.sources:
        walk = [number % FIRST for number in numbers if number // FIRST == source.number]
        for begin in range(0, len(walk), source.size):
            turn = walk[begin : begin + source.size]
            assert len(set(turn)) == len(turn)
            assert set(turn) <= set(range(source.size))
            assert case.order["shuffle"] or turn == list(range(len(turn)))


def exact_shares(case: Case, num_samples: int) -> list[Fraction]:
    """What each stream should give to an epoch, before rounding."""
    sources = case.sources
    if "proportion" in sources[0].weight:
        whole = sum(source.weight["proportion"] for source in sources)
        return [Fraction(num_samples * source.weight["proportion"], whole) for source in sources]
    if "epoch_size" in case.order:
        whole = sum(source.size for source in sources)
        return [Fraction(num_samples * source.size, whole) for source in sources]
    return [
        Fraction(source.weight.get("choose") or int(source.size * source.weight.get("repeat", 1)))
        for source in sources
    ]


def check_same_part_each_epoch(case: Case, epochs: list[list[int]]) -> None:
    """With ``sampling_method="fixed"`` all epochs have the same samples, whole passes and a part of one."""
    num_samples = epoch_samples(case.sources, case.order.get("epoch_size"))
    check_shares(epochs[0], exact_shares(case, num_samples))
    assert all(Counter(epoch) == Counter(epochs[0]) for epoch in epochs)
    for source in case.sources:
        times = [epochs[0].count(source.number * FIRST + place) for place in range(source.size)]
        assert max(times) - min(times) <= 1


def check_mixture(case: Case, epochs: list[list[int]]) -> None:
    """Between two changes of ``mixture=`` each stream gives its share, from where it stood before."""
    num_samples = epoch_samples(case.sources, case.order.get("epoch_size"))
    assert [len(epoch) for epoch in epochs] == [num_samples] * EPOCHS
    run = [number for epoch in epochs for number in epoch]
    changes = case.order["mixture"]
    borders = {*range(0, len(run), num_samples), *(position for position, _ in changes), len(run)}
    for begin, end in itertools.pairwise(sorted(border for border in borders if border <= len(run))):
        weights = [source.size for source in case.sources]
        for position, changed in changes:
            if position <= begin:
                weights = list(changed.values())
        shares = [Fraction((end - begin) * weight, sum(weights)) for weight in weights]
        check_shares(run[begin:end], shares)
    check_walks(case, run)


Check = Callable[[Case, list[list[int]]], None]


def check_chain(library: Library, case: Case, check_list: Check = check_plain_list) -> None:
    """Every global batch is the next piece of the plain list, whatever reads it and wherever it was resumed."""
    epochs = plain_list(library, case)
    check_list(case, epochs)
    epoch = position = 0
    state: str | None = None
    for number, link in enumerate(case.links):
        is_last = number == len(case.links) - 1
        for part, alone in parts_of(library, case, link, state, is_last):
            check_part(part, link)
            check_same_order(part, alone, link)
            for step in part.steps:
                assert sorted(step) == sorted(epochs[epoch][position : position + len(step)])
                position += len(step)
                assert len(step) == link.global_batch or position == len(epochs[epoch])
            state = part.state
            reached = json.loads(state)
            if reached["epoch"] == epoch:
                assert reached["position"] == position
                continue
            left = len(epochs[epoch]) - position
            assert left == 0 or (link.batch["remainder"] == "drop" and left < link.global_batch)
            assert (reached["epoch"], reached["position"]) == (epoch + 1, 0)
            epoch, position = epoch + 1, 0
            if epoch == EPOCHS:
                return
    assert (epoch, position) == (EPOCHS, 0)


def parts_of(
    library: Library, case: Case, link: Link, state: str | None, to_the_end: bool
) -> Iterator[tuple[Part, Part]]:
    """What a run gives, epoch by epoch, beside what one rank gives from the same state with the same batches."""
    loaders = library.ranks(case, link)
    batch = {"global_batch_size": link.global_batch, "remainder": link.batch["remainder"]}
    alone = [library.loader(case, World(0, 1), batch)]
    steps = None if to_the_end else link.steps
    while steps is None or steps > 0:
        part = read_part(loaders, state=state, steps=steps)
        yield part, read_part(alone, state=state, steps=steps)
        if steps is not None:
            steps -= max(1, len(part.steps))
        state = None


def check_part(part: Part, link: Link) -> None:
    remainder = link.batch["remainder"]
    counts = [len(batches) for batches in part.batches]
    pads = [len(pad) for rank in part.padding for pad in rank]
    assert max(counts) - min(counts) <= (remainder == "exact")
    assert sum(pads) < link.ranks
    assert remainder == "pad" or not any(pads)
    for step in range(max(counts)):
        sizes = [len(rank[step]) for rank in part.batches if step < len(rank)]
        assert max(sizes) - min(sizes) <= 1


def check_same_order(part: Part, alone: Part, link: Link) -> None:
    assert part.state == alone.state
    assert len(part.steps) == len(alone.steps)
    for step, expected in zip(part.steps, alone.steps, strict=True):
        if link.batch["remainder"] == "exact" and len(step) < link.global_batch:
            assert sorted(step) == sorted(expected)  # dealt to the ranks in turn
        else:
            assert step == expected


def examples(count: int) -> Any:
    return settings(
        max_examples=count, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
    )


def run(count: int, check: Callable[[Case], None], **arguments: Any) -> None:
    examples(count)(given(cases(**arguments))(check))()


def fixed(case: Case) -> Case:
    return case._replace(order={**case.order, "sampling_method": "fixed"})


@st.composite
def scheduled(draw: st.DrawFn) -> Case:
    """A case whose weights change at some positions of the run."""
    case = draw(cases())
    sources = [source._replace(weight={}) for source in case.sources]
    num_samples = epoch_samples(sources, case.order.get("epoch_size"))
    positions = draw(st.lists(st.integers(0, EPOCHS * num_samples), min_size=1, max_size=3, unique=True))
    mixture = []
    for position in sorted(positions):
        weights = draw(st.lists(st.integers(0, 9), min_size=len(sources), max_size=len(sources)).filter(any))
        mixture.append((position, dict(enumerate(weights))))
    links = [
        link._replace(batch={**link.batch, "remainder": "pad"}) if link.global_batch > num_samples else link
        for link in case.links
    ]
    return Case(sources, {**case.order, "mixture": mixture}, links)


def test_any_chain_of_runs_reads_the_plain_list(library: Library) -> None:
    run(60, lambda case: check_chain(library, case))


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_hundreds_of_chains_of_runs_read_the_plain_list(library: Library) -> None:
    run(round(150 * TIMES), lambda case: check_chain(library, case))


def test_any_chain_reads_the_plain_list_of_the_same_part_of_the_streams(library: Library) -> None:
    run(15, lambda case: check_chain(library, fixed(case), check_same_part_each_epoch))


def test_any_chain_reads_the_plain_list_of_a_mixture_that_changes(library: Library) -> None:
    examples(15)(given(scheduled())(lambda case: check_chain(library, case, check_mixture)))()


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_many_chains_read_the_plain_list_of_fixed_and_of_changing_mixtures(library: Library) -> None:
    run(round(40 * TIMES), lambda case: check_chain(library, fixed(case), check_same_part_each_epoch))
    examples(round(50 * TIMES))(given(scheduled())(lambda case: check_chain(library, case, check_mixture)))()


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_chains_of_runs_with_workers_read_the_plain_list(library: Library) -> None:
    run(4, lambda case: check_chain(library, case), workers=(0, 2), most_ranks=2, most_links=3)

"""Random mixtures read by chains of runs in which everything changes that may change, against the plain list."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from streamshard import World
from tests.support.chains import FIRST, Case, Library, Link, cases, epoch_samples
from tests.support.pretended_ranks import Part, read_part

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
    walks: list[list[int]] = [[] for _ in case.sources]
    for epoch in epochs:
        counts = Counter(number // FIRST for number in epoch)
        for stream, share in enumerate(exact_shares(case, num_samples)):
            assert abs(counts[stream] - share) < 1
            assert share.denominator > 1 or counts[stream] == share
        for number in epoch:
            walks[number // FIRST].append(number)
    for stream, (walk, source) in enumerate(zip(walks, case.sources, strict=True)):
        everything = list(range(stream * FIRST, stream * FIRST + source.size))
        for begin in range(0, len(walk), source.size):
            turn = walk[begin : begin + source.size]
            assert len(set(turn)) == len(turn)
            assert set(turn) <= set(everything)
            if not case.order["shuffle"]:
                assert turn == everything[: len(turn)]


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


def check_chain(library: Library, case: Case) -> None:
    """Every global batch is the next piece of the plain list, whatever reads it and wherever it was resumed."""
    epochs = plain_list(library, case)
    check_plain_list(case, epochs)
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


def test_any_chain_of_runs_reads_the_plain_list(library: Library) -> None:
    run(60, lambda case: check_chain(library, case))


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_thousand_chains_of_runs_read_the_plain_list(library: Library) -> None:
    run(1000, lambda case: check_chain(library, case))


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_chains_of_runs_with_workers_read_the_plain_list(library: Library) -> None:
    run(6, lambda case: check_chain(library, case), workers=(0, 2), most_ranks=2, most_links=3)

"""Random datasets, worlds and chains of resumes against the plain list of samples."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.pretended_ranks import Part, read_part, world_of, write_numbers
from tests.support.tiers import many


class Link(NamedTuple):
    """One run of a chain."""

    ranks: int
    global_batch: int
    steps: int


class Case(NamedTuple):
    """A dataset, how it is walked, and the runs that walk it."""

    sizes: list[int]
    order: dict[str, Any]
    links: list[Link]


@st.composite
def links(draw: st.DrawFn, most: int) -> Link:
    ranks = draw(st.integers(1, 9))
    return Link(ranks, draw(st.integers(ranks, max(ranks, most))), draw(st.integers(0, 8)))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    sizes = draw(st.lists(st.integers(1, 12), min_size=1, max_size=14))
    order: dict[str, Any] = {"shuffle": draw(st.booleans()), "shuffle_seed": draw(st.integers(0, 2**64 - 1))}
    if order["shuffle"]:
        order["shuffle_algo"] = draw(st.sampled_from(["sliding", "block", "shard", "full", "py1e", "py1br"]))
        order["num_canonical_nodes"] = draw(st.none() | st.integers(1, 9))
        order["shuffle_block_size"] = draw(st.none() | st.integers(1, 60))
    if draw(st.integers(0, 3)) == 0:
        order["epoch_size"] = draw(st.integers(1, 2 * sum(sizes)))
    chain = draw(st.lists(links(min(40, sum(sizes) + 9)), min_size=1, max_size=5))
    return Case(sizes, order, chain)


def check_chain(case: Case, remainder: str) -> None:
    num_samples = case.order.get("epoch_size", sum(case.sizes))
    with tempfile.TemporaryDirectory() as name:
        directory = write_numbers(Path(name), case.sizes)
        whole = read_part(world_of(directory, 1, global_batch_size=1, **case.order)).sequence
        check_epoch(whole, sum(case.sizes), num_samples, case.order["shuffle"])
        seen: list[int] = []
        state: str | None = None
        for number, link in enumerate(case.links):
            last = number == len(case.links) - 1
            loaders = world_of(
                directory, link.ranks, global_batch_size=link.global_batch, remainder=remainder, **case.order
            )
            if last or link.steps:
                part = read_part(loaders, state=state, steps=None if last else link.steps)
                check_part(part, link, remainder)
                seen += part.sequence
                state = part.state
            if state is not None and json.loads(state)["epoch"] == 1:
                break
        assert Counter(seen) == Counter(whole)
        assert state is not None
        assert (json.loads(state)["epoch"], json.loads(state)["position"]) == (1, 0)


def check_epoch(sequence: list[int], available: int, num_samples: int, shuffled: bool) -> None:
    assert len(sequence) == num_samples
    for begin in range(0, num_samples, available):  # epoch 0 begins with pass 0
        turn = sequence[begin : begin + available]
        assert len(set(turn)) == len(turn)
        assert set(turn) <= set(range(available))
        if not shuffled:
            assert turn == list(range(len(turn)))


def check_part(part: Part, link: Link, remainder: str) -> None:
    counts = [len(batches) for batches in part.batches]
    pads = [len(pad) for rank in part.padding for pad in rank]
    assert max(counts) - min(counts) <= (remainder == "exact")
    assert sum(pads) < link.ranks
    assert remainder == "pad" or not any(pads)
    for step in range(max(counts)):
        sizes = [len(rank[step]) for rank in part.batches if step < len(rank)]
        assert max(sizes) - min(sizes) <= 1
        assert sum(sizes) <= link.global_batch
    assert all(len(step) == link.global_batch for step in part.steps[:-1])


def check_drop(case: Case) -> None:
    """Full batches only, the same on all ranks, and a prefix of what another remainder gives."""
    num_samples = case.order.get("epoch_size", sum(case.sizes))
    link = case.links[0]
    if num_samples < link.global_batch:
        return
    with tempfile.TemporaryDirectory() as name:
        directory = write_numbers(Path(name), case.sizes)
        one = read_part(world_of(directory, 1, global_batch_size=link.global_batch, **case.order))
        many = read_part(
            world_of(directory, link.ranks, global_batch_size=link.global_batch, drop_last=True, **case.order)
        )
        assert many.steps == one.steps[: num_samples // link.global_batch]
        assert {len(rank) for rank in many.batches} == {num_samples // link.global_batch}
        assert json.loads(many.state)["epoch"] == 1


def check_one_sequence(case: Case) -> None:
    """With one global batch, all worlds of a chain give the sequence of a run that was never interrupted."""
    size = max(link.global_batch for link in case.links)
    with tempfile.TemporaryDirectory() as name:
        directory = write_numbers(Path(name), case.sizes)
        how = {"global_batch_size": size, **case.order}
        one = world_of(directory, 1, **how)
        expected = [read_part(one).steps for _ in range(2)]
        got: list[list[int]] = []
        state = None
        for link in [*case.links[:-1], case.links[-1]._replace(steps=1000)]:
            if not link.steps:
                continue
            loaders = world_of(directory, link.ranks, **how)
            part = read_part(loaders, state=state, steps=link.steps)
            got += part.steps
            state = part.state
            if json.loads(state)["epoch"]:
                break
        assert got == expected[0]
        assert read_part(world_of(directory, 3 if size >= 3 else 1, **how), state=state).steps == expected[1]


quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
thorough = many(120)

CHECKS: list[Callable[[Case], None]] = [
    lambda case: check_chain(case, "pad"),
    lambda case: check_chain(case, "exact"),
    check_drop,
    check_one_sequence,
]
names = pytest.mark.parametrize("check", CHECKS, ids=["pad", "exact", "drop", "one-sequence"])


@names
def test_any_chain_of_worlds_is_the_plain_list(check: Callable[[Case], None]) -> None:
    quick(given(cases())(check))()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@names
def test_many_chains_of_worlds_are_the_plain_list(check: Callable[[Case], None]) -> None:
    thorough(given(cases())(check))()


@quick
@given(case=cases(), taken=st.integers(0, 60), more=st.integers(0, 30))
def test_a_loop_over_the_dataset_goes_on_from_any_sample(case: Case, taken: int, more: int) -> None:
    link = case.links[0]
    with tempfile.TemporaryDirectory() as name:
        directory = write_numbers(Path(name), case.sizes)

        def dataset() -> Any:
            loaders = world_of(directory, link.ranks, global_batch_size=link.global_batch, **case.order)
            return loaders[-1].dataset

        whole = dataset()
        expected = [[sample["number"] for sample in whole] for _ in range(2)]
        got = []
        state = dataset().state_dict()
        for steps in (taken, more, None):
            part = dataset()
            part.load_state_dict(json.loads(json.dumps(state)))
            if steps != 0:
                got += [sample["number"] for sample in itertools.islice(part, steps)]
            state = part.state_dict()
            if state["epoch"]:
                break
        assert got == expected[0]
        part = dataset()
        part.load_state_dict(state)
        assert [sample["number"] for sample in part] == expected[1]

"""``StreamingDataset.where`` says what loaders then really give."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from streamshard import Stream, StreamingDataLoader, StreamingDataset, World
from streamshard.dataset.whereabouts import Whereabouts
from streamshard.order.fixed import FixedWalk
from tests.support.pretended_ranks import numbers, read_part, write_numbers

METHODS = ["random", "stratified", "per_stream", "device_per_stream"]
SIZES = {"web": [10] * 7, "code": [4, 7, 1, 9], "math": [6, 6, 6]}
FIRST = {"web": 0, "code": 1000, "math": 2000}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("where")
    found = {}
    for name, sizes in SIZES.items():
        (root / name).mkdir()
        found[name] = write_numbers(root / name, sizes, first=FIRST[name])
    return found


Make = Callable[..., list[StreamingDataLoader]]


@pytest.fixture(scope="module")
def ranks_of(places: dict[str, Path]) -> Make:
    """Make the loaders of all ranks over streams with these weights."""

    def make(ranks: int, weights: dict[str, float], *, workers: int = 0, **arguments: Any) -> Any:
        streams = [Stream(local=places[name], name=name, proportion=w) for name, w in weights.items()]
        settings = {"shuffle": True, "shuffle_seed": 5, "batch_size": 3, "epoch_size": 95, **arguments}
        return [
            StreamingDataLoader(
                StreamingDataset(streams=streams, world=World(rank, ranks), **settings),
                num_workers=workers,
                collate_fn=numbers,
            )
            for rank in range(ranks)
        ]

    return make


def listed(found: Whereabouts, rank: int, *, padding: bool) -> list[list[int]]:
    """The numbers of one rank's batches, made of stream, shard and row alone."""
    batches: list[list[int]] = []
    for sample in found.samples:
        if sample.rank != rank:
            continue
        while len(batches) <= sample.batch:
            batches.append([])
        if sample.is_padding == padding:
            name = sample.stream_name or ""
            before = sum(SIZES[name][: sample.shard_number])
            assert sample.shard == f"shard.{sample.shard_number:05d}.mds"
            batches[sample.batch].append(FIRST[name] + before + sample.row)
    return batches


def check(loaders: Sequence[StreamingDataLoader], state: str | None = None) -> str:
    """Compare what `where` says of the rest of an epoch with what the loaders then give; return the end's state."""
    said = []
    for loader in loaders:
        if state is not None:
            loader.load_state_dict(json.loads(state))
        said.append(loader.dataset.where(num_samples=10**6))
    assert all(each == said[0] for each in said)  # every rank can ask, and hears the same
    here = json.loads(json.dumps(loaders[0].state_dict()))
    found = said[0]
    assert (found.epoch, found.position) == (here["epoch"], here["position"])
    cursor = here["columns"].index("cursor")
    assert [stream.cursor for stream in found.streams] == [row[cursor] for row in here["streams"]]
    assert [stream.cursor for stream in found.streams] == [
        stream.pass_number * stream.num_samples + stream.place_in_pass for stream in found.streams
    ]
    assert sum(stream.taken for stream in found.streams) == found.position
    read = read_part(loaders)
    for rank in range(len(loaders)):
        assert listed(found, rank, padding=False) == read.batches[rank]
        assert listed(found, rank, padding=True) == read.padding[rank]
    for sample in found.samples:
        assert loaders[0].dataset[sample.sample]["number"] == FIRST[sample.stream_name or ""] + (
            sum(SIZES[sample.stream_name or ""][: sample.shard_number]) + sample.row
        )
    positions = [sample.position for sample in found.samples if not sample.is_padding]
    assert sorted(each for each in positions if each is not None) == list(
        range(found.position, found.epoch_size - found.left_out)
    )
    assert all((sample.position is None) == sample.is_padding for sample in found.samples)
    return read.state


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("method", METHODS)
def test_it_says_what_the_loaders_give_from_the_start_and_after_a_resume_under_other_weights(
    ranks_of: Make, method: str, ranks: int
) -> None:
    first = ranks_of(ranks, {"web": 5, "code": 3}, batching_method=method)
    check(first)
    begun = ranks_of(ranks, {"web": 5, "code": 3}, batching_method=method)
    state = read_part(begun, steps=3).state
    again = ranks_of(ranks, {"web": 1, "math": 2, "code": 3}, batching_method=method, batch_size=4)
    check(again, check(again, state))


@pytest.mark.parametrize(
    "method", [METHODS[0], *(pytest.param(m, marks=pytest.mark.slow) for m in METHODS[1:])]
)
def test_it_says_what_loaders_with_workers_give(ranks_of: Make, method: str) -> None:
    state = read_part(ranks_of(2, {"web": 5, "code": 3}, batching_method=method), steps=5).state
    check(ranks_of(2, {"web": 2, "code": 3}, workers=2, batching_method=method), state)


@pytest.mark.filterwarnings("ignore:remainder='drop' leaves out")
@pytest.mark.parametrize("remainder", ["drop", "exact"])
@pytest.mark.parametrize("method", METHODS)
def test_the_last_batch_by_every_rule(ranks_of: Make, method: str, remainder: str) -> None:
    loaders = ranks_of(3, {"web": 5, "code": 3}, batching_method=method, remainder=remainder)
    found = loaders[0].dataset.where(num_samples=10**6)
    assert bool(found.left_out) == (remainder == "drop")
    for rank, batches in enumerate(read_part(loaders).batches):
        assert listed(found, rank, padding=False) == batches


def test_a_rank_counts_its_own_batches_where_exact_gives_it_no_part(ranks_of: Make) -> None:
    weights = {"web": 1, "code": 1, "math": 1}
    loaders = ranks_of(3, weights, batching_method="per_stream", remainder="exact", epoch_size=30)
    found = loaders[0].dataset.where(num_samples=10**6)
    assert {each.rank: each.batch for each in found.samples} == {0: 3, 1: 3, 2: 3}
    for rank, batches in enumerate(read_part(loaders).batches):
        assert listed(found, rank, padding=False) == batches


def test_fixed_sampling_counts_the_part_of_an_epoch_as_a_pass(places: dict[str, Path]) -> None:
    streams = [Stream(local=places["code"], name="code", repeat=1.5)]
    dataset = StreamingDataset(
        streams=streams, shuffle=True, batch_size=4, sampling_method="fixed", world=World(0, 1)
    )
    walk = dataset._states.order.walks[0]
    assert isinstance(walk, FixedWalk)
    begins = [walk.pass_of(index)[0] for index in range(93)]
    assert [walk.pass_number(index) for index in range(93)] == [sorted(set(begins)).index(b) for b in begins]
    found = dataset.where(23, epoch=2)
    assert (found.streams[0].pass_number, found.streams[0].place_in_pass) == (5, 2)
    assert (found.streams[0].pass_size, found.streams[0].num_samples) == (10, 21)
    dataset.set_epoch(2)
    loader = StreamingDataLoader(dataset, collate_fn=numbers)
    assert listed(dataset.where(num_samples=99), 0, padding=False) == list(loader)


def test_where_it_stands_by_default(ranks_of: Make) -> None:
    [loader] = ranks_of(1, {"web": 5, "code": 3})
    dataset = loader.dataset
    assert (dataset.where().epoch, dataset.where().position) == (0, 0)
    batches = iter(loader)
    given = [next(batches) for _ in range(2)]
    state = loader.state_dict()
    # Under way: by default what the next iteration begins with, with a position that of the epoch under way.
    assert (dataset.where().epoch, dataset.where().position) == (1, 0)
    there = dataset.where(state["position"])
    assert (there.epoch, there.position, there.percent) == (0, 6, pytest.approx(600 / 95))
    assert listed(there, 0, padding=False) == [next(batches)]
    assert listed(dataset.where(0, num_samples=4), 0, padding=False) == given
    assert listed(dataset.where(0, num_samples=3), 0, padding=False) == given[:1]
    assert dataset.where(epoch=3).position == 0
    end = dataset.where(95)
    assert (end.epoch, end.position) == (1, 0)
    assert loader.state_dict()["position"] == 9  # asking changed nothing
    dataset.load_state_dict(state)
    assert dataset.where() == there


def test_ranks_that_read_the_same_count_as_one(places: dict[str, Path]) -> None:
    dataset = StreamingDataset(local=places["web"], batch_size=2, world=World(3, 6), replication=2)
    found = dataset.where()
    assert (found.ranks, found.global_batch_size) == (3, 6)
    assert [(each.rank, each.sample) for each in found.samples] == [
        (0, 0), (0, 1), (1, 2), (1, 3), (2, 4), (2, 5),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"position": 96}, "position=96: epoch 0 has 95 samples; expected a position from 0 to 95"),
        ({"position": -1}, "position=-1: expected a whole number from 0"),
        ({"position": 1.5}, "position=1.5"),
        ({"position": True}, "position=True"),
        ({"epoch": -1}, "epoch=-1"),
        ({"epoch": 2**60}, "epoch="),
        ({"num_samples": 0}, "num_samples=0"),
        ({"position": 10**40, "epoch": 7}, "epoch 7 has 95 samples"),
    ],
)
def test_what_is_not_in_the_epoch_is_refused_by_name(
    ranks_of: Make, arguments: dict[str, Any], message: str
) -> None:
    [loader] = ranks_of(1, {"web": 5, "code": 3})
    with pytest.raises(ValueError, match=message):
        loader.dataset.where(**arguments)


def test_a_far_position_of_a_far_epoch(ranks_of: Make) -> None:
    [loader] = ranks_of(1, {"web": 5, "code": 3})
    found = loader.dataset.where(94, epoch=2**50)
    assert len(found.samples) == 1
    assert json.loads(json.dumps(found.to_json()))["samples"][0]["position"] == 94


def test_the_text_is_for_people_and_fits_a_screen(places: dict[str, Path]) -> None:
    streams = [Stream(local=places["web"], name="w\x1b[2J"), *[Stream(local=places["code"])] * 30]
    dataset = StreamingDataset(streams=streams, batch_size=20, world=World(0, 5), shuffle=True)
    found = dataset.where(100)
    text = str(found)
    assert "\x1b" not in text
    assert len(text.splitlines()) < 80
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0] == "epoch 0, position 100 of 700 (14.3 %): 6 batches of 100 samples to come on 5 ranks"
    assert "and 11 more streams" in lines
    assert "and 60 more in .samples" in lines
    first = next(each for each in found.samples if each.rank == 4)
    name = "w\\x1b[2J" if first.stream == 0 else str(first.stream)
    row = f"4 0 {first.position} {first.sample} {name} {first.shard} {first.row}"
    assert row in lines
    web = found.streams[0]
    assert f"w\\x1b[2J 70 {web.cursor} 0 {web.cursor} of 70 {web.taken} {places['web']}" in lines


def test_a_part_that_is_left_out_to_the_end_is_said(places: dict[str, Path]) -> None:
    dataset = StreamingDataset(local=places["web"], batch_size=32, remainder="drop", world=World(0, 1))
    text = str(dataset.where(64))
    assert "0 batches of 32 samples to come on 1 rank, 6 samples left out" in text
    assert text.endswith("no batch of this epoch is left")

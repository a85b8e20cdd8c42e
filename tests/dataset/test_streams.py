"""Several streams in one dataset: exact sizes, even use, one sequence for all worlds, states."""

from __future__ import annotations

import collections
import copy
import itertools
from pathlib import Path

import pytest

from streamshard import MDSWriter, Stream, StreamingDataLoader, StreamingDataset, World
from streamshard.errors import FormatError, StateError
from tests.support.pretended_ranks import numbers, write_numbers


@pytest.fixture
def places(tmp_path: Path) -> list[Path]:
    """Three directories of 100, 100 and 40 samples, numbered on from 0, 1000 and 2000."""
    sizes = ([10] * 10, [7] * 14 + [2], [20, 20])
    return [
        write_numbers(tmp_path / str(number), size, first=1000 * number) for number, size in enumerate(sizes)
    ]


def dataset_of(streams: list[Stream], rank: int = 0, ranks: int = 1, **arguments: object) -> StreamingDataset:
    arguments = {"shuffle": True, "shuffle_seed": 3, "batch_size": 8, **arguments}
    return StreamingDataset(streams=streams, world=World(rank, ranks), **arguments)  # type: ignore[arg-type]


def epoch_of(dataset: StreamingDataset, workers: int = 0) -> list[int]:
    loader = StreamingDataLoader(dataset, num_workers=workers, collate_fn=numbers)
    return [number for batch in loader for number in batch]


def by_stream(seen: list[int]) -> collections.Counter[int]:
    return collections.Counter(number // 1000 for number in seen)


def test_streams_without_weights_give_each_sample_once(places):
    seen = epoch_of(dataset_of([Stream(local=place) for place in places]))
    assert sorted(seen) == [*range(100), *range(1000, 1100), *range(2000, 2040)]


def test_b118_proportions_of_an_epoch_size_are_exact(places):
    streams = [Stream(local=places[0], proportion=0.9), Stream(local=places[1], proportion=0.1)]
    dataset = dataset_of(streams, epoch_size=200)
    assert dataset.epoch_size == 200
    assert by_stream(epoch_of(dataset)) == {0: 180, 1: 20}


def test_b119_a_small_stream_repeats_evenly_and_a_large_one_does_not(tmp_path):
    small, large = write_numbers(tmp_path / "a", [10]), write_numbers(tmp_path / "b", [10] * 10, first=1000)
    streams = [Stream(local=small, proportion=0.5), Stream(local=large, proportion=0.5)]
    dataset = dataset_of(streams, epoch_size=100)
    times = collections.Counter(epoch_of(dataset))
    assert {times[number] for number in range(10)} == {5}
    assert sum(number >= 1000 for number in times) == 50
    assert max(times[number] for number in range(1000, 1100)) == 1
    # The second epoch goes on where the first one stopped: the other half of the large stream.
    again = {number for number in epoch_of(dataset) if number >= 1000}
    assert again == set(range(1000, 1100)) - set(times)


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
def test_b103_a_stream_of_one_sample_finishes_beside_a_large_one(tmp_path):
    one, large = write_numbers(tmp_path / "a", [1]), write_numbers(tmp_path / "b", [100], first=1000)
    seen: list[int] = []
    for rank in range(2):
        dataset = dataset_of([Stream(local=one), Stream(local=large)], rank, 2, remainder="exact")
        seen += epoch_of(dataset, workers=4)
    assert sorted(seen) == [0, *range(1000, 1100)]


@pytest.mark.parametrize("batching", ["random", "stratified"])
def test_one_sequence_for_every_world_and_worker_count(places, batching):
    streams = [
        Stream(local=places[0], repeat=1.5),
        Stream(local=places[1], choose=33),
        Stream(local=places[2], repeat=2),
    ]
    sequences = []
    for ranks, workers in ((1, 0), (2, 0), (3, 2), (4, 0)):
        parts = []
        for rank in range(ranks):
            dataset = dataset_of(
                streams,
                rank,
                ranks,
                batch_size=None,
                global_batch_size=24,
                batching_method=batching,
                remainder="exact",
            )
            parts.append(list(StreamingDataLoader(dataset, num_workers=workers, collate_fn=numbers)))
        full = (150 + 33 + 80) // 24
        sequences.append([number for step in range(full) for part in parts for number in part[step]])
        assert by_stream([number for part in parts for batch in part for number in batch]) == {
            0: 150,
            1: 33,
            2: 80,
        }
    assert all(sequence == sequences[0] for sequence in sequences)


def test_a_stratified_batch_holds_each_stream_in_its_share(places):
    streams = [Stream(local=places[0], proportion=3), Stream(local=places[1], proportion=1)]
    dataset = dataset_of(streams, epoch_size=160, batching_method="stratified")
    for batch in StreamingDataLoader(dataset, collate_fn=numbers):
        assert by_stream(batch) == {0: 6, 1: 2}


def test_a_chain_of_resumes_over_streams_loses_and_repeats_nothing(places):
    streams = [Stream(local=places[0]), Stream(local=places[1], name="b"), Stream(local=places[2])]
    state, seen = None, []
    for ranks, batch_size, steps in ((4, 2, 9), (3, 5, 4), (1, 16, None)):
        loaders = [
            StreamingDataLoader(dataset_of(streams, rank, ranks, batch_size=batch_size), collate_fn=numbers)
            for rank in range(ranks)
        ]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
            seen += [number for batch in itertools.islice(loader, steps) for number in batch]
        state = loaders[0].state_dict()
    assert sorted(seen) == [*range(100), *range(1000, 1100), *range(2000, 2040)]


def test_a_state_of_another_batching_method_is_refused_by_name(places):
    streams = [Stream(local=places[0], repeat=2), Stream(local=places[1])]
    state = StreamingDataLoader(dataset_of(streams)).state_dict()
    with pytest.raises(StateError, match="batching_method was 'random' and is 'stratified'"):
        dataset_of(streams, batching_method="stratified").load_state_dict(state)


@pytest.mark.parametrize(
    ("method", "algorithm", "window"),
    [
        ("random", "sliding", 1),
        ("stratified", "py1e", 1),
        ("per_stream", "sliding", 2),
        ("device_per_stream", "sliding", 2),
        ("random", "block", 2),
    ],
)
def test_small_streams_have_one_shard_live_where_batches_are_of_all(tmp_path, method, algorithm, window):
    place = write_numbers(tmp_path / "a", [2] * 4)

    def loader_of() -> StreamingDataLoader:
        streams = [Stream(local=place, name=str(name)) for name in range(70)]
        dataset = dataset_of(streams, batching_method=method, shuffle_algo=algorithm)
        return StreamingDataLoader(dataset, collate_fn=numbers)

    state = loader_of().state_dict()
    assert window_of(state) == window
    # A state of an earlier build, whose streams had more, means what it meant.
    again = loader_of()
    again.load_state_dict(with_window(state, 3))
    assert window_of(again.state_dict()) == 3


def window_of(state):
    if "window" in state.get("common", {}):
        return state["common"]["window"]
    (window,) = {row[state["columns"].index("window")] for row in state["streams"]}
    return window


def with_window(state, window):
    state = copy.deepcopy(state)
    if "window" in state.get("common", {}):
        state["common"]["window"] = window
    else:
        for row in state["streams"]:
            row[state["columns"].index("window")] = window
    return state


def test_samples_are_numbered_on_from_stream_to_stream(places):
    dataset = dataset_of([Stream(local=place) for place in places])
    assert (dataset.size, dataset.num_shards) == (240, 27)
    assert [sample["number"] for sample in dataset[[0, 99, 100, 199, 200, -1]]] == [
        0,
        99,
        1000,
        1099,
        2000,
        2039,
    ]


def test_a_proportion_of_0_turns_a_stream_off(places):
    streams = [Stream(local=places[0], proportion=1), Stream(local=places[1], proportion=0)]
    assert by_stream(epoch_of(dataset_of(streams, epoch_size=50))) == {0: 50}


def test_one_cache_directory_for_two_places_is_refused(places, tmp_path):
    streams = [Stream(remote=place.as_uri(), local=tmp_path / "cache") for place in places[:2]]
    with pytest.raises(ValueError, match="is the cache of both"):
        dataset_of(streams)
    twice = [Stream(remote=places[0].as_uri(), local=tmp_path / "cache")] * 2
    assert collections.Counter(epoch_of(dataset_of(twice))) == dict.fromkeys(range(100), 2)


@pytest.mark.parametrize("hashed", [None, False])
def test_each_stream_is_fetched_from_its_own_place(places, tmp_path, hashed):
    """Their files have the same names, and without hashes nothing else tells them apart."""
    streams = [
        Stream(remote=place.as_uri(), local=tmp_path / f"cache{number}", validate_hash=hashed)
        for number, place in enumerate(places)
    ]
    seen = epoch_of(dataset_of(streams), workers=2)
    assert sorted(seen) == [*range(100), *range(1000, 1100), *range(2000, 2040)]


def test_columns_of_streams_with_other_columns_are_named(places, tmp_path):
    with MDSWriter(out=tmp_path / "other", columns={"number": "int", "text": "str"}) as writer:
        for number in range(100):
            writer.write({"number": 3000 + number, "text": "x"})
    streams = [Stream(local=tmp_path / "other"), Stream(local=places[0])]
    dataset = dataset_of(streams, batch_transform=dict)
    with pytest.raises(FormatError, match="column 'text' is not in all shards"):
        list(StreamingDataLoader(dataset))
    dataset = dataset_of(streams, batch_transform=dict, columns=["number"])
    seen = [number for batch in StreamingDataLoader(dataset) for number in batch["number"].tolist()]
    assert sorted(seen) == [*range(100), *range(3000, 3100)]


@pytest.mark.parametrize("batching", ["random", "stratified"])
@pytest.mark.parametrize("remainder", ["pad", "drop"])
def test_s6_all_ranks_get_equally_many_batches_of_equal_size(places, batching, remainder):
    """mosaicml-streaming's device_per_stream gives 45 batches to one rank and 46 to another."""
    streams = [Stream(local=place) for place in places]
    for ranks in (2, 3, 4, 7):
        sizes = set()
        for rank in range(ranks):
            dataset = dataset_of(
                streams, rank, ranks, batch_size=3, batching_method=batching, remainder=remainder
            )
            sizes.add(tuple(map(len, StreamingDataLoader(dataset, collate_fn=numbers))))
        assert len(sizes) == 1

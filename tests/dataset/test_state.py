"""What a state is refused for, and the dataset's own state_dict and load_state_dict."""

from __future__ import annotations

import copy
import gzip
import itertools
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from streamshard import Stream, StreamingDataLoader, StreamingDataset, World
from streamshard.errors import StateError
from streamshard.format.hashing import hash_bytes
from tests.support.pretended_ranks import SEED, loader_of, numbers, read_part, write_numbers

SAMPLES = 203
SIZES = [10] * 20 + [3]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_numbers(tmp_path_factory.mktemp("state") / "set", SIZES)


def dataset_of(directory: Path, **arguments: Any) -> StreamingDataset:
    return StreamingDataset(
        **{"local": directory, "shuffle": True, "shuffle_seed": SEED, "batch_size": 8, **arguments}
    )


@pytest.fixture(scope="module")
def state(directory: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(read_part([loader_of(directory, batch_size=8)], steps=5).state)
    return document


# Other data, other orders

OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "seed": ({"shuffle_seed": 18}, r"seed was 17 and is 18"),
    "shuffle": ({"shuffle_algo": "block"}, r"shuffle was 'sliding' and is 'block'"),
    "no shuffle": ({"shuffle": False}, r"shuffle was 'sliding' and is 'none'"),
    "lanes": ({"num_canonical_nodes": 4}, r"lanes was 8 and is 4"),
    "block size": ({"shuffle_block_size": 20}, r"window was 16 and is 2"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_state_of_another_order_is_refused_with_the_difference(
    directory: Path, state: dict[str, Any], name: str
) -> None:
    arguments, message = OTHERS[name]
    dataset = dataset_of(directory, **arguments)
    with pytest.raises(StateError, match=message):
        dataset.load_state_dict(state)
    with pytest.raises(StateError, match=message):
        StreamingDataLoader(dataset).load_state_dict(state)
    assert dataset.state_dict()["position"] == 0  # nothing was taken over


@pytest.mark.parametrize("samples", [10**12, 1 << 53])
def test_a_state_of_the_largest_blocks_is_read_again(directory: Path, samples: int) -> None:
    saved = dataset_of(directory, shuffle_block_size=samples).state_dict(num_samples=80)
    dataset = dataset_of(directory, shuffle_block_size=samples)
    dataset.load_state_dict(json.loads(json.dumps(saved)))
    assert dataset.state_dict() == saved


def test_a_stream_that_is_named_later_is_known_by_its_data(directory: Path, state: dict[str, Any]) -> None:
    named = dataset_of(directory, local=None, streams=[Stream(local=directory, name="text")])
    named.load_state_dict(state)
    assert named.state_dict()["position"] == state["position"]
    again = dataset_of(directory, local=None, streams=[Stream(local=directory, name="text")])
    again.load_state_dict(named.state_dict())


@pytest.mark.parametrize(
    "sizes", [[10] * 20 + [4], [11, 9] + [10] * 18 + [3]], ids=["more samples", "other shards"]
)
def test_a_state_of_other_data_is_refused(tmp_path: Path, state: dict[str, Any], sizes: list[int]) -> None:
    with pytest.raises(StateError, match=r"num_samples was 203 and is 204|data \(layout\) was"):
        dataset_of(write_numbers(tmp_path / "other", sizes)).load_state_dict(state)


def test_a_state_of_other_values_in_equal_shards_is_refused_by_hash(
    tmp_path: Path, state: dict[str, Any]
) -> None:
    with pytest.raises(StateError, match=r"data \(xxh64\) was"):
        dataset_of(write_numbers(tmp_path / "other", SIZES, first=1)).load_state_dict(state)


def edited(directory: Path, target: Path, change: Callable[[Path, dict[str, Any]], None]) -> Path:
    """Copy a dataset, with a change to each shard and its entry in the index."""
    shutil.copytree(directory, target)
    index = json.loads((target / "index.json").read_text())
    for entry in index["shards"]:
        change(target, entry)
    (target / "index.json").write_text(json.dumps(index))
    return target


def renamed(directory: Path, entry: dict[str, Any]) -> None:
    name = entry["raw_data"]["basename"]
    (directory / name).rename(directory / f"part-{name}")
    entry["raw_data"]["basename"] = f"part-{name}"


def compressed(directory: Path, entry: dict[str, Any]) -> None:
    path = directory / entry["raw_data"]["basename"]
    packed = gzip.compress(path.read_bytes())
    path.unlink()
    path.with_name(path.name + ".gz").write_bytes(packed)
    entry.update(
        compression="gz", zip_data={"basename": path.name + ".gz", "bytes": len(packed), "hashes": {}}
    )


def hashed_otherwise(directory: Path, entry: dict[str, Any]) -> None:
    payload = (directory / entry["raw_data"]["basename"]).read_bytes()
    entry["raw_data"]["hashes"] = {"md5": hash_bytes("md5", payload)}


def not_hashed(directory: Path, entry: dict[str, Any]) -> None:
    entry["raw_data"]["hashes"] = {}


@pytest.mark.parametrize("change", [renamed, compressed, hashed_otherwise, not_hashed])
def test_the_same_data_in_another_place_or_form_is_accepted(
    directory: Path, tmp_path: Path, state: dict[str, Any], change: Callable[[Path, dict[str, Any]], None]
) -> None:
    expected = read_part([loader_of(directory, batch_size=8)], state=json.dumps(state)).steps
    copied = edited(directory, tmp_path / "copied", change)
    dataset = dataset_of(copied, local=tmp_path / "cache", remote=copied.as_uri())
    loader = StreamingDataLoader(dataset, collate_fn=numbers)
    assert read_part([loader], state=json.dumps(state)).steps == expected


def test_a_state_of_mosaicml_streaming_is_refused_by_name(directory: Path) -> None:
    theirs = {
        "epoch": 1,
        "sample_in_epoch": 640,
        "num_canonical_nodes": 2,
        "shuffle_seed": 9176,
        "initial_physical_nodes": 1,
    }
    with pytest.raises(StateError, match="mosaicml-streaming"):
        dataset_of(directory).load_state_dict(theirs)
    with pytest.raises(StateError, match="mosaicml-streaming"):
        loader_of(directory, batch_size=8).load_state_dict(theirs)


def without(state: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in state.items() if name != key}


HOSTILE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "none": lambda state: None,
    "a list": lambda state: [state],
    "text": lambda state: json.dumps(state),
    "other keys": lambda state: {1: 2},
    "empty": lambda state: {},
    "no position": lambda state: without(state, "position"),
    "no version": lambda state: without(state, "version"),
    "a later version": lambda state: {**state, "version": 3},
    "an unknown key": lambda state: {**state, "extra": 1},
    "a negative position": lambda state: {**state, "position": -1},
    "a position past the end": lambda state: {**state, "position": SAMPLES + 1},
    "a position that is text": lambda state: {**state, "position": "5"},
    "a position that is true": lambda state: {**state, "position": True},
    "a fraction": lambda state: {**state, "position": 40.0},
    "a huge epoch": lambda state: {**state, "epoch": 1 << 70},
    "a row that is too short": lambda state: {**state, "streams": [state["streams"][0][:-1]]},
    "no streams": lambda state: {**state, "streams": []},
    "two streams": lambda state: {**state, "streams": state["streams"] * 2},
    "settings that are a list": lambda state: {**state, "settings": []},
    "another setting": lambda state: {**state, "settings": {"batching_method": "stratified"}},
    "a progress that is none": lambda state: {**state, "progress": None},
    "a progress without fields": lambda state: {**state, "progress": {}},
    "a progress below 0": lambda state: {**state, "progress": {**PROGRESS, "samples": -1}},
    "a progress with text": lambda state: {**state, "progress": {**PROGRESS, "rank": "0"}},
}
PROGRESS = {"samples": 3, "rank": 0, "ranks": 1, "worker": 0, "workers": 1, "global_batch_size": 8}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_malformed_state_is_refused_and_changes_nothing(
    directory: Path, state: dict[str, Any], name: str
) -> None:
    dataset = dataset_of(directory)
    with pytest.raises(StateError) as caught:
        dataset.load_state_dict(HOSTILE[name](copy.deepcopy(state)))
    assert len(str(caught.value)) < 700
    with pytest.raises(StateError):
        StreamingDataLoader(dataset).load_state_dict(HOSTILE[name](copy.deepcopy(state)))
    assert next(iter(dataset)) == next(iter(dataset_of(directory)))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_state_with_anything_anywhere_is_a_state_error_or_means_a_position(
    directory: Path, state: dict[str, Any], data: st.DataObject
) -> None:
    damaged = copy.deepcopy(state)
    damaged["progress"] = dict(PROGRESS)
    place: Any = data.draw(
        st.sampled_from(
            [damaged, damaged["streams"][0], damaged["progress"], damaged["settings"], damaged["segment"]]
        )
    )
    keys = range(len(place)) if isinstance(place, list) else [*place, "other"]
    place[data.draw(st.sampled_from(keys))] = data.draw(json_values)
    dataset = dataset_of(directory)
    try:
        dataset.load_state_dict(damaged)
        iterator = iter(dataset)
    except StateError:
        return
    next(iterator)
    assert 0 <= dataset.state_dict()["position"] < SAMPLES


# For a plain DataLoader, and for loops over the dataset itself


def sequence_of(directory: Path, epochs: int = 1) -> list[int]:
    loader = loader_of(directory, batch_size=8)
    return [number for _ in range(epochs) for batch in loader for number in batch]


@pytest.mark.parametrize("from_beginning", [False, True])
def test_a_plain_loader_resumes_from_the_number_of_samples_received(
    directory: Path, from_beginning: bool
) -> None:
    expected = sequence_of(directory, 2)
    dataset = dataset_of(directory)
    loader = DataLoader(dataset, 8, collate_fn=numbers)
    first = [number for batch in itertools.islice(loader, 5) for number in batch]
    state = json.loads(json.dumps(dataset.state_dict(40, from_beginning)))
    assert state["position"] == 40

    dataset = dataset_of(directory)
    dataset.load_state_dict(state)
    loader = DataLoader(dataset, 8, collate_fn=numbers)
    second = [number for batch in itertools.islice(loader, 3) for number in batch]
    assert dataset.state_dict(24)["position"] == 64
    assert dataset.state_dict(64, from_beginning=True)["position"] == 64
    assert first + second == expected[:64]

    dataset = dataset_of(directory)
    dataset.load_state_dict(json.loads(json.dumps({**state, **dataset_of_state(directory, 64)})))
    loader = DataLoader(dataset, 8, collate_fn=numbers)
    rest = [number for _ in range(2) for batch in loader for number in batch]
    assert first + second + rest == expected


def dataset_of_state(directory: Path, position: int) -> dict[str, Any]:
    return dataset_of(directory).state_at(0, position)


def test_samples_received_are_cut_at_the_epochs_end(directory: Path) -> None:
    dataset = dataset_of(directory, world=World(0, 5))
    iter(dataset)
    state = dataset.state_dict(205)  # 203 and 2 repeats
    assert (state["epoch"], state["position"]) == (1, 0)


@pytest.mark.parametrize("count", [-1, 1.5, True, "8"])
def test_samples_received_are_a_whole_number(directory: Path, count: Any) -> None:
    with pytest.raises(ValueError, match="num_samples="):
        dataset_of(directory).state_dict(count)


def test_a_dataset_that_was_never_read_has_the_state_of_its_start(directory: Path) -> None:
    dataset = dataset_of(directory)
    assert dataset.state_dict() == dataset.state_dict(0) == dataset.state_dict(0, from_beginning=True)
    dataset.set_epoch(3)
    state = dataset.state_dict()
    assert (state["epoch"], state["position"]) == (3, 0)


@pytest.mark.parametrize("taken", [0, 1, 7, 8, 9, 16, 100, 199, 200, 202])
def test_a_loop_over_the_dataset_resumes_amid_a_batch(directory: Path, taken: int) -> None:
    expected = sequence_of(directory, 2)
    dataset = dataset_of(directory)
    first = [sample["number"] for sample in itertools.islice(dataset, taken)] if taken else []
    state = json.loads(json.dumps(dataset.state_dict()))
    assert state == dataset.state_dict()
    dataset = dataset_of(directory)
    dataset.load_state_dict(state)
    second = [sample["number"] for sample in itertools.islice(dataset, 3)]
    state = json.loads(json.dumps(dataset.state_dict()))
    dataset = dataset_of(directory)
    dataset.load_state_dict(state)
    rest = [sample["number"] for sample in dataset]
    if taken + 3 >= SAMPLES:
        assert first + second == expected[: taken + 3][: len(first + second)]
    else:
        assert first + second + rest == expected[:SAMPLES]
        assert [sample["number"] for sample in dataset] == expected[SAMPLES:]


@pytest.mark.parametrize("taken", [1, 7, 8])
def test_b129_a_loops_state_is_unchanged_by_loading_it(directory: Path, taken: int) -> None:
    dataset = dataset_of(directory)
    list(itertools.islice(dataset, taken))
    state = dataset.state_dict()
    other = dataset_of(directory)
    other.load_state_dict(state)
    assert other.state_dict() == state
    assert other.state_dict() == state


def test_a_loop_that_was_left_by_an_error_has_its_position(directory: Path) -> None:
    dataset = dataset_of(directory, transform=broken_at_5)
    seen: list[int] = []
    with pytest.raises(ZeroDivisionError):
        seen.extend(dataset)
    state = dataset.state_dict()
    assert state["epoch"] == 0
    assert state["progress"]["samples"] == len(seen)
    assert seen == sequence_of(directory)[: len(seen)]


def broken_at_5(sample: dict[str, int]) -> int:
    return sample["number"] + 0 // (sample["number"] - 5)


def test_a_finished_loop_over_the_dataset_stands_at_the_next_epoch(directory: Path) -> None:
    dataset = dataset_of(directory)
    iterator = iter(dataset)
    for _ in range(SAMPLES):
        next(iterator)
    for _ in range(2):  # before and after the loop has noticed
        state = dataset.state_dict()
        assert (state["epoch"], state["position"]) == (1, 0)
        assert "progress" not in state
        assert next(iterator, None) is None


def test_a_loops_state_fits_the_same_ranks_only(directory: Path) -> None:
    dataset = dataset_of(directory, world=World(1, 2))
    next(iter(dataset))
    state = dataset.state_dict()
    other = dataset_of(directory, world=World(0, 3))
    other.load_state_dict(state)
    with pytest.raises(
        StateError, match=r"rank was 1 and is 0; ranks was 2 and is 3; global_batch_size was 16 and"
    ):
        iter(other)


def test_a_loops_state_is_no_state_for_a_loader(directory: Path) -> None:
    dataset = dataset_of(directory)
    next(iter(dataset))
    state = dataset.state_dict()
    loader = loader_of(directory, batch_size=8)
    with pytest.raises(StateError, match=r"StreamingDataLoader\.state_dict"):
        loader.load_state_dict(state)
    loader.dataset.load_state_dict(state)
    with pytest.raises(StateError, match=r"StreamingDataLoader\.state_dict"):
        iter(loader)
    loader.dataset.set_epoch(0)
    assert [number for batch in loader for number in batch] == sequence_of(directory)


def test_a_state_amid_a_batch_does_not_fit_whole_batches(directory: Path) -> None:
    dataset = dataset_of(directory)
    next(iter(dataset))
    batches = dataset_of(directory, batch_transform=dict)
    batches.load_state_dict(dataset.state_dict())
    with pytest.raises(StateError, match="1 samples into a batch"):
        iter(batches)


def test_whole_batches_have_a_state_too(directory: Path) -> None:
    dataset = dataset_of(directory, batch_transform=lambda columns: columns["number"].tolist())
    first = list(itertools.islice(dataset, 3))
    again = dataset_of(directory, batch_transform=lambda columns: columns["number"].tolist())
    again.load_state_dict(json.loads(json.dumps(dataset.state_dict())))
    assert [number for batch in first + list(again) for number in batch] == sequence_of(directory)


def test_the_trainer_cannot_know_what_plain_workers_have_delivered(directory: Path) -> None:
    dataset = dataset_of(directory)
    loader = DataLoader(dataset, 8, num_workers=1, collate_fn=numbers)
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(StateError, match=r"StreamingDataLoader.state_dict\(\), or state_dict\(num_samples="):
        dataset.state_dict()
    assert dataset.state_dict(8)["position"] == 8


def test_a_state_survives_any_serialisation(directory: Path, state: dict[str, Any]) -> None:
    loader = loader_of(directory, batch_size=8)
    for document in (json.loads(json.dumps(state)), pickle.loads(pickle.dumps(state)), copy.deepcopy(state)):
        loader.load_state_dict(document)
        assert loader.state_dict() == state

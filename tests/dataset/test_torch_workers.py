"""DataLoader workers of every kind give the batches that one process gives."""

from __future__ import annotations

import json
import pickle
import tempfile
from pathlib import Path
from typing import Any

import pytest

from streamshard import StreamingDataLoader, StreamingDataset, World
from streamshard.errors import StateError, StorageError
from tests.support.loading import epoch_of, joined, make_loader, numbers_of, text_dataset

BATCH = 8
SAMPLES = 203

pytestmark = [
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata 0.11 with torch 2.13
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return text_dataset(tmp_path_factory.mktemp("texts") / "set", SAMPLES)


@pytest.fixture(scope="module")
def expected(directory: Path) -> list[list[list[int]]]:
    """Four epochs read by one process."""
    loader = make_loader("streaming", shuffled(directory), BATCH)
    epochs = [epoch_of(loader) for _ in range(4)]
    assert all(sorted(joined(epoch)) == list(range(SAMPLES)) for epoch in epochs)
    assert len({str(epoch) for epoch in epochs}) == 4
    return epochs


def shuffled(
    directory: Path, kind: type[StreamingDataset] = StreamingDataset, **arguments: Any
) -> StreamingDataset:
    return kind(local=directory, shuffle=True, batch_size=BATCH, **arguments)


@pytest.mark.parametrize("kind", ["plain", "streaming", "stateful"])
@pytest.mark.parametrize("persistent", [False, True], ids=["fresh", "persistent"])
@pytest.mark.parametrize(
    "workers", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)]
)
def test_forked_workers_give_the_order_of_one_process(
    directory: Path, expected: Any, kind: str, persistent: bool, workers: int
) -> None:
    loader = make_loader(
        kind, shuffled(directory), BATCH, method="fork", num_workers=workers, persistent_workers=persistent
    )
    assert [epoch_of(loader) for _ in range(4)] == expected


@pytest.mark.parametrize("kind", ["plain", "streaming", "stateful"])
def test_no_workers_give_the_same_order_in_every_loader(directory: Path, expected: Any, kind: str) -> None:
    loader = make_loader(kind, shuffled(directory), BATCH)
    assert [epoch_of(loader) for _ in range(4)] == expected


@pytest.mark.parametrize(
    ("kind", "method", "persistent"),
    [
        ("plain", "spawn", True),
        pytest.param("streaming", "spawn", False, marks=pytest.mark.slow),
        pytest.param("streaming", "forkserver", True, marks=pytest.mark.slow),
        pytest.param("stateful", "spawn", False, marks=pytest.mark.slow),
    ],
)
def test_workers_of_other_start_methods_give_the_same_order(
    directory: Path, expected: Any, kind: str, method: str, persistent: bool
) -> None:
    loader = make_loader(
        kind, shuffled(directory), BATCH, method=method, num_workers=2, persistent_workers=persistent
    )
    assert [epoch_of(loader) for _ in range(2)] == expected[:2]


@pytest.mark.parametrize("kind", ["plain", "streaming"])
def test_b113_set_epoch_reaches_persistent_workers(directory: Path, expected: Any, kind: str) -> None:
    dataset = shuffled(directory)
    loader = make_loader(kind, dataset, BATCH, method="fork", num_workers=2, persistent_workers=True)
    dataset.set_epoch(2)
    assert epoch_of(loader) == expected[2]
    dataset.set_epoch(0)
    assert epoch_of(loader) == expected[0]
    assert epoch_of(loader) == expected[1]
    assert dataset.epoch == 1
    dataset.set_epoch(3)
    assert epoch_of(loader) == expected[3]


@pytest.mark.parametrize("kind", ["plain", "streaming"])
@pytest.mark.parametrize("persistent", [False, True], ids=["fresh", "persistent"])
def test_an_epoch_left_early_is_followed_by_the_next_one(
    directory: Path, expected: Any, kind: str, persistent: bool
) -> None:
    loader = make_loader(
        kind, shuffled(directory), BATCH, method="fork", num_workers=2, persistent_workers=persistent
    )
    for stop_after, epoch in [(3, 0), (1, 1), (99, 2)]:
        seen = []
        for batch in loader:
            seen.append(numbers_of(batch))
            if len(seen) == stop_after:
                break
        assert seen == expected[epoch][:stop_after]
        del batch
    assert epoch_of(loader) == expected[3]


@pytest.mark.parametrize("persistent", [False, True], ids=["fresh", "persistent"])
@pytest.mark.parametrize("kind", ["plain", "streaming"])
def test_the_same_torch_seed_before_every_epoch_does_not_repeat_the_epoch(
    directory: Path, expected: Any, kind: str, persistent: bool
) -> None:
    import torch

    loader = make_loader(
        kind, shuffled(directory), BATCH, method="fork", num_workers=2, persistent_workers=persistent
    )
    epochs = []
    for _ in range(3):
        torch.manual_seed(7)
        epochs.append(epoch_of(loader))
    assert epochs == expected[:3]


@pytest.mark.parametrize("kind", ["plain", "streaming"])
def test_more_workers_than_batches_and_802_seventeen_workers_at_once(directory: Path, kind: str) -> None:
    dataset = StreamingDataset(local=directory, batch_size=16)
    loader = make_loader(kind, dataset, 16, method="fork", num_workers=17)
    whole = list(range(SAMPLES))
    assert [joined(epoch_of(loader)) for _ in range(2)] == [whole, whole]


class Labelled(StreamingDataset):
    """Overrides what gives a sample; at module level so that workers can be spawned."""

    def __getitem__(self, at: Any) -> Any:
        sample = super().__getitem__(at)
        return {**sample, "own": sample["number"] * 2}


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_an_overridden_getitem_is_called_in_workers(directory: Path, expected: Any, method: str) -> None:
    dataset = shuffled(directory, Labelled)
    loader = make_loader("streaming", dataset, BATCH, method=method, num_workers=2)
    seen = []
    for batch in loader:
        seen.append(numbers_of(batch))
        assert batch["own"].tolist() == [2 * number for number in seen[-1]]
    assert seen == expected[0]


@pytest.mark.parametrize("overridden", [False, True])
def test_a_dataset_is_pickled_after_it_was_partly_read(
    directory: Path, expected: Any, overridden: bool
) -> None:
    dataset = shuffled(directory, Labelled if overridden else StreamingDataset)
    first = joined(expected[0])
    iterator = iter(dataset)
    assert [next(iterator)["number"] for _ in range(5)] == first[:5]
    assert dataset[3]["number"] == 3
    copy = pickle.loads(pickle.dumps(dataset))
    assert copy.epoch == 0
    assert [sample["number"] for sample in copy] == joined(expected[1])
    assert [sample["number"] for sample in iterator] == first[5:]
    assert copy[5]["number"] == 5


def test_b141_a_world_given_by_hand_reaches_all_workers(directory: Path) -> None:
    parts = []
    for rank in range(3):
        dataset = StreamingDataset(local=directory, batch_size=4, world=World(rank, 3), remainder="exact")
        loader = make_loader("plain", dataset, 4, method="fork", num_workers=2)
        parts.append(joined(epoch_of(loader)))
    assert sorted(joined(parts)) == list(range(SAMPLES))


@pytest.mark.parametrize("kind", ["plain", "streaming"])
def test_environment_variables_of_a_launcher_are_read_in_the_trainers_process(
    directory: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    parts = []
    for rank in range(2):
        # Made before the launcher or the trainer says who it is: only iterating asks.
        dataset = StreamingDataset(local=directory, batch_size=4, remainder="exact")
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
        # What a worker finds in its own environment must not matter.
        loader = make_loader(
            kind, dataset, 4, method="fork", num_workers=2, worker_init_fn=claim_to_be_rank_nine
        )
        parts.append(joined(epoch_of(loader)))
        monkeypatch.delenv("RANK")
        monkeypatch.delenv("WORLD_SIZE")
    assert sorted(joined(parts)) == list(range(SAMPLES))
    assert not set(parts[0]) & set(parts[1])


def claim_to_be_rank_nine(worker: int) -> None:
    import os

    os.environ.update(RANK="9", WORLD_SIZE="10", LOCAL_WORLD_SIZE="10")


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
@pytest.mark.parametrize(
    "steps", [7, 26, *(pytest.param(steps, marks=pytest.mark.slow) for steps in (0, 1, 25))]
)
def test_torchdatas_loader_resumes_through_json(
    directory: Path, expected: Any, workers: int, persistent: bool, steps: int
) -> None:
    arguments: dict[str, Any] = {"num_workers": workers, "persistent_workers": persistent}
    if workers:
        arguments["method"] = "fork"
    loader = make_loader("stateful", shuffled(directory), BATCH, **arguments)
    iterator = iter(loader)
    seen = [numbers_of(next(iterator)) for _ in range(steps)]
    state = json.loads(json.dumps(loader.state_dict()))
    del iterator, loader

    loader = make_loader("stateful", shuffled(directory), BATCH, **arguments)
    loader.load_state_dict(state)
    assert seen + epoch_of(loader) == expected[0]
    assert epoch_of(loader) == expected[1]


@pytest.mark.parametrize("workers", [0, 2])
def test_torchdatas_loader_resumes_after_the_end_and_in_later_epochs(
    directory: Path, expected: Any, workers: int
) -> None:
    arguments: dict[str, Any] = {"num_workers": workers, **({"method": "fork"} if workers else {})}
    loader = make_loader("stateful", shuffled(directory), BATCH, **arguments)
    assert epoch_of(loader) == expected[0]
    between = json.loads(json.dumps(loader.state_dict()))
    iterator = iter(loader)
    assert numbers_of(next(iterator)) == expected[1][0]
    inside = json.loads(json.dumps(loader.state_dict()))
    del iterator, loader

    for state, rest in [(between, expected[1]), (inside, expected[1][1:])]:
        loader = make_loader("stateful", shuffled(directory), BATCH, **arguments)
        loader.load_state_dict(state)
        assert epoch_of(loader) == rest
        assert epoch_of(loader) == expected[2]


def test_an_iterator_from_a_state_that_nobody_took_from_is_replaced(directory: Path, expected: Any) -> None:
    dataset = shuffled(directory)
    dataset.load_state_dict(dataset.state_dict(num_samples=16))
    first, second = iter(dataset), iter(dataset)
    assert [sample["number"] for sample in second] == joined(expected[0][2:])
    with pytest.raises(StateError, match="make a new one"):
        next(first)
    assert [sample["number"] for sample in dataset] == joined(expected[1])


def test_a_temporary_directory_too_long_for_torchs_sockets_is_refused_and_no_hang(
    directory: Path, short_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for room, refused in ((75, False), (76, True)):
        place = short_directory / ("x" * (room - len(str(short_directory)) - 1))
        place.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(place))
        loader = StreamingDataLoader(StreamingDataset(local=directory, batch_size=4), num_workers=1)
        if refused:
            with pytest.raises(StorageError, match=r"has a path of 76 bytes; .* set TMPDIR to a shorter one"):
                iter(loader)
            assert loader.dataset.next_epoch == 0
        else:
            assert len(list(loader)) == len(loader)

"""``len`` of loaders and datasets: what is announced is what is given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from streamshard import StreamingDataLoader, StreamingDataset, World
from tests.support.pretended_ranks import loader_of, numbers, read_part, world_of, write_numbers

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]


@pytest.mark.parametrize("remainder", ["pad", "drop", "exact"])
@pytest.mark.parametrize("workers", [0, 2])
def test_the_length_is_exact_before_during_after_and_resumed(
    tmp_path: Path, workers: int, remainder: str
) -> None:
    write_numbers(tmp_path, [10] * 10 + [3])
    batches = {"pad": 13, "drop": 12, "exact": 13}[remainder]
    loader = loader_of(tmp_path, batch_size=8, workers=workers, remainder=remainder)
    assert len(loader) == batches
    iterator = iter(loader)
    assert len(iterator) == batches
    for _ in range(batches):
        next(iterator)
        assert len(loader) == batches
    assert next(iterator, None) is None
    assert len(loader) == batches

    loader.load_state_dict(json.loads(read_part([loader], steps=5).state))
    assert len(loader) == batches - 5
    lengths = [len(loader) for _ in loader]
    assert lengths == [batches - 5] * (batches - 5)
    assert len(loader) == batches  # the next epoch is a whole one


def test_after_a_break_the_length_is_that_of_the_next_iteration(tmp_path: Path) -> None:
    write_numbers(tmp_path, [10] * 10)
    loader = loader_of(tmp_path, batch_size=10)
    state = read_part([loader], steps=7).state
    assert len(loader) == 10
    read_part([loader], state=state, steps=1)
    assert len(loader) == 10


def test_the_length_follows_set_epoch_and_load(tmp_path: Path) -> None:
    write_numbers(tmp_path, [10] * 10)
    loader = loader_of(tmp_path, batch_size=10)
    loader.dataset.load_state_dict(loader.dataset.state_at(0, 30))
    assert len(loader) == 7
    loader.dataset.set_epoch(0)
    assert len(loader) == 10


@pytest.mark.parametrize("workers", [0, 1, 3, 7])
def test_b104_the_length_is_the_number_of_batches_given(tmp_path: Path, workers: int) -> None:
    write_numbers(tmp_path, [10] * 5)
    loader = loader_of(tmp_path, batch_size=8, workers=workers)
    assert len(loader) == len(list(loader)) == 7


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("remainder", ["pad", "drop", "exact"])
def test_the_length_of_the_dataset_is_this_ranks_samples(tmp_path: Path, ranks: int, remainder: str) -> None:
    write_numbers(tmp_path, [10] * 5 + [1])
    loaders = world_of(tmp_path, ranks, global_batch_size=6, remainder=remainder)
    for loader in loaders:
        assert len(loader.dataset) == sum(len(batch) for batch in loader)
        assert len(loader.dataset) == len(list(loader.dataset))
    part = read_part(loaders)
    assert len(part.sequence) == (48 if remainder == "drop" else 51)
    assert {loader.dataset.size for loader in loaders} == {51}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_plain_loaders_length_is_right_too(tmp_path: Path, workers: int, drop_last: bool) -> None:
    write_numbers(tmp_path, [10] * 5)
    remainder: Any = "drop" if drop_last else "pad"
    dataset = StreamingDataset(local=tmp_path, batch_size=8, world=World(1, 2), remainder=remainder)
    loader = DataLoader(dataset, 8, num_workers=workers, drop_last=drop_last, collate_fn=numbers)
    assert len(loader) == len(list(loader)) == 4 - drop_last


def test_the_length_uses_the_topology_of_the_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_numbers(tmp_path, [10] * 5)
    loader = StreamingDataLoader(StreamingDataset(local=tmp_path), 5)
    assert (len(loader), len(loader.dataset)) == (10, 50)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert (len(loader), len(loader.dataset)) == (5, 25)
    assert len(list(loader)) == 5

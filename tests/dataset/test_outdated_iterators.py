"""Iterators and copies of a loader that outlive their turn: they neither block nor rob the one that follows."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamshard import StreamingDataLoader, StreamingDataset
from streamshard.errors import StateError
from tests.support.pretended_ranks import numbers, write_numbers

NUM_SAMPLES = 64
KINDS: dict[str, dict[str, Any]] = {
    "no workers": {},
    "workers": {"num_workers": 2},
    "persistent workers": {"num_workers": 2, "persistent_workers": True},
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_numbers(tmp_path, [7] * 9 + [1])


def loader_in(directory: Path, kind: str, collate: Callable[[Any], Any] = numbers) -> StreamingDataLoader:
    dataset = StreamingDataset(local=directory, shuffle=True)
    return StreamingDataLoader(dataset, batch_size=5, collate_fn=collate, **KINDS[kind])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["load", "set_epoch"])
def test_an_iterator_from_before_neither_blocks_the_next_one_nor_goes_on(
    directory: Path, kind: str, how: str
) -> None:
    loader = loader_in(directory, kind)
    before = iter(loader)
    seen = next(before)
    if how == "load":
        loader.load_state_dict(loader.state_dict())
    else:
        loader.dataset.set_epoch(1)
        seen = []
    with pytest.raises(StateError, match="made before set_epoch"):
        next(before)
    rest = [number for batch in loader for number in batch]
    assert sorted(seen + rest) == list(range(NUM_SAMPLES))


@pytest.mark.parametrize("kind", KINDS)
def test_one_that_was_loaded_goes_on_while_the_iterator_from_before_is_held(
    directory: Path, kind: str
) -> None:
    loader = loader_in(directory, kind)
    before = iter(loader)
    seen = next(before)
    loader.load_state_dict(loader.state_dict())
    rest = [number for batch in loader for number in batch]
    assert sorted(seen + rest) == list(range(NUM_SAMPLES))
    assert before is not None


@pytest.mark.parametrize("kind", KINDS)
def test_a_finished_iterator_takes_nothing_from_the_next_one(directory: Path, kind: str) -> None:
    loader = loader_in(directory, kind)
    finished = iter(loader)
    for _ in range(len(loader)):
        next(finished)
    following = iter(loader)
    first = next(following)
    assert list(finished) == []
    assert sorted(first + [n for batch in following for n in batch]) == list(range(NUM_SAMPLES))


class _Fails:
    def __init__(self) -> None:
        self.at: int | None = 11

    def __call__(self, samples: list[dict[str, Any]]) -> list[int]:
        if self.at in numbers(samples):
            raise RuntimeError("not this one")
        return numbers(samples)


@pytest.mark.parametrize("kind", ["no workers", "workers"])
def test_after_an_error_of_collate_fn_the_loop_goes_on_from_its_state(directory: Path, kind: str) -> None:
    collate = _Fails()
    loader = loader_in(directory, kind, collate)
    iterator = iter(loader)
    seen: list[int] = []
    with pytest.raises(RuntimeError, match="not this one"):
        seen.extend(number for batch in iterator for number in batch)
    collate.at = None
    loader.load_state_dict(loader.state_dict())
    rest = [number for batch in loader for number in batch]
    assert sorted(seen + rest) == list(range(NUM_SAMPLES))


def test_after_an_error_of_collate_fn_a_new_iterator_is_not_refused(directory: Path) -> None:
    collate = _Fails()
    loader = loader_in(directory, "no workers", collate)
    iterator = iter(loader)
    with pytest.raises(RuntimeError, match="not this one"):
        list(iterator)
    collate.at = None
    assert sorted(number for batch in loader for number in batch) == list(range(NUM_SAMPLES))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_copy_of_a_loader_in_use_stands_where_that_stood(
    directory: Path, kind: str, duplicate: Callable[[Any], Any]
) -> None:
    loader = loader_in(directory, kind)
    iterator = iter(loader)
    seen = next(iterator)
    other = duplicate(loader)
    assert other.state_dict() == loader.state_dict()
    other.load_state_dict(other.state_dict())
    rest = [number for batch in other for number in batch]
    assert sorted(seen + rest) == list(range(NUM_SAMPLES))
    assert [number for batch in iterator for number in batch] == rest


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("left", ["held", "stopped", "deleted"])
def test_an_iterator_from_a_state_that_nobody_took_from_does_not_cost_its_epoch(
    directory: Path, kind: str, left: str
) -> None:
    loader = loader_in(directory, kind)
    iterator = iter(loader)
    seen = next(iterator)
    state = loader.state_dict()
    other = loader_in(directory, kind)
    other.load_state_dict(state)
    untouched = iter(other)
    if left == "stopped":
        other.dataset.stop()
    elif left == "deleted":
        del untouched
    rest = [number for batch in other for number in batch]
    assert sorted(seen + rest) == list(range(NUM_SAMPLES))
    assert other.state_dict()["epoch"] == 1
    assert len([number for batch in other for number in batch]) == NUM_SAMPLES
    assert other.state_dict()["epoch"] == 2

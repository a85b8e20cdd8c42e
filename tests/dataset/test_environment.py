"""Where the topology comes from."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from streamshard import StreamingDataset, World
from streamshard.dataset.environment import detect_world
from streamshard.errors import TopologyError
from tests.support.pretended_ranks import write_numbers


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, World(0, 1)),
        ({"RANK": "3", "WORLD_SIZE": "8"}, World(3, 8)),
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}, World(3, 8, 4)),
        ({"RANK": " 3 ", "WORLD_SIZE": "8"}, World(3, 8)),
        ({"RANK": "", "WORLD_SIZE": ""}, World(0, 1)),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "8"}, World(0, 2)),  # another job's leftover
        ({"LOCAL_WORLD_SIZE": "8", "LOCAL_RANK": "3"}, World(0, 1)),
    ],
)
def test_the_environment_says_who_this_is(variables: dict[str, str], expected: World) -> None:
    assert detect_world(variables) == expected


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "1"}, "RANK is set but WORLD_SIZE is not"),
        ({"WORLD_SIZE": "4"}, "WORLD_SIZE is set but RANK is not"),
        ({"RANK": "one", "WORLD_SIZE": "4"}, "RANK='one': expected a whole number"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "rank=4"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "world_size=0"),
        ({"RANK": "-1", "WORLD_SIZE": "4"}, "rank=-1"),
    ],
)
def test_an_environment_that_contradicts_itself_is_refused(variables: dict[str, str], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        detect_world(variables)


def test_an_explicit_world_wins_and_the_environment_is_not_even_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "nonsense")
    monkeypatch.setenv("WORLD_SIZE", "4")
    write_numbers(tmp_path, [12])
    parts = [
        [sample["number"] for sample in StreamingDataset(local=tmp_path, world=World(rank, 3))]
        for rank in range(3)
    ]
    assert parts == [list(range(rank, 12, 3)) for rank in range(3)]


def test_b117_data_parallel_rank_and_size_are_passed_by_hand(tmp_path: Path) -> None:
    """Two groups of four context-parallel ranks: what a rank reads depends on its group alone."""
    write_numbers(tmp_path, [16])
    by_hand = [list(StreamingDataset(local=tmp_path, world=World(rank // 4, 2))) for rank in range(8)]
    replicated = [
        list(StreamingDataset(local=tmp_path, world=World(rank, 8), replication=4)) for rank in range(8)
    ]
    assert by_hand == replicated
    assert by_hand[0] == by_hand[3]
    assert by_hand[0] != by_hand[4]


def test_constructing_neither_detects_nor_starts_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_numbers(tmp_path, [4])
    monkeypatch.setenv("RANK", "nonsense")
    before = set(os.listdir(tmp_path))
    dataset = StreamingDataset(local=tmp_path)
    with pytest.raises(TopologyError):
        len(dataset)
    monkeypatch.delenv("RANK")
    assert len(dataset) == 4
    assert set(os.listdir(tmp_path)) == before


def test_a_pickle_made_in_one_process_does_not_fix_the_rank_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_numbers(tmp_path, [4])
    pickled = pickle.dumps(StreamingDataset(local=tmp_path))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert len(pickle.loads(pickled)) == 2

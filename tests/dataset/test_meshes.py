"""``world=`` as a DeviceMesh: real processes on real meshes, and the arithmetic of nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streamshard import StreamingDataset
from streamshard.dataset.mesh import _ranks_per_node
from tests.support.loading import joined, text_dataset
from tests.support.ranks import Job, lines_of

SAMPLES = 101


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return text_dataset(tmp_path_factory.mktemp("texts") / "set", SAMPLES)


def mesh(shape: list[int], names: list[str], dp: list[str]) -> dict[str, Any]:
    return {"shape": shape, "names": names, "dp": dp}


def read_on(
    directory: Path,
    log: Path,
    meshes: list[dict[str, Any]],
    ways: list[dict[str, Any]],
    ranks: int,
    nodes: int = 1,
) -> list[list[dict[str, Any]]]:
    """The lines of each rank, after checking that each way of reading gives a rank the same."""
    options = {
        "dataset": {"local": str(directory), "batch_size": 4, "shuffle": True, "remainder": "exact"},
        "meshes": meshes,
        "ways": ways,
        "log": str(log),
    }
    environment = {"LOCAL_WORLD_SIZE": str(ranks // nodes)}
    with Job("parallel_trainers.read_on_meshes", ranks, options, environment=environment) as job:
        job.wait()
    lines = [lines_of(Path(f"{log}.{rank}")) for rank in range(ranks)]
    for of_rank in lines:
        for line in of_rank:
            assert line == next(other for other in of_rank if other["mesh"] == line["mesh"])
    return [of_rank[:: len(ways)] for of_rank in lines]


def check_groups(lines: list[list[dict[str, Any]]], number: int, groups: list[list[int]]) -> None:
    """Ranks of one group read the same; the groups together read everything once."""
    parts = []
    for dp_rank, group in enumerate(groups):
        for rank in group:
            assert lines[rank][number]["batches"] == lines[group[0]][number]["batches"], rank
            assert lines[rank][number]["world"][:2] == [dp_rank, len(groups)]
        parts.append(joined(lines[group[0]][number]["batches"]))
    assert sorted(joined(parts)) == list(range(SAMPLES))
    assert all(parts)


WAYS = [{"kind": "streaming", "batch_size": 4}, {"kind": "streaming", "batch_size": 4, "num_workers": 2}]


def test_b117_tensor_parallel_peers_read_the_same_and_data_parallel_ones_everything_once(
    directory: Path, tmp_path: Path
) -> None:
    meshes = [
        mesh([2, 2], ["dp", "tp"], ["dp"]),
        mesh([2, 2], ["tp", "dp"], ["dp"]),
        mesh([4], ["dp"], ["dp"]),
        mesh([4, 1], ["dp", "tp"], ["dp"]),
        mesh([4], ["tp"], ["tp"]),
    ]
    lines = read_on(directory, tmp_path / "log", meshes, WAYS, ranks=4, nodes=2)
    check_groups(lines, 0, [[0, 1], [2, 3]])
    check_groups(lines, 1, [[0, 2], [1, 3]])
    for number in (2, 3, 4):
        check_groups(lines, number, [[0], [1], [2], [3]])
    # Two nodes of two processes: data-parallel ranks a node.
    assert [line["world"][2] for line in lines[0]] == [1, 2, 2, 2, 2]


@pytest.mark.slow
def test_hsdp_on_eight_ranks(directory: Path, tmp_path: Path) -> None:
    meshes = [
        mesh([2, 2, 2], ["dp_replicate", "dp_shard", "tp"], ["dp_replicate", "dp_shard"]),
        mesh([2, 2, 2], ["tp", "dp_replicate", "dp_shard"], ["dp_replicate", "dp_shard"]),
        mesh([2, 2, 2], ["dp_replicate", "tp", "dp_shard"], ["dp_replicate", "dp_shard"]),
    ]
    lines = read_on(directory, tmp_path / "log", meshes, WAYS[:1], ranks=8)
    check_groups(lines, 0, [[0, 1], [2, 3], [4, 5], [6, 7]])
    check_groups(lines, 1, [[0, 4], [1, 5], [2, 6], [3, 7]])
    check_groups(lines, 2, [[0, 2], [1, 3], [4, 6], [5, 7]])


@pytest.mark.slow
def test_spawned_workers_are_told_their_place_in_the_mesh(directory: Path, tmp_path: Path) -> None:
    ways = [
        {"kind": kind, "batch_size": 4, "num_workers": 1, "method": "spawn"}
        for kind in ("streaming", "plain")
    ]
    lines = read_on(directory, tmp_path / "log", [mesh([2, 1], ["dp", "tp"], ["dp"])], ways, ranks=2)
    check_groups(lines, 0, [[0], [1]])


def test_a_mesh_that_cannot_be_is_refused_by_name(directory: Path, tmp_path: Path) -> None:
    options = {"dataset": {"local": str(directory)}, "log": str(tmp_path / "log")}
    with Job("parallel_trainers.refuse_meshes", 2, options) as job:
        job.wait()
    inside, outside = (
        [line["said"] for line in lines_of(Path(f"{options['log']}.{rank}"))] for rank in (0, 1)
    )
    assert inside[0] == "World(rank=0, world_size=1, local_world_size=1)"
    assert "process 1 is not in the DeviceMesh (dp) of processes 0" in outside[0]
    assert "replication=2 and a DeviceMesh exclude each other" in inside[1]
    assert inside[1] == outside[1]


def test_what_is_neither_world_nor_mesh_is_refused(directory: Path) -> None:
    with pytest.raises(
        TypeError, match=r"world=4: expected a World\(rank=, world_size=\) or a torch DeviceMesh"
    ):
        StreamingDataset(local=directory, world=4)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ranks", "local_world_size", "expected"),
    [
        ([0, 1, 2, 3], "2", 2),
        ([0, 1, 2, 3], "4", 4),
        ([0, 2, 4, 6], "4", 2),  # tensor parallel within
        ([0, 4, 8, 12], "4", 1),  # a group a node
        ([1, 3, 5, 7], "8", 4),
        ([0, 1, 2, 3, 4], "2", 2),  # the last node is smaller
        ([0, 8, 1, 9], "8", 1),  # node by node they are not
        ([0, 1, 2, 8], "4", 3),
        ([0, 1, 4, 8], "4", 1),  # runs of different lengths
        ([0, 1, 2, 3], "", None),
        ([0, 1, 2, 3], "four", None),
        ([0, 1, 2, 3], "0", None),
    ],
)
def test_data_parallel_ranks_a_node(ranks: list[int], local_world_size: str, expected: int | None) -> None:
    assert _ranks_per_node(ranks, local_world_size) == expected

"""Ranks that are real processes: who reads what, and how a run goes on in another world."""

from __future__ import annotations

import json
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from streamshard.storage.cache_directory import CacheDirectory
from tests.support.leftovers import left_in, left_in_shared_memory
from tests.support.loading import joined, text_dataset
from tests.support.ranks import Job, lines_of, processes_of_group

SAMPLES = 203


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return text_dataset(tmp_path_factory.mktemp("texts") / "set", SAMPLES)


def way(kind: str, workers: int, method: str | None = None) -> dict[str, Any]:
    return {"kind": kind, "batch_size": 4, "num_workers": workers, **({"method": method} if method else {})}


def check_ways(directory: Path, log: Path, ways: list[dict[str, Any]], method: str) -> None:
    options = {
        "dataset": {"local": str(directory), "batch_size": 4, "shuffle": True, "remainder": "exact"},
        "ways": ways,
        "log": str(log),
    }
    with Job("read_in_many_ways", 3, options, method=method) as job:
        job.wait()
    ranks = [lines_of(Path(f"{log}.{rank}")) for rank in range(3)]
    for number, expected in enumerate(ways):
        parts = [ranks[rank][number]["numbers"] for rank in range(3)]
        assert sorted(joined(parts)) == list(range(SAMPLES)), expected
        assert all(len(part) in (67, 68) for part in parts)
        # However they are read, each rank gets the same.
        assert parts == [ranks[rank][0]["numbers"] for rank in range(3)]


def test_three_spawned_ranks_know_their_place_from_the_process_group_alone(
    directory: Path, tmp_path: Path
) -> None:
    ways = [
        *(way(kind, 0) for kind in ("streaming", "plain")),
        *(way(kind, 2, "fork") for kind in ("streaming", "plain")),
    ]
    check_ways(directory, tmp_path / "log", ways, "spawn")


@pytest.mark.slow
def test_three_ranks_whose_workers_are_spawned_are_disjoint_too(directory: Path, tmp_path: Path) -> None:
    check_ways(directory, tmp_path / "log", [way("plain", 0), way("streaming", 2, "spawn")], "fork")


def run_chain(
    directory: Path, tmp_path: Path, legs: list[tuple[int, int, int, int | None]]
) -> list[list[dict[str, Any]]]:
    """Run one after another (ranks, workers, batch size, steps or None for the rest); give each leg's lines by rank."""
    state = tmp_path / "state.json"
    lines = []
    for number, (ranks, workers, batch_size, steps) in enumerate(legs):
        log = tmp_path / f"log-{number}"
        options = {
            "dataset": {"local": str(directory), "shuffle": True, "batch_size": batch_size},
            "loader": {"kind": "streaming", "batch_size": batch_size, "num_workers": workers},
            "log": str(log),
            "state": str(state),
            "steps": steps,
            "epochs": 1,
            "collective": True,
        }
        with Job("train", ranks, options) as job:
            job.wait()
        lines.append([line for rank in range(ranks) for line in lines_of(Path(f"{log}.{rank}"))])
    return lines


def numbers_without_padding(legs: list[list[dict[str, Any]]]) -> list[int]:
    found = []
    for line in joined(legs):
        found += line["numbers"][: len(line["numbers"]) - line["padding"]]
    return found


def test_a_run_goes_on_over_4_3_5_and_1_ranks_with_each_sample_once(directory: Path, tmp_path: Path) -> None:
    legs = run_chain(directory, tmp_path, [(4, 2, 5, 4), (3, 1, 4, 3), (5, 2, 3, 2), (1, 0, 7, None)])
    assert [len(leg) for leg in legs[:3]] == [16, 9, 10]
    assert sorted(numbers_without_padding(legs)) == list(range(SAMPLES))
    state = json.loads((tmp_path / "state.json").read_text())
    assert (state["epoch"], state["position"]) == (1, 0)


@pytest.mark.slow
def test_b130_a_run_goes_on_over_4_2_and_8_ranks_the_same_way_each_time(tmp_path: Path) -> None:
    directory = text_dataset(tmp_path / "set", 1000, samples_per_shard=31)
    runs = []
    for run in ("first", "second"):
        (tmp_path / run).mkdir()
        runs.append(run_chain(directory, tmp_path / run, [(4, 2, 4, 10), (2, 2, 8, 10), (8, 1, 3, None)]))
    assert sorted(numbers_without_padding(runs[0])) == list(range(1000))
    assert runs[0] == runs[1]


def test_b110_b098_two_ranks_that_meet_after_each_step_train_three_epochs_and_leave_nothing_but_the_cache(
    directory: Path, tmp_path: Path, short_directory: Path
) -> None:
    places = {name: short_directory / name for name in ("tmp", "home", "cache")}
    for place in places.values():
        place.mkdir()
    options = {
        "dataset": {"remote": directory.as_uri(), "local": str(places["cache"]), "shuffle": True},
        "loader": {"kind": "streaming", "batch_size": 8, "num_workers": 2, "persistent_workers": True},
        "log": str(tmp_path / "log"),
        "epochs": 3,
        "collective": True,
    }
    environment = {"TMPDIR": str(places["tmp"]), "HOME": str(places["home"])}
    pids: set[int] = set()
    with Job("train", 2, options, environment=environment) as job:
        while job.process.poll() is None:
            pids |= set(processes_of_group(job.process.pid))
            with suppress(subprocess.TimeoutExpired):
                job.process.wait(0.1)
        job.wait()
    lines = [lines_of(tmp_path / f"log.{rank}") for rank in range(2)]
    assert len(lines[0]) == len(lines[1])
    for epoch in range(3):
        of_epoch = [line for rank in lines for line in rank if line["epoch"] == epoch]
        assert sorted(numbers_without_padding([of_epoch])) == list(range(SAMPLES))
    assert len(pids) >= 3
    assert left_in(places["tmp"]) == left_in(places["home"]) == left_in_shared_memory(pids) == []
    hidden = places["cache"] / ".streamshard"
    assert left_in(hidden / "jobs") == []
    # A worker that takes torch too long to end is terminated, and its mark left for the next user to remove.
    CacheDirectory(places["cache"]).sweep()
    assert left_in(hidden / "alive") == []

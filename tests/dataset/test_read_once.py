"""``read_once=``: real process groups in which one member reads and the others see exactly what it sees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streamshard import StreamingDataLoader, StreamingDataset
from tests.support.damage import remove
from tests.support.loading import text_dataset
from tests.support.ranks import Job, lines_of

SAMPLES = 50


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return text_dataset(tmp_path_factory.mktemp("texts") / "set", SAMPLES)


def run(target: str, ranks: int, log: Path, options: dict[str, Any]) -> list[list[dict[str, Any]]]:
    with Job(f"parallel_trainers.{target}", ranks, {**options, "log": str(log)}) as job:
        job.wait()
    return [lines_of(Path(f"{log}.{rank}")) for rank in range(ranks)]


def check_story(
    directory: Path, log: Path, shape: list[int], ways: list[dict[str, Any]], **dataset: Any
) -> list[list[dict[str, Any]]]:
    ranks, batches = shape[0] * shape[1], SAMPLES / (4 * shape[0])
    options = {"dataset": {"local": str(directory), "shuffle": True, **dataset}, "shape": shape, "ways": ways}
    lines = run("read_once_and_apart", ranks, log, options)
    for rank, (apart, *together) in enumerate(lines):
        reads = rank % shape[1] == 0
        length = -int(-batches // 1)
        assert [len(apart["told"][epoch]["steps"]) for epoch in range(3)] == [length, 3, length]
        assert apart["reads"]
        assert apart["told"] == lines[rank - rank % shape[1]][0]["told"]
        for way, line in zip(ways, together, strict=True):
            assert line["told"] == apart["told"], (rank, way)
            workers = way.get("num_workers", 0)
            assert line["reads"] == (reads and not workers)
            assert bool(line["children"]) == (reads and workers > 0)
    return lines


def way(workers: int, **more: Any) -> dict[str, Any]:
    return {"kind": "streaming", "batch_size": 4, "num_workers": workers, **more}


def test_receivers_see_what_they_would_read(directory: Path, tmp_path: Path) -> None:
    check_story(directory, tmp_path / "log", [2, 2], [way(0), way(2)])


def test_receivers_count_what_was_left_out(tmp_path: Path) -> None:
    damaged = text_dataset(tmp_path / "damaged", SAMPLES)
    remove(damaged, 2)
    lines = check_story(damaged, tmp_path / "log", [1, 2], [way(0), way(2)], on_error="skip", error_limit=10)
    steps = lines[1][1]["told"][0]["steps"]
    assert [number for step in steps for number in step[0] if number // 10 == 2] == []
    assert steps[-2][2]["left_out"]["bad"] >= 8


@pytest.mark.slow
def test_receivers_see_what_they_would_read_with_kept_workers_and_an_exact_end(
    directory: Path, tmp_path: Path
) -> None:
    ways = [way(0), way(1), way(2, persistent_workers=True)]
    check_story(directory, tmp_path / "log", [1, 3], ways, remainder="exact")


def test_an_error_of_the_reader_is_the_same_error_everywhere(directory: Path, tmp_path: Path) -> None:
    damaged = text_dataset(tmp_path / "damaged", SAMPLES)
    remove(damaged, 2)
    cases = [
        ("OwnError", "number 9 is wrong", 2, {**way(0), "spoil": "own"}),
        ("OwnError", "number 9 is wrong", 2, {**way(2, persistent_workers=True), "spoil": "own"}),
        ("RuntimeError", "this and that", 2, {**way(0), "spoil": "two parts"}),
        ("", "lambda", 2, {**way(0), "spoil": "unpicklable"}),
        ("BlobNotFoundError", "shard.00002.mds", 5, {**way(2), "dataset": {"local": str(damaged)}}),
    ]
    options = {"dataset": {"local": str(directory)}, "ways": [case[3] for case in cases]}
    ranks = run("fail_together", 3, tmp_path / "log", options)
    for lines in ranks:
        for line, (kind, text, batches, _), of_reader in zip(lines, cases, ranks[0], strict=True):
            assert text in line["text"]
            assert line["batches"] == batches
            assert line["state"] == of_reader["state"]
            assert line["state"]["position"] == 4 * batches
            assert "has ended with an error" in line["again"]
            assert line["fresh"] == [0, 1, 2, 3]
            if lines is not ranks[0]:
                assert kind in ("", line["kind"])
                assert "in process 0, of the same read_once group" in line["cause"]
                assert "Traceback" in line["cause"]
    assert ranks[1][2]["text"] == "TwoPartError: this and that"
    assert [line["kind"] for line in ranks[0]][:3] == ["OwnError", "OwnError", "TwoPartError"]


def test_members_that_do_not_go_together_are_told_so_and_none_waits(directory: Path, tmp_path: Path) -> None:
    options = {"dataset": {"local": str(directory), "shuffle": True}}
    first, second = run("lose_each_other", 2, tmp_path / "log", options)
    said = {one["case"]: (one["said"], other["said"]) for one, other in zip(first, second, strict=True)}
    assert not any(line["children"] for line in (*first, *second))
    expected = {
        "other_ranks": "TopologyError: read_once: process 0 has rank=0; process 1 has rank=1: only processes of",
        "other_sizes": "process 0 has global_batch_size=4; process 1 has global_batch_size=5",
        "other_seeds": "TopologyError: read_once: process 0 has order=",
        "other_epochs": "StateError: read_once: process 0 has epoch=0; process 1 has epoch=1: all members",
        "other_places": "StateError: read_once: process 0 has position=0; process 1 has position=8",
        "another_call": "has call=next(), epoch=0, received=1; process 1 has call=iter(), epoch=1, received=0",
        "told_to_go_elsewhere_in_one": "StateError: this iterator was made before set_epoch()",
        "a_second_iterator_in_one": "StateError: a second iterator of StreamingDataset",
        "stopped_in_one": "RuntimeError: 0 more, position 4",
    }
    for case, text in expected.items():
        assert text in said[case][0], (case, said[case])
        assert said[case][0] == said[case][1], case
    assert said["refused_and_mended"][0].startswith("RuntimeError: 2 True [")
    assert said["refused_and_mended"][0] == said["refused_and_mended"][1]
    assert said["no_member"][0] == "RuntimeError: a member"
    assert said["no_member"][1].startswith("TopologyError: read_once: this process is no member of the group")


def test_what_is_no_process_group_is_refused(directory: Path) -> None:
    with pytest.raises(
        TypeError, match=r"read_once=3: expected a process group .* mesh\[\"tp\"\].get_group\(\)"
    ):
        StreamingDataLoader(StreamingDataset(local=directory), 4, read_once=3)

"""The report of bad samples, and what the log says where there is none."""

from __future__ import annotations

import json
import logging
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from streamshard import StreamingDataLoader, StreamingDataset, World
from streamshard.dataset.incidents import Incident, Incidents, report_path
from streamshard.dataset.left_out import LeftOut
from streamshard.dataset.tolerance import Cause
from streamshard.errors import BadSamplesError, StorageError
from tests.support.spoiled import (
    BAD,
    CUT,
    MISSING,
    PER_SHARD,
    SAMPLES,
    Twins,
    is_wanted,
    loader_of,
    read,
    write_twins,
)


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Twins:
    return write_twins(tmp_path_factory.mktemp("twins"))


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("mode", ["skip", "replace"])
def test_each_bad_sample_has_one_line_with_place_cause_and_action(
    twins: Twins, tmp_path: Path, mode: str, workers: int
) -> None:
    lines: list[dict[str, Any]] = []
    given: set[int] = set()
    for rank in range(2):
        loader = loader_of(
            twins.spoiled, rank, 2, on_error=mode, workers=workers, report=tmp_path / "new" / "reports",
            filter=is_wanted,
        )  # fmt: skip
        for _ in range(2):
            given |= {number for batch in read(loader).batches for number in batch}
        lines += lines_of(tmp_path / "new" / "reports" / f"bad-samples.rank{rank:05d}.jsonl")
    assert sorted((line["epoch"], line["sample"]) for line in lines) == sorted(
        (epoch, sample) for epoch in (0, 1) for sample in BAD
    )
    for line in lines:
        shard, row = divmod(line["sample"], PER_SHARD)
        assert (line["shard"], line["row"]) == (f"shard.{shard:05d}.mds", row)
        assert line["stream"] == str(twins.spoiled)
        assert line["action"] == mode
        assert (line["replacement"] is None) == (mode == "skip")
        assert line["replacement"] is None or line["replacement"] in given
        kind = "BlobNotFoundError" if shard == MISSING else "FormatError"
        assert line["cause"]["type"] == kind
        words = {MISSING: "no file", CUT: "it is cut"}.get(shard, "not UTF-8")
        assert words in line["cause"]["message"]
    assert {line["rank"] for line in lines} == {0, 1}


def test_a_file_is_the_base_of_each_ranks_name_and_grows_from_run_to_run(
    twins: Twins, tmp_path: Path
) -> None:
    base = tmp_path / "bad.jsonl"
    for _ in range(2):
        read(loader_of(twins.spoiled, 3, 4, on_error="skip", report=str(base)))
    assert [path.name for path in tmp_path.iterdir()] == ["bad.rank00003.jsonl"]
    lines = lines_of(report_path(str(base), 3))
    half = len(lines) // 2
    assert lines[:half] == lines[half:] != []


def test_ranks_that_read_the_same_samples_write_files_of_their_own(twins: Twins, tmp_path: Path) -> None:
    for rank in range(2):
        dataset = StreamingDataset(
            local=twins.spoiled, world=World(rank, 2), replication=2, batch_size=24, on_error="skip",
            error_limit=0.5, report=tmp_path,
        )  # fmt: skip
        list(StreamingDataLoader(dataset))
    first, second = (lines_of(report_path(str(tmp_path), rank)) for rank in range(2))
    assert [{**line, "rank": 1} for line in first] == second


def test_the_sample_that_was_one_too_many_is_in_the_report(twins: Twins, tmp_path: Path) -> None:
    with pytest.raises(BadSamplesError):
        read(loader_of(twins.spoiled, on_error="replace", error_limit=3, report=tmp_path))
    lines = lines_of(report_path(str(tmp_path), 0))
    assert [line["action"] for line in lines] == ["replace"] * 3 + ["raise"]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_report_that_cannot_be_written_is_said_before_the_first_batch(
    twins: Twins, tmp_path: Path, workers: int
) -> None:
    (tmp_path / "file").write_text("")
    loader = loader_of(twins.spoiled, on_error="skip", workers=workers, report=tmp_path / "file" / "reports")
    with pytest.raises(StorageError, match="report="):
        iter(loader)
    assert loader.dataset.next_epoch == 0
    (tmp_path / "file").unlink()
    assert len(read(loader).batches) == len(loader)


def incident(**changes: Any) -> Incident:
    plain = Incident(0, 0, 7, "s", "shard.00000.mds", 7, Cause("ValueError", "x"), "skip", None)
    return plain._replace(**changes)


def test_training_goes_on_when_the_report_can_no_longer_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    incidents = Incidents(str(tmp_path), 0, epoch=5, reader="rank 0")
    incidents.note(incident())

    def full(descriptor: int, line: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        incidents.note(incident())
        incidents.note(incident())
    incidents.note(incident())
    incidents.end(LeftOut(4, 0))
    incidents.end(LeftOut(4, 0))
    assert len(lines_of(report_path(str(tmp_path), 0))) == 2
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert "No space left" in said[0]
    assert "4 bad samples" in said[1]
    assert "except 2" in said[1]


def test_many_writers_share_a_file_line_by_line(tmp_path: Path) -> None:
    writers = [Incidents(str(tmp_path), 0, epoch=0, reader=str(number)) for number in range(3)]
    for sample in range(90):
        writers[sample % 3].note(incident(sample=sample, cause=Cause("E", "m" * 1500)))
    for writer in writers:
        writer.end(LeftOut())
    assert [line["sample"] for line in lines_of(report_path(str(tmp_path), 0))] == list(range(90))


def test_a_line_is_short_and_holds_no_credentials_and_no_line_break() -> None:
    cause = Cause.of(ValueError("s3://user:secret@host/x?sig=hidden\n" + "y" * 10_000))
    line = incident(cause=cause).line()
    assert line.count(b"\n") == 1
    assert len(line) < 2500
    assert b"secret" not in line
    assert b"hidden" not in line


def test_a_fifo_in_place_of_the_report_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(report_path(str(tmp_path), 0))
    with pytest.raises(StorageError, match="report="):
        Incidents(str(tmp_path), 0, epoch=0, reader="rank 0")
    assert stat.S_ISFIFO(report_path(str(tmp_path), 0).stat().st_mode)


def test_without_a_report_the_first_causes_and_the_count_are_logged(
    twins: Twins, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="streamshard"):
        read(loader_of(twins.spoiled, on_error="skip", filter=is_wanted))
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 4
    assert all("is bad: " in line for line in said[:3])
    unwanted = sum(not is_wanted({"number": number}) for number in set(range(SAMPLES)) - BAD)
    assert f"{len(BAD)} bad samples left out or replaced, and {unwanted} that filter=" in said[3]


def test_a_sound_dataset_says_nothing(twins: Twins, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    read(loader_of(twins.sound, on_error="skip", report=tmp_path))
    assert not caplog.records
    assert report_path(str(tmp_path), 0).read_bytes() == b""

"""``convert --sample-hash``: side files that are right, the same for any number of workers, and outlive a kill."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from streamshard import LocalDataset
from streamshard.cli.main import main
from streamshard.convert import job
from streamshard.convert.journal import Journal
from streamshard.errors import ConvertError
from streamshard.read.verify import verify_dataset
from tests.support.jsonl_inputs import files_of, run, write_lines

OPTIONS = {"size_limit": 2048, "shuffle": 3, "sample_hash": "xxh64"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "in.jsonl", [{"n": n, "text": f"line {n} " * 9} for n in range(200)])


def test_side_files_are_right_and_the_same_for_any_number_of_workers(source: Path, tmp_path: Path) -> None:
    for workers in (1, 2):
        run(source, tmp_path / f"w{workers}", workers=workers, **OPTIONS)
    assert files_of(tmp_path / "w1") == files_of(tmp_path / "w2")
    assert len(LocalDataset(tmp_path / "w1", validate_samples=True)[:]) == 200
    report = verify_dataset(tmp_path / "w1")
    assert report.ok
    assert report.hashed_samples == 200
    assert report.notes == []


def test_shards_are_those_of_a_run_without(source: Path, tmp_path: Path) -> None:
    run(source, tmp_path / "with", **OPTIONS)
    run(source, tmp_path / "without", **{**OPTIONS, "sample_hash": None})
    plain = files_of(tmp_path / "without")
    ours = files_of(tmp_path / "with")
    shards = [name for name in plain if name != "index.json"]
    assert sorted(ours) == sorted([*plain, *(f"{name}.samples" for name in shards)])
    assert {name: ours[name] for name in shards} == {name: plain[name] for name in shards}


def test_a_run_goes_on_after_a_kill_and_makes_a_side_file_anew_that_is_gone(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(source, tmp_path / "wanted", **OPTIONS)
    out = tmp_path / "A"
    with monkeypatch.context() as patch:
        patch.setattr(job._Job, "_publish", lambda *_: (_ for _ in ()).throw(ConvertError("killed here")))
        with pytest.raises(ConvertError, match="killed here"):
            run(source, out, workers=1, **OPTIONS)
    (out / "shard.00001.mds.samples").unlink()
    (out / "shard.00003.mds.samples").write_bytes(b"another")
    made: list[int] = []
    record = Journal.record
    monkeypatch.setattr(
        Journal, "record", lambda self, shard, *rest: (made.append(shard), record(self, shard, *rest))
    )
    run(source, out, workers=1, **OPTIONS)
    assert made == [1, 3]
    assert files_of(out) == files_of(tmp_path / "wanted")


def test_the_same_command_again_changes_nothing_and_a_lost_side_file_is_noticed(
    source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "A"
    command = ["convert", str(source), "--out", str(out), "--sample-hash", "sha1", "--json", "--quiet"]
    assert CliRunner().invoke(main, command).exit_code == 0
    again = CliRunner().invoke(main, command)
    assert json.loads(again.stdout)["finished_before"] is True
    (out / "shard.00000.mds.samples").unlink()
    again = CliRunner().invoke(main, command)
    assert again.exit_code == 1
    assert "shard.00000.mds.samples, the hashes of its samples, has 0 bytes instead of 4000" in again.stderr


def test_replacing_a_dataset_takes_its_side_files_away(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "A"
    run(source, out, **OPTIONS)
    run(source, out, overwrite=True, **{**OPTIONS, "sample_hash": None})
    assert not list(out.glob("*.samples"))
    run(source, out, overwrite=True, **OPTIONS)
    assert verify_dataset(out).ok


def test_an_unknown_hash_is_an_argument_that_makes_no_sense(source: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(
        main, ["convert", str(source), "--out", str(tmp_path / "A"), "--sample-hash", "x"]
    )
    assert done.exit_code == 2
    assert "'x'" in done.stderr

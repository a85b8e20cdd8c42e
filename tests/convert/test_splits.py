"""One input divided into several datasets."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from streamshard import LocalDataset
from streamshard.cli.main import main
from streamshard.convert import worker
from streamshard.convert.job import convert, convert_splits
from streamshard.convert.options import ConvertOptions
from streamshard.convert.splits import parse_splits, parts
from streamshard.convert.summary import Summary
from streamshard.errors import ConvertError
from tests.support.jsonl_inputs import files_of, picture, stopped_after, write_lines

_SPLITS = (("train", 0.9), ("val", 0.1))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "a.jsonl", [{"id": number} for number in range(100)])


def _run(source: Path, out: Path, splits: Any = _SPLITS, **options: Any) -> dict[str, Summary]:
    options.setdefault("workers", 1)
    return convert_splits(ConvertOptions(sources=(str(source),), out=str(out), **options), splits)


def _ids(out: Path) -> list[int]:
    return [sample["id"] for sample in LocalDataset(str(out))]


def test_every_record_is_in_exactly_one_split_of_exact_size(source: Path, tmp_path: Path) -> None:
    made = _run(source, tmp_path / "A", samples_per_shard=20)
    assert {name: summary.samples for name, summary in made.items()} == {"train": 90, "val": 10}
    train, val = _ids(tmp_path / "A" / "train"), _ids(tmp_path / "A" / "val")
    assert train == sorted(train)  # the order of the input, without a shuffle
    assert val != list(range(90, 100))
    assert sorted(train + val) == list(range(100))
    assert set(files_of(tmp_path / "A")) == {
        *(f"train/shard.0000{number}.mds" for number in range(5)), "train/index.json", "val/shard.00000.mds",
        "val/index.json",
    }  # fmt: skip
    again = _run(source, tmp_path / "A", samples_per_shard=20)
    assert all(summary.finished_before for summary in again.values())
    shuffled = _run(source, tmp_path / "B", shuffle=1)
    assert shuffled["val"].samples == 10
    assert _ids(tmp_path / "B" / "val") != sorted(_ids(tmp_path / "B" / "val"))


def test_counts_of_the_whole_are_not_told_of_a_part(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(picture())
    source = write_lines(tmp_path / "a.jsonl", [{"image": "a.png", "file": "a.png"}] * 10)
    made = _run(source, tmp_path / "A", file_keys=("file",))
    assert [(each.images, each.files) for each in made.values()] == [({}, {})] * 2
    whole = convert(ConvertOptions((str(source),), str(tmp_path / "B"), workers=1, file_keys=("file",)))
    assert (whole.images, whole.files) == ({"image": {"png": 10}}, {"file": {"other": 10}})


def test_the_input_is_scanned_once_and_an_interrupted_run_goes_on(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = tmp_path / "a.json"
    packed.write_text("[" + source.read_text().strip().replace("\n", ",") + "]")
    _run(packed, tmp_path / "whole", samples_per_shard=20)
    scan = worker.FUNCTIONS["scan"]
    scans: list[Any] = []

    def counted(task: Any, advance: Any) -> int:
        scans.append(task)
        return scan(task, advance)

    monkeypatch.setitem(worker.FUNCTIONS, "scan", counted)
    with stopped_after(5):
        _run(packed, tmp_path / "A", samples_per_shard=20)
    assert (tmp_path / "A" / "train" / "index.json").exists()
    assert not (tmp_path / "A" / "val" / "index.json").exists()
    made = _run(packed, tmp_path / "A", samples_per_shard=20)
    assert made["train"].finished_before
    assert len(scans) == 1
    assert files_of(tmp_path / "A") == files_of(tmp_path / "whole")


def test_a_lost_scan_is_done_again(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = tmp_path / "a.json"
    packed.write_text("[" + source.read_text().strip().replace("\n", ",") + "]")
    with monkeypatch.context() as patch:
        patch.setitem(worker.FUNCTIONS, "write", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            _run(packed, tmp_path / "A")
    assert (tmp_path / "A" / "train" / ".streamshard-convert" / "plan.json").exists()
    shutil.rmtree(tmp_path / "A" / ".streamshard-convert")
    assert _run(packed, tmp_path / "A")["val"].samples == 10


def test_a_split_without_records_is_named(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ConvertError, match=r"rest: a share of 0\.001 of 100 records has no record"):
        _run(source, tmp_path / "A", (("most", 0.999), ("rest", 0.001)))


@given(st.integers(0, 300), st.lists(st.integers(1, 20), min_size=1, max_size=5), st.integers(0, 2**64 - 1))
def test_parts_tile_the_records_whatever_their_shares(
    num_records: int, weights: list[int], seed: int
) -> None:
    splits = [(str(place), weight / sum(weights)) for place, weight in enumerate(weights)]
    rows = [np.concatenate([[], *part.rows(num_records)]) for _, part in parts(splits, seed)]
    assert sorted(np.concatenate(rows).tolist()) == list(range(num_records))
    for mine, (_, share) in zip(rows, splits, strict=True):
        assert abs(len(mine) - share * num_records) <= 1


@pytest.mark.parametrize(
    "text",
    ["train", "train=x", "train=0.5,val=0.4", "train=1.5", "a=0.5,a=0.5", "../x=1", "=1", "a=0,b=1", ".x=1", "a=nan"]
)  # fmt: skip
def test_splits_that_cannot_be_are_named(text: str) -> None:
    with pytest.raises(ValueError, match="--split"):
        parse_splits(text)


def test_splits_on_the_command_line(source: Path, tmp_path: Path) -> None:
    command = ["convert", str(source), "--out", str(tmp_path / "A"), "--quiet", "--split"]
    done = CliRunner().invoke(main, [*command, "train=0.7,val=0.2,test=0.1"])
    assert done.exit_code == 0
    assert [line.split()[0] for line in done.stdout.splitlines() if "samples" in line] == ["70", "20", "10"]
    assert CliRunner().invoke(main, [*command, "train=0.7"]).exit_code == 2
    assert CliRunner().invoke(main, [*command, "train=1", "--dry-run"]).exit_code == 2

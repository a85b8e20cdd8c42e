"""Bad records listed in full, counted against a limit; runs that only say what they would do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from streamshard import LocalDataset
from streamshard.convert import job
from streamshard.convert.option_texts import parse_max_errors
from streamshard.convert.options import ConvertOptions
from streamshard.errors import ConvertError
from tests.support.jsonl_inputs import files_of, picture, run, write_lines


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "good.png").write_bytes(picture())
    (tmp_path / "cut.jpg").write_bytes(b"\xff\xd8\xff")
    rows: list[dict[str, Any]] = [{"id": f"r{number}", "image": "good.png"} for number in range(10)]
    rows[2]["image"] = "nope.png"
    rows[3]["image"] = "/etc/hostname"
    rows[5]["image"] = "cut.jpg"
    path = write_lines(tmp_path / "a.jsonl", rows)
    path.write_text(path.read_text().replace('{"id": "r7"', '{"id: "r7"'))
    return path


def test_all_records_left_out_are_listed_with_file_line_path_and_reason(source: Path, tmp_path: Path) -> None:
    summary = run(source, tmp_path / "A", on_error="skip")
    listed = [json.loads(line) for line in (tmp_path / "A" / "rejected.jsonl").read_text().splitlines()]
    assert [(row["file"], row["line"], row.get("id"), row.get("path"), row["reason"]) for row in listed] == [
        ("a.jsonl", 3, "r2", "nope.png", "missing image"),
        ("a.jsonl", 4, "r3", "/etc/hostname", "image outside the root"),
        ("a.jsonl", 6, "r5", "cut.jpg", "unreadable image"),
        ("a.jsonl", 8, None, None, "broken JSON"),
    ]
    assert listed[0]["message"].startswith("image 'nope.png' does not exist")
    assert f"  all of them: {tmp_path / 'A'}/rejected.jsonl" in summary.lines()
    assert len(LocalDataset(str(tmp_path / "A"))) == 6
    assert run(source, tmp_path / "A", on_error="skip").finished_before
    run(source, tmp_path / "B", on_error="skip", workers=2)
    assert files_of(tmp_path / "A") == files_of(tmp_path / "B")


def test_the_list_is_whole_however_many_there_are(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": 1}\n' + "[]\n" * 3000)
    assert len(run(path, tmp_path / "A", on_error="skip").skips) == 100
    assert len((tmp_path / "A" / "rejected.jsonl").read_text().splitlines()) == 3000
    with pytest.raises(
        ConvertError, match=r"and 2980 more\n.*all of them are listed in (.*rejected\.jsonl)"
    ) as caught:
        run(path, tmp_path / "B")
    named = Path(str(caught.value).rpartition("listed in ")[2])
    assert len(named.read_text().splitlines()) == 3000
    write_lines(path, [{"id": 1}])
    run(path, tmp_path / "A", on_error="skip", overwrite=True)
    assert not (tmp_path / "A" / "rejected.jsonl").exists()


@pytest.mark.parametrize(("limit", "enough"), [(4, True), (3, False), (0, False), (0.4, True), (0.39, False)])
def test_more_than_a_number_or_share_of_bad_records_is_an_error(
    source: Path, tmp_path: Path, limit: float, enough: bool
) -> None:
    if enough:
        assert run(source, tmp_path / "A", on_error="skip", max_errors=limit).samples == 6
        return
    with pytest.raises(
        ConvertError,
        match=rf"4 records(.|\n)*more than the {int(limit * 10) if isinstance(limit, float) else limit} of 10",
    ):
        run(source, tmp_path / "A", on_error="skip", max_errors=limit)
    assert not (tmp_path / "A" / "index.json").exists()
    assert run(source, tmp_path / "A", on_error="skip", max_errors=4).samples == 6


def test_a_smaller_limit_counts_for_a_run_that_goes_on(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(job._Job, "_write", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run(source, tmp_path / "A", on_error="skip")
    with pytest.raises(ConvertError, match="more than the 1 of 10"):
        run(source, tmp_path / "A", on_error="skip", max_errors=1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_errors": 3}, "on_error='skip' alone"),
        ({"max_errors": -1, "on_error": "skip"}, "max_errors=-1: expected"),
        ({"max_errors": 1.5, "on_error": "skip"}, "max_errors=1.5: expected"),
        (
            {"engine": "ray", "allow_outside_root": True, "on_error": "skip"},
            "left out as missing; put all below",
        ),
    ],
)
def test_limits_that_cannot_be_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ConvertOptions(sources=("a",), out="b", **options)
    with pytest.raises(ValueError, match="--max-errors many: expected a number or a share"):
        parse_max_errors("many")
    assert (parse_max_errors("7"), parse_max_errors("1%")) == (7, 0.01)


def _dry(source: Path, out: Path, **options: Any) -> Any:
    return job.dry_run(ConvertOptions(sources=(str(source),), out=str(out), workers=1, **options))


def test_a_dry_run_says_what_would_be_and_writes_nothing(source: Path, tmp_path: Path) -> None:
    before = files_of(tmp_path)
    told = _dry(source, tmp_path / "A", samples_per_shard=4, shuffle=1)
    assert files_of(tmp_path) == before
    assert not (tmp_path / "A").exists()
    done = run(source, tmp_path / "A", samples_per_shard=4, shuffle=1, on_error="skip")
    assert (told.samples, told.shards, told.raw_nbytes) == (done.samples, done.shards, done.raw_nbytes)
    assert (told.columns, told.images, told.skipped) == (done.columns, done.images, done.skipped)
    assert [str(skip) for skip in told.skips] == [str(skip) for skip in done.skips]
    assert told.to_json()["dry_run"]
    lines = told.lines()
    assert lines[0].startswith("nothing was written; it would be 6 samples in 2 shards, ")
    assert (
        "cannot be converted: 4 records (1 broken JSON, 1 image outside the root, 1 missing image, 1 unreadable image)"
        in lines
    )


def test_a_dry_run_leaves_a_finished_dataset_and_an_interrupted_run_alone(
    source: Path, tmp_path: Path
) -> None:
    run(source, tmp_path / "A", on_error="skip")
    before = files_of(tmp_path)
    _dry(source, tmp_path / "A", compression="zstd")
    assert files_of(tmp_path) == before

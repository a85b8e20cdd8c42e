"""``streamshard convert`` as it is typed."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pty
import shlex
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from streamshard import LocalDataset
from streamshard.cli._progress import BarProgress, LineProgress, terminal_progress
from streamshard.cli.main import main
from streamshard.storage import open_store
from tests.support.jsonl_inputs import chat_rows, files_of, picture, write_lines

_RUN = [sys.executable, "-c", "from streamshard.cli.main import main; main()"]


def _convert(*arguments: Any) -> Result:
    return CliRunner().invoke(main, ["convert", *map(str, arguments)])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "train.jsonl", chat_rows(40, tmp_path / "images", image_every=4))


def test_the_summary_says_what_was_made(source: Path, tmp_path: Path) -> None:
    done = _convert(source, "--out", tmp_path / "A", "--workers", 1)
    assert done.exit_code == 0
    assert done.stdout.startswith("40 samples in 1 shards, ")
    assert "columns: conversations json, id str, image list[png], image_path json" in done.stdout
    assert "images under 'image': 10 png" in done.stdout
    assert (
        "warning: 30 of 40 records have image tags in their text and no image (first: train.jsonl:2)"
        in done.stdout
    )
    assert "checking records and images: " in done.stderr
    assert "writing shards: " in done.stderr


def test_json_and_quiet_are_for_scripts(source: Path, tmp_path: Path) -> None:
    done = _convert(source, "--out", tmp_path / "A", "--workers", 1, "--json", "--quiet")
    assert done.stderr == ""
    summary = json.loads(done.stdout)
    assert summary["samples"] == 40
    assert summary["images"] == {"image": {"png": 10}}
    assert summary["bytes"] == sum(path.stat().st_size for path in (tmp_path / "A").glob("*.mds"))
    assert summary["skipped"] == 0
    assert summary["columns"]["id"] == "str"


def test_skipped_records_are_counted_by_reason_and_named(source: Path, tmp_path: Path) -> None:
    with source.open("a") as file:
        file.write('{"id": "gone", "image": "nope.png"}\n{"id":\n')
    refused = _convert(source, "--out", tmp_path / "A", "--workers", 1)
    assert refused.exit_code == 1
    assert "2 records cannot be converted (1 broken JSON, 1 missing image)" in refused.stderr
    done = _convert(source, "--out", tmp_path / "A", "--workers", 1, "--on-error", "skip")
    assert done.exit_code == 0
    assert "skipped: 2 records (1 broken JSON, 1 missing image)" in done.stdout
    assert "train.jsonl:41: image 'nope.png' does not exist" in done.stdout
    assert "(id gone)" in done.stdout
    done = _convert(source, "--out", tmp_path / "B", "--workers", 1, "--on-error", "skip", "--json")
    summary = json.loads(done.stdout)
    assert summary["skipped_by_reason"] == {"broken JSON": 1, "missing image": 1}
    assert summary["skipped_records"][0]["where"] == "train.jsonl:41"
    assert summary["skipped_records"][0]["id"] == "gone"


def test_nothing_left_is_exit_1(tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text("{\n")
    done = _convert(source, "--out", tmp_path / "A", "--on-error", "skip")
    assert done.exit_code == 1
    assert "0 samples: all 1 records" in done.stderr


@pytest.mark.parametrize("where", ["before", "between", "after"])
def test_shuffle_stands_alone_and_takes_a_seed_only_behind_an_equals_sign(
    source: Path, tmp_path: Path, where: str
) -> None:
    out = ["--out", str(tmp_path / "A"), "--workers", "1"]
    arguments = {
        "before": ["--shuffle", source, *out],
        "between": [*out, "--shuffle", source],
        "after": [source, *out, "--shuffle"],
    }[where]
    assert _convert(*arguments).exit_code == 0
    assert _convert(source, "--out", tmp_path / "B", "--shuffle=0", "--workers", 1).exit_code == 0
    assert _convert(source, "--out", tmp_path / "C", "--shuffle=1", "--workers", 1).exit_code == 0
    assert files_of(tmp_path / "A") == files_of(tmp_path / "B") != files_of(tmp_path / "C")
    ids = [sample["id"] for sample in LocalDataset(str(tmp_path / "A"))]
    assert ids != sorted(ids, key=lambda name: int(name[1:]))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--size-limit", "abc"], "size_limit='abc'"),
        (["--size-limit", "4gb"], "size_limit=4294967296"),
        (["--size-limit", "0"], "size_limit=0"),
        (["--compression", "lz77"], "lz77"),
        (["--hash", "crc8"], "crc8"),
        (["--on-error", "ignore"], "ignore"),
        (["--workers", "0"], "0"),
        (["--shuffle=x"], "x"),
        (["--shuffle", "42"], "--shuffle=42"),
        (["--hash", "none", "--hash", "md5"], "--hash none and --hash md5"),
        (["--image-key", "none", "--image-key", "image"], "'none' stands alone"),
        (["--image-key", ""], "empty string"),
        (["--file-key", "none", "--file-key", "audio"], "'none' stands alone"),
        (["--work-dir", "W"], "work_dir is for an out that is a URL"),
    ],
)
def test_an_option_that_cannot_be_is_a_usage_error(
    source: Path, tmp_path: Path, arguments: list[str], words: str
) -> None:
    done = _convert(source, "--out", tmp_path / "A", *arguments)
    assert done.exit_code == 2
    assert words in done.stderr
    assert not (tmp_path / "A").exists()


def test_all_options_reach_the_conversion(source: Path, tmp_path: Path) -> None:
    options = [
        "--size-limit",
        "none",
        "--samples-per-shard",
        9,
        "--compression",
        "zstd:3",
        "--hash",
        "sha1",
        "--hash",
        "xxh64",
    ]
    more = [
        "--image-root",
        tmp_path,
        "--image-key",
        "image",
        "--no-check",
        "--max-image-pixels",
        10,
        "--allow-outside-root",
    ]
    done = _convert(
        source, "--out", tmp_path / "A", "--workers", 2, *options, *more, "--json-rest", "rest", "--no-resume"
    )
    assert done.exit_code == 0, done.stderr
    shards = json.loads((tmp_path / "A" / "index.json").read_bytes())["shards"]
    assert [shard["samples"] for shard in shards] == [9, 9, 9, 9, 4]
    assert shards[0]["hashes"] == ["sha1", "xxh64"]
    assert shards[0]["size_limit"] is None
    assert shards[0]["zip_data"]["basename"] == "shard.00000.mds.zstd"
    done = _convert(source, "--out", tmp_path / "A", "--overwrite", "--hash", "none", "--workers", 1)
    assert json.loads((tmp_path / "A" / "index.json").read_bytes())["shards"][0]["hashes"] == []


def test_a_finished_dataset_is_refused_without_overwrite(source: Path, tmp_path: Path) -> None:
    assert _convert(source, "--out", tmp_path / "A", "--workers", 1).exit_code == 0
    before = files_of(tmp_path / "A")
    refused = _convert(source, "--out", tmp_path / "A", "--size-limit", "1kb", "--workers", 1)
    assert refused.exit_code == 1
    assert "--overwrite" in refused.stderr
    assert files_of(tmp_path / "A") == before
    again = _convert(source, "--out", tmp_path / "A", "--workers", 1)
    assert again.exit_code == 0
    assert "is finished already" in again.stdout


def test_a_place_that_cannot_be_written_is_named(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = _convert(source, "--out", tmp_path / "file" / "A", "--workers", 1)
    assert done.exit_code == 1
    assert "file" in done.stderr
    assert done.exception is None or isinstance(done.exception, SystemExit)


def test_an_output_below_a_file_is_named(source: Path, tmp_path: Path) -> None:
    for out in (source, source / "A"):
        done = _convert(source, "--out", out)
        assert done.exit_code == 1
        assert "a directory cannot be made there" in done.stderr


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-", "2> /dev/full", "2>&1 >&- | :"])
def test_work_goes_on_when_nobody_hears_of_it(source: Path, tmp_path: Path, closed: str) -> None:
    command = [*_RUN, "convert", source, "--out", tmp_path / "A", "--workers", 2, "--samples-per-shard", 10]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUNBUFFERED": ""}
    text = f"{shlex.join(map(str, command))} {closed}"
    subprocess.run(["bash", "-c", text], env=environment, check=True, timeout=60)
    assert len(LocalDataset(str(tmp_path / "A"))) == 40


def test_what_comes_from_the_data_cannot_act_on_the_terminal(tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text(json.dumps({"k\x1b[2J": 1, "image": "\x1b[31mx.png"}) + "\n")
    done = _convert(source, "--out", tmp_path / "A", "--workers", 1)
    assert "\x1b" not in done.stderr
    done = _convert(source, "--out", tmp_path / "A", "--workers", 1, "--image-key", "none")
    assert done.exit_code == 0
    assert "\x1b" not in done.stdout


def test_help_fits_a_tall_screen() -> None:
    done = CliRunner().invoke(main, ["convert", "--help"], terminal_width=80)
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert len(lines) <= 80
    assert max(map(len, lines)) <= 80
    command = main.get_command(click.Context(main), "convert")
    assert command is not None
    options = [option for option in command.params if isinstance(option, click.Option)]
    assert len(options) > 40
    for option in options:
        assert sum(line.split()[:1] == [option.opts[0]] for line in lines) == 1, option.opts


def _help_examples() -> list[str]:
    done = CliRunner().invoke(main, ["convert", "--help"], terminal_width=80)
    return [line.strip() for line in done.stdout.splitlines() if line.startswith("    streamshard convert")]


@pytest.mark.parametrize("line", _help_examples())
def test_the_examples_of_the_help_run(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    photos = [f"photos/{kind}/{number}.png" for kind in ("cat", "dog") for number in range(5)]
    for name in ("images/a.png", "photo.png", *photos):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(picture())
    Path("train.jsonl").write_text('{"image": "a.png", "text": "t"}\n')
    Path("all.json").write_text('{"data": [{"photo": "photo.png"}]}')
    Path("tars").mkdir()
    with tarfile.open("tars/0.tar", "w") as tar:
        tar.add("photo.png", "0.png")
    done = CliRunner().invoke(main, [*shlex.split(line)[1:], "--workers", "1"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "warning" not in done.output
    assert ("--dry-run" in line) != any(Path("shards").rglob("index.json"))


def test_there_are_examples() -> None:
    assert len(_help_examples()) == 5


def test_a_terminal_sees_a_bar_with_rate_and_time_left(source: Path, tmp_path: Path) -> None:
    terminal, stderr = pty.openpty()
    process = subprocess.Popen(
        [*_RUN, "convert", str(source), "--out", str(tmp_path / "A"), "--workers", "1"],
        stderr=stderr,
        stdout=subprocess.PIPE,
        env={**os.environ, "COLUMNS": "120", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    os.close(stderr)
    shown = b""
    with open(terminal, "rb", buffering=0) as screen:
        try:
            while part := screen.read(4096):
                shown += part
        except OSError:  # the other end is closed
            pass
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert b"40 samples" in output
    assert b"checking records and images" in shown
    assert b"B/s" in shown


def test_a_log_gets_plain_lines_at_intervals() -> None:
    log = io.StringIO()
    progress = terminal_progress(log)
    assert isinstance(progress, LineProgress)
    progress = LineProgress(log, seconds=0)
    progress.begin("writing shards", 4096, 10)
    progress.advance(1024, 3)
    progress.advance(3072, 7)
    progress.end()
    lines = log.getvalue().splitlines()
    assert lines[0] == "writing shards: 4.0 KiB, 10 records"
    assert lines[1].startswith("writing shards: 25 %, 3 records, 1.0 KiB of 4.0 KiB, ")
    assert lines[2].startswith("writing shards: 100 %, 10 records, 4.0 KiB of 4.0 KiB, ")
    assert lines[2].endswith("0:00 left")


def test_a_bar_takes_notes_and_never_passes_its_end() -> None:
    screen = io.StringIO()
    progress = BarProgress(screen)
    progress.note("before")
    progress.begin("writing shards", 100, None)
    progress.advance(1000, 1)
    progress.note("in between")
    progress.end()
    progress.advance(1, 1)
    shown = screen.getvalue()
    assert "before\n" in shown
    assert "in between" in shown


def test_b143_an_endpoint_from_the_environment_reaches_every_worker(
    source: Path, tmp_path: Path, s3: Any
) -> None:
    options = s3.storage_options
    environment = {
        **os.environ,
        "AWS_ACCESS_KEY_ID": options["key"],
        "AWS_SECRET_ACCESS_KEY": options["secret"],
        "AWS_ENDPOINT_URL": s3.endpoint_url,
        "AWS_DEFAULT_REGION": "us-east-1",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    out = f"{s3.make_bucket()}/a b+c"
    arguments = [str(source), "--out", out, "--workers", "2", "--samples-per-shard", "10", "--json"]
    done = subprocess.run([*_RUN, "convert", *arguments], env=environment, capture_output=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["shards"] == 4
    store = open_store(out, storage_options=options)
    assert _convert(source, "--out", tmp_path / "A", "--workers", 1, "--samples-per-shard", 10).exit_code == 0
    assert {name: hashlib.sha256(store.read(name)).hexdigest() for name in store.list()} == files_of(
        tmp_path / "A"
    )


def test_a_dry_run_exits_with_1_where_the_run_would_stop(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{"id": 1}, {"image": "nope.png"}])
    command = ["convert", str(source), "--out", str(tmp_path / "A"), "--dry-run", "--quiet"]
    stopped = CliRunner().invoke(main, command)
    assert stopped.exit_code == 1
    assert "a.jsonl:2: image 'nope.png' does not exist" in stopped.stdout
    assert CliRunner().invoke(main, [*command, "--on-error", "skip"]).exit_code == 0
    assert not (tmp_path / "A").exists()


def test_max_errors_is_a_number_or_a_share(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{"id": 1}, {"image": "nope.png"}])
    command = [
        "convert",
        str(source),
        "--out",
        str(tmp_path / "A"),
        "--on-error",
        "skip",
        "--quiet",
        "--max-errors",
    ]
    refused = CliRunner().invoke(main, [*command, "49%"])
    assert refused.exit_code == 1
    assert "more than the 0 of 2 that --max-errors allows" in refused.stderr
    assert CliRunner().invoke(main, [*command, "many"]).exit_code == 2
    assert CliRunner().invoke(main, [*command, "50%"]).exit_code == 0

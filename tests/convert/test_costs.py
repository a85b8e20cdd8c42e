"""``convert --cost``: sums of each shard in the index, whatever the workers, a shuffle, skips or a kill."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from streamshard.cli.main import main
from streamshard.convert import job
from streamshard.convert.options import ConvertOptions
from streamshard.errors import ConvertError
from tests.support.jsonl_inputs import files_of, picture, run, stopped_after, write_lines
from tests.support.stored_datasets import load_index, load_samples

COSTS = (("tokens", "ids"), ("length", "n"), ("turns", "turns"))
OPTIONS: dict[str, Any] = {"size_limit": 8192, "shuffle": 5, "costs": COSTS}


def rows(count: int) -> list[dict[str, Any]]:
    """Records of which some lack ``turns`` or have null for it."""
    made = []
    for number in range(count):
        row: dict[str, Any] = {"n": number, "ids": list(range(number % 17)), "text": "x" * (number % 50)}
        if number % 3:
            row["turns"] = [{"a": 1}] * (number % 5) if number % 2 else None
        made.append(row)
    return made


def counted(samples: list[dict[str, Any]]) -> dict[str, int]:
    return {
        "tokens": sum(len(sample["ids"]) for sample in samples),
        "length": sum(sample["n"] for sample in samples),
        "turns": sum(len(sample.get("turns") or []) for sample in samples),
    }


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lines(tmp_path_factory.mktemp("costs") / "a.jsonl", rows(1200))


@pytest.fixture(scope="module")
def wanted(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    out = tmp_path_factory.mktemp("wanted") / "A"
    run(source, out, **OPTIONS)
    return files_of(out)


def test_each_shard_has_the_sums_of_its_own_samples(source: Path, tmp_path: Path) -> None:
    summary = run(source, tmp_path / "A", **OPTIONS)
    index, samples = load_index(tmp_path / "A"), load_samples(tmp_path / "A")
    assert index.num_shards > 12
    for shard in range(index.num_shards):
        mine = samples[index.begins[shard] : index.begins[shard + 1]]
        assert {name: int(sums[shard]) for name, sums in index.costs.items()} == counted(mine)
    assert summary.costs == counted(rows(1200))
    assert summary.to_json()["costs"] == summary.costs
    assert f"cost length: {1199 * 600} (599.5 a sample)" in summary.lines()
    again = run(source, tmp_path / "A", **OPTIONS)
    assert again.finished_before
    assert again.costs == summary.costs


def test_costs_change_nothing_but_the_index(source: Path, tmp_path: Path) -> None:
    run(source, tmp_path / "A", **OPTIONS)
    run(source, tmp_path / "B", **{**OPTIONS, "costs": ()})
    costly, plain = files_of(tmp_path / "A"), files_of(tmp_path / "B")
    assert costly.pop("index.json") != plain.pop("index.json")
    assert costly == plain
    extra = json.loads((tmp_path / "B" / "index.json").read_text())["streamshard"]
    assert set(extra) == {"convert", "images"}


def test_a_job_without_costs_is_the_job_that_it_was_before_there_were_any() -> None:
    """Else datasets that are finished would not be recognised as the outcome of the same command."""
    assert ConvertOptions(("a",), "b").portable_digest() == "753c3dd5fd5cf956"
    digests = {
        ConvertOptions(("a",), "b", costs=costs).portable_digest()
        for costs in ((), (("x", "n"),), (("x", "m"),), (("y", "n"),))
    }
    assert len(digests) == 4


@pytest.mark.parametrize("workers", [2, 3])
def test_any_number_of_workers_and_any_order_of_options_write_the_same_bytes(
    source: Path, wanted: dict[str, str], tmp_path: Path, workers: int
) -> None:
    run(source, tmp_path / "A", workers=workers, **{**OPTIONS, "costs": COSTS[::-1]})
    assert files_of(tmp_path / "A") == wanted


def _kill_when(command: list[str], ready: Callable[[], bool]) -> None:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and not ready():
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.01)
    children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    process.kill()
    process.wait()
    psutil.wait_procs(children, timeout=30)


def test_after_a_kill_the_rerun_has_the_same_costs(
    source: Path, wanted: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "A"
    costs = [part for name, key in COSTS for part in ("--cost", f"{name}={key}")]
    code = "from streamshard.cli.main import main; main()"
    command = [
        sys.executable, "-c", code, "convert", str(source), "--out", str(out), "--size-limit", "8kb", "--shuffle=5",
        "--workers", "2", *costs,
    ]  # fmt: skip
    for _ in range(10):
        shutil.rmtree(out, ignore_errors=True)
        _kill_when(command, lambda: len(list(out.glob(".streamshard-convert/done/*.json"))) >= 3)
        if not (out / "index.json").exists():
            break
    finished = subprocess.run(command, check=True, capture_output=True, timeout=100, text=True)
    assert "resumed: " in finished.stdout
    assert files_of(out) == wanted


@pytest.mark.parametrize("other", [(), (("tokens", "n"),), (*COSTS, ("more", "n"))])
def test_other_costs_than_an_interrupted_run_had_are_planned_anew(
    source: Path, tmp_path: Path, other: Any
) -> None:
    out = tmp_path / "A"
    with stopped_after(5):
        run(source, out, **OPTIONS)
    notes: list[str] = []

    class Notes(job.SilentProgress):
        def note(self, text: str) -> None:
            notes.append(text)

    options = {**OPTIONS, "costs": other}
    job.convert(ConvertOptions((str(source),), str(out), workers=1, **options), Notes())
    assert "work of an interrupted run is planned anew: costs was [['length', 'n'], " in notes[0]
    run(source, tmp_path / "B", **options)
    assert files_of(out) == files_of(tmp_path / "B")


BAD = [
    ({"n": "many"}, "found str 'many'; expected a whole number, or a list"),
    ({"n": -3}, r"found -3; expected 0 to 2\*\*63 - 1"),
    ({"n": 1.5}, r"found float 1\.5"),
    ({"n": True}, "found bool True"),
    ({"n": {"a": 1}}, "found dict"),
    ({"n": [[1], [2]]}, "found a list of lists"),
    ({"n": 1 << 63}, f"found {1 << 63}"),
]


@pytest.mark.parametrize(("bad", "words"), BAD)
def test_a_value_that_counts_nothing_is_refused_with_its_line_or_skipped(
    tmp_path: Path, bad: dict[str, Any], words: str
) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{"n": 5}, bad, {"n": [1, 2]}, {"m": 1}])
    with pytest.raises(ConvertError, match=rf"a\.jsonl:2: cost 'tokens', key 'n': {words}"):
        run(source, tmp_path / "A", costs=(("tokens", "n"),))
    assert not list(tmp_path.glob("A/*.mds"))
    summary = run(source, tmp_path / "B", costs=(("tokens", "n"),), on_error="skip")
    assert summary.skipped == {"cost that cannot be counted": 1}
    assert load_index(tmp_path / "B").costs["tokens"].tolist() == [7]


def test_a_key_that_no_record_has_is_refused(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{"n": 5}, {"m": 1}])
    with pytest.raises(ConvertError, match="--cost tokens=num: no record has that key; there are: 'm', 'n'"):
        run(source, tmp_path / "A", costs=(("tokens", "num"),))


def test_pictures_and_keys_without_a_column_of_their_own_are_counted(tmp_path: Path) -> None:
    (tmp_path / "i.png").write_bytes(picture())
    made = [{f"k{number}": number for number in range(300)}, {"images": ["i.png", "i.png"]}, {"images": []}]
    source = write_lines(tmp_path / "a.jsonl", made)
    run(source, tmp_path / "A", costs=(("pictures", "images"), ("rare", "k99")), json_rest="rest")
    assert "k99" not in load_index(tmp_path / "A").shards[0].schema.names
    assert {name: sums.tolist() for name, sums in load_index(tmp_path / "A").costs.items()} == {
        "pictures": [2],
        "rare": [99],
    }


def test_a_total_beyond_int64_is_refused(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{"n": 1 << 62}] * 2)
    with pytest.raises(ConvertError, match="cost 'tokens' adds up to"):
        run(source, tmp_path / "A", costs=(("tokens", "n"),))
    assert not (tmp_path / "A" / "index.json").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--cost", "tokens"], "--cost tokens: expected NAME=KEY, such as tokens=num_tokens"),
        (["--cost", "tokens="], "cost 'tokens': expected one key of the records, found ''"),
        (["--cost", "=n"], "cost name ''"),
        (["--cost", "bytes=n"], "cost name 'bytes'"),
        (["--cost", "a=n", "--cost", "a=m"], "cost 'a': expected one key of the records, found 'n' and 'm'"),
    ],
)
def test_options_that_make_no_sense_are_refused(tmp_path: Path, arguments: list[str], words: str) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{"n": 5}])
    done = CliRunner().invoke(main, ["convert", str(source), "--out", str(tmp_path / "A"), *arguments])
    assert done.exit_code == 2
    assert words in " ".join(done.stderr.split())
    assert not (tmp_path / "A").exists()


def test_a_key_may_hold_an_equals_sign(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{"a=b": 5}])
    arguments = ["convert", str(source), "--out", str(tmp_path / "A"), "--workers", "1", "--cost", "t=a=b"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.stderr
    assert "cost t: 5 (5.0 a sample)" in done.stdout

"""Input that is sorted by some key is pointed out; a plan of many records takes no more memory than one of few."""

from __future__ import annotations

import subprocess
import sys
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamshard.convert.findings import count_repeated
from streamshard.convert.runs import EVERY, Runs, RunsOfKeys, parse_runs
from tests.support.jsonl_inputs import picture, run, write_lines


def _warning(rows: list[dict[str, Any]], folder: Path, **options: Any) -> str | None:
    options = {"samples_per_shard": 100, **options}
    summary = run(write_lines(folder / "a.jsonl", rows), folder / "out", **options)
    found = [warning for warning in summary.warnings if "sorted by" in warning]
    assert len(found) <= 1
    return found[0] if found else None


def test_records_sorted_by_a_key_are_pointed_out(tmp_path: Path) -> None:
    rows = [{"id": number, "lang": f"l{number // 300}", "text": str(number) * 30} for number in range(900)]
    warning = _warning(rows, tmp_path)
    assert warning is not None
    assert warning.startswith("the records are sorted by 'lang': at least 28")
    assert "a shard has about 100" in warning
    assert "--shuffle" in warning


@pytest.mark.parametrize(
    ("rows", "options"),
    [
        ([{"lang": f"l{number // 300}"} for number in range(900)], {"shuffle": 0}),
        ([{"lang": f"l{number // 300}"} for number in range(900)], {"samples_per_shard": 1000}),
        ([{"lang": f"l{number // 60}"} for number in range(900)], {}),
        ([{"lang": f"l{number * 7919 % 3}"} for number in range(900)], {}),
        ([{"lang": "en", "id": number} for number in range(900)], {}),
        ([{"lang": [number // 300]} for number in range(900)], {}),
    ],
    ids=["shuffled", "one shard", "short runs", "mixed", "all alike", "no plain value"],
)
def test_others_are_not(tmp_path: Path, rows: list[dict[str, Any]], options: dict[str, Any]) -> None:
    assert _warning(rows, tmp_path, **options) is None


def test_a_folder_of_classes_is(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "in" / name).mkdir(parents=True)
        for number in range(80):
            (tmp_path / "in" / name / f"{number}.png").write_bytes(picture())
    summary = run(tmp_path / "in", tmp_path / "out", samples_per_shard=40, check=False)
    assert "the records are sorted by 'label': at least 65 in a row" in summary.warnings[-1]


@given(
    values=st.lists(st.integers(0, 2), min_size=1, max_size=30), cuts=st.lists(st.integers(0, 30), max_size=3)
)
def test_runs_are_the_same_however_the_input_is_cut(values: list[int], cuts: list[int]) -> None:
    borders = sorted({0, len(values), *(cut for cut in cuts if cut < len(values))})
    joined = RunsOfKeys()
    for number, (begin, end) in enumerate(pairwise(borders)):
        part = RunsOfKeys()
        for value in values[begin:end]:
            part.look({"key": value})
        joined.join(parse_runs(part.to_json()), is_first=number == 0)
    longest = most = 1
    for before, after in pairwise(values):
        most = most + 1 if before == after else 1
        longest = max(longest, most)
    runs = joined.found["key"]
    assert isinstance(runs, Runs)
    assert (runs.longest, runs.is_one, runs.looks) == (longest, len(set(values)) == 1, len(values))
    assert joined.longest() == (None if runs.is_one else ("key", (longest - 1) * EVERY + 1))


@given(hashes=st.lists(st.integers(0, 50), max_size=200))
def test_repeated_ids_are_counted_in_parts_as_in_one(hashes: list[int]) -> None:
    from streamshard.convert import findings

    file = BytesIO(np.array(hashes, np.uint64).tobytes())
    whole = count_repeated(file)
    before, findings._SORTED_AT_ONCE = findings._SORTED_AT_ONCE, 7
    try:
        assert count_repeated(file) == whole == len(hashes) - len(set(hashes))
    finally:
        findings._SORTED_AT_ONCE = before


_PLAN = """
import resource, sys
from streamshard.convert import findings
from streamshard.convert.job import dry_run
from streamshard.convert.options import ConvertOptions
findings._SORTED_AT_ONCE = 1 << 14
count = int(sys.argv[2])
source = f"{sys.argv[1]}/{count}.jsonl"
with open(source, "w") as file:
    file.writelines('{"id":%d,"t":"abc"}\\n' % number for number in range(count))
summary = dry_run(ConvertOptions(sources=(source,), out=sys.argv[1] + "/out", workers=1, check=False))
assert summary.samples == count
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1024 if sys.platform == "linux" else 1))
"""


@pytest.mark.slow
def test_a_plan_takes_no_more_memory_for_more_records(tmp_path: Path) -> None:
    peaks = []
    for count in (10_000, 110_000):
        command = [sys.executable, "-c", _PLAN, str(tmp_path), str(count)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout))
    # A table of the records in memory would be 32 bytes for each.
    assert peaks[1] - peaks[0] < 16 * 100_000

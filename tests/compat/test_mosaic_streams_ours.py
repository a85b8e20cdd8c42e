"""mosaicml-streaming iterates what ``streamshard convert`` and ``merge_index`` make, pictures included."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from streamshard import LocalDataset, MDSWriter, merge_index
from streamshard.cli.main import main
from tests.support.mosaic_reader import printable

ROOT = Path(__file__).parents[2]
EMOJI = ROOT / "docs" / "tutorial" / "emoji"

pytestmark = pytest.mark.mosaic


def mosaic_python() -> str:
    python = os.environ.get("STREAMSHARD_MOSAIC_PYTHON")
    if not python:
        if os.environ.get("CI"):
            pytest.fail("CI must set STREAMSHARD_MOSAIC_PYTHON to a Python with mosaicml-streaming==0.13.0")
        pytest.skip("STREAMSHARD_MOSAIC_PYTHON does not name a Python with mosaicml-streaming==0.13.0")
    return python


def streamed_by_mosaic(remote: Path, local: Path, algorithm: str) -> list[dict]:
    command = [mosaic_python(), "-W", "ignore", "-m", "tests.support.mosaic_reader", remote, local, algorithm]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def convert(out: Path, *options: str) -> Path:
    arguments = ["convert", str(EMOJI / "train.jsonl"), "--out", str(out), "--size-limit", "256kb", *options]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    return out


def read_by_us(dataset: Path) -> list[dict]:
    return [
        json.loads(json.dumps({name: printable(value) for name, value in sample.items()}))
        for sample in LocalDataset(dataset)
    ]


@pytest.mark.parametrize(
    ("options", "algorithm"),
    [
        (("--sample-hash", "xxh64"), "xxh64"),
        (("--compression", "zstd:3", "--hash", "sha1"), "sha1"),
        (("--compression", "gz:5", "--hash", "xxh3_128"), "xxh3_128"),
    ],
    ids=["raw", "zstd", "gz"],
)
def test_mosaicml_iterates_converted_pictures_and_chats(tmp_path, options, algorithm):
    dataset = convert(tmp_path / "emoji", *options)
    theirs = streamed_by_mosaic(dataset, tmp_path / "cache", algorithm)
    assert bool(list(dataset.glob("*.samples"))) == ("--sample-hash" in options)
    assert not list((tmp_path / "cache").glob("*.samples"))
    records = [json.loads(line) for line in (EMOJI / "train.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [sample["conversations"] for sample in theirs] == [record["conversations"] for record in records]
    assert theirs == read_by_us(dataset)


def test_mosaicml_iterates_merged_subdirectories(tmp_path):
    merged = tmp_path / "merged"
    for name in ("a/part", "b/part"):
        convert(merged / name, "--cost", "turns=conversations")
    merge_index(str(merged))
    assert (
        json.loads((merged / "index.json").read_text())["streamshard"]["costs"]["turns"]["total"] == 4 * 421
    )
    theirs = streamed_by_mosaic(merged, tmp_path / "cache", "xxh64")
    assert len(theirs) == 2 * 421
    assert theirs == read_by_us(merged)


_LISTS = """
import sys
from streaming import StreamingDataset

dataset = StreamingDataset(local=sys.argv[1], batch_size=1)
try:
    dataset[0]
except ValueError as error:
    assert "list[bytes]" in str(error), error
else:
    raise AssertionError("read without being told how")
exec(sys.argv[2])
assert dataset[0]["a"] == [b"x", b"", b"yz"] and dataset[1]["a"] == [], dataset[0]
"""


def test_mosaicml_refuses_lists_of_files_by_name_until_the_reference_teaches_it(tmp_path):
    with MDSWriter(out=tmp_path, columns={"a": "list[bytes]"}) as writer:
        writer.write({"a": [b"x", b"", b"yz"]})
        writer.write({"a": []})
    page = (ROOT / "docs" / "reference" / "format.md").read_text()
    (lesson,) = re.findall(r"```python\n(import struct\n.*?)```", page, re.DOTALL)
    command = [mosaic_python(), "-W", "ignore", "-c", _LISTS, str(tmp_path), lesson]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]

"""Bytes and values against mosaicml-streaming 0.13.0: its committed output everywhere, the package itself in CI."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from streamshard import MDSWriter
from streamshard.format.hashing import hash_bytes
from tests.support.mosaic_datasets import DATASETS, FOREIGN_ONLY, same_sample
from tests.support.stored_datasets import files_of, load_index, load_samples, raw_shard

GOLDEN = Path(__file__).parent / "data"
REPOSITORY = Path(__file__).parents[2]


def write_ours(directory: Path, name: str) -> Path:
    dataset = DATASETS[name]
    with MDSWriter(out=directory / name, columns=dataset.columns, **dataset.options) as writer:
        for sample in dataset.samples():
            writer.write(sample)
    return directory / name


def run_mosaic(verb: str, directory: Path) -> None:
    python = os.environ.get("STREAMSHARD_MOSAIC_PYTHON")
    if not python:
        if os.environ.get("CI"):
            pytest.fail("CI must set STREAMSHARD_MOSAIC_PYTHON to a Python with mosaicml-streaming==0.13.0")
        pytest.skip("STREAMSHARD_MOSAIC_PYTHON does not name a Python with mosaicml-streaming==0.13.0")
    command = [python, "-W", "ignore", "-m", "tests.support.mosaic_datasets", verb, str(directory)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("name", [*DATASETS, *FOREIGN_ONLY])
def test_every_golden_dataset_reads_back_as_the_samples_that_mosaicml_was_given(name):
    wanted = list({**DATASETS, **FOREIGN_ONLY}[name].samples())
    found = load_samples(GOLDEN / name, allow_unsafe_types=True)
    assert len(found) == len(wanted)
    for i, (sample, expected) in enumerate(zip(found, wanted, strict=True)):
        assert same_sample(sample, expected), i


@pytest.mark.parametrize("name", [name for name, dataset in DATASETS.items() if dataset.same_bytes])
def test_the_same_samples_and_options_give_the_bytes_that_mosaicml_wrote(name, tmp_path):
    ours = files_of(write_ours(tmp_path, name))
    theirs = files_of(GOLDEN / name)
    assert list(ours) == list(theirs)
    for file in theirs:
        assert ours[file] == theirs[file], file


@pytest.mark.parametrize("name", [name for name in DATASETS if name.startswith("text-")])
def test_compressed_shards_hold_the_raw_bytes_that_mosaicml_compressed(name, tmp_path):
    directory = write_ours(tmp_path, name)
    ours, theirs = load_index(directory), load_index(GOLDEN / name)
    assert [s.raw for s in ours.shards] == [s.raw for s in theirs.shards]
    assert [s.stored.basename for s in ours.shards] == [s.stored.basename for s in theirs.shards]
    for mine, other in zip(ours.shards, theirs.shards, strict=True):
        assert raw_shard(directory, mine) == raw_shard(GOLDEN / name, other)


def test_b067_the_last_sample_of_every_golden_shard_reads_back():
    for name in ("plain", "hashes", "arrays"):
        index = load_index(GOLDEN / name)
        found = load_samples(GOLDEN / name)
        wanted = list(DATASETS[name].samples())
        assert index.num_shards > 1
        for end in index.begins[1:].tolist():
            assert same_sample(found[end - 1], wanted[end - 1])


def test_s8_an_empty_shard_of_mosaicml_is_read_over():
    index = load_index(GOLDEN / "empty-shard")
    assert index.shards[0].num_samples == 0
    assert len(load_samples(GOLDEN / "empty-shard")) == index.num_samples == 31


def test_all_hashes_are_those_of_the_files_in_golden_data():
    for shard in load_index(GOLDEN / "hashes").shards:
        content = (GOLDEN / "hashes" / shard.raw.basename).read_bytes()
        assert len(shard.raw.hashes) == 17
        for name, digest in shard.raw.hashes.items():
            assert hash_bytes(name, content) == digest, name


@pytest.mark.mosaic
@pytest.mark.slow
def test_mosaicml_reads_all_that_we_write(tmp_path):
    for name in DATASETS:
        write_ours(tmp_path, name)
    run_mosaic("read", tmp_path)


@pytest.mark.mosaic
@pytest.mark.slow
def test_mosaicml_writes_today_what_the_golden_data_holds_and_we_write(tmp_path):
    run_mosaic("write", tmp_path / "theirs")
    for name, dataset in DATASETS.items():
        theirs = files_of(tmp_path / "theirs" / name)
        if dataset.same_bytes:
            assert theirs == files_of(GOLDEN / name) == files_of(write_ours(tmp_path / "ours", name))

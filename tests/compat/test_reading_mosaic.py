"""LocalDataset and verify on what mosaicml-streaming 0.13.0 wrote: committed output, and each combination live."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from streamshard import LocalDataset
from streamshard.read.verify import verify_dataset
from tests.support.mosaic_datasets import DATASETS, FOREIGN_ONLY, same_sample

GOLDEN = Path(__file__).parent / "data"
REPOSITORY = Path(__file__).parents[2]
ENCODINGS = ["plain", "arrays", "images", "saved-images", "pickles"]
COMPRESSIONS = ["none", "br:3", "bz2", "gz", "snappy", "zstd:5"]
HASHES = ["", "md5", "sha1,xxh64", "blake2s,sha3_512,xxh32,xxh3_128"]
# Writes OUT/<dataset>/<compression>/{a,b} with mosaicml-streaming and merges the two parts with its
# merge_index (which loses folders below those).
WRITER = """
import sys
from pathlib import Path
from streaming import MDSWriter
from streaming.base.util import merge_index
from tests.support.mosaic_datasets import DATASETS
out, compressions, hashes = Path(sys.argv[1]), sys.argv[2].split(), sys.argv[3].split(";")
for name in sys.argv[4].split():
    dataset = DATASETS[name]
    for number, compression in enumerate(compressions):
        for part in ("a", "b"):
            with MDSWriter(
                out=str(out / name / compression.replace(":", "-") / part),
                columns=dataset.columns,
                compression=None if compression == "none" else compression,
                hashes=[h for h in hashes[number % len(hashes)].split(",") if h],
                size_limit=3000,
            ) as writer:
                for sample in dataset.samples():
                    writer.write(sample)
        merge_index(str(out / name / compression.replace(":", "-")), keep_local=True)
"""


@pytest.mark.parametrize("name", [*DATASETS, *FOREIGN_ONLY])
def test_committed_datasets_read_back_and_verify(name: str) -> None:
    wanted = list({**DATASETS, **FOREIGN_ONLY}[name].samples())
    dataset = LocalDataset(GOLDEN / name, allow_unsafe_types=True)
    assert len(dataset) == len(wanted)
    for found in (list(dataset), dataset[:], [dataset[i] for i in range(len(dataset))]):
        assert all(map(same_sample, found, wanted))
    report = verify_dataset(GOLDEN / name, allow_unsafe_types=True)
    assert report.ok, report.problems
    assert report.decoded_samples == len(wanted)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    python = os.environ.get("STREAMSHARD_MOSAIC_PYTHON")
    if not python:
        if os.environ.get("CI"):
            pytest.fail("CI must set STREAMSHARD_MOSAIC_PYTHON to a Python with mosaicml-streaming==0.13.0")
        pytest.skip("STREAMSHARD_MOSAIC_PYTHON does not name a Python with mosaicml-streaming==0.13.0")
    out = tmp_path_factory.mktemp("mosaic")
    combinations = (" ".join(COMPRESSIONS), ";".join(HASHES), " ".join(ENCODINGS))
    line = [python, "-W", "ignore", "-c", WRITER, str(out), *combinations]
    done = subprocess.run(line, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return out


@pytest.mark.mosaic
@pytest.mark.slow
@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("name", ENCODINGS)
def test_every_encoding_with_each_compression_merged_from_parts_reads_back_equal(
    written: Path, name: str, compression: str
) -> None:
    directory = written / name / compression.replace(":", "-")
    wanted = list(DATASETS[name].samples()) * 2
    dataset = LocalDataset(directory, allow_unsafe_types=True)
    assert len(dataset) == len(wanted)
    assert all(map(same_sample, dataset, wanted))
    report = verify_dataset(directory, allow_unsafe_types=True)
    assert report.ok, report.problems
    hashed = bool(HASHES[COMPRESSIONS.index(compression) % len(HASHES)])
    assert (report.unhashed_files == 0) is hashed

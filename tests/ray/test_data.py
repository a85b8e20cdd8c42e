"""Ray Data: MDS in and out, exact counts, and nothing counted of attempts that failed."""

from __future__ import annotations

import os
import signal
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamshard import LocalDataset, MDSWriter
from streamshard.errors import FormatError, UnsafeEncodingError
from tests.support.jsonl_inputs import noise, picture
from tests.support.ray_cluster import LocalCluster

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("cluster")]

_COLUMNS = {
    "n": "int",
    "text": "str",
    "raw": "bytes",
    "small": "uint8",
    "ragged": "ndarray:int16",
    "square": "ndarray:float32:2,2",
    "photo": "jpeg",
    "icons": "list[png]",
    "meta": "json",
    "price": "str_decimal",
}


def _sample(number: int) -> dict[str, Any]:
    return {
        "n": number,
        "text": f"text {number} é",
        "raw": bytes([number % 256]) * (number % 3),
        "small": number % 256,
        "ragged": np.arange(number % 4 + 1, dtype=np.int16),
        "square": np.full((2, 2), number, np.float32),
        "photo": noise(8 + number % 2, 8, seed=number),
        "icons": [picture(color=(number % 256, 0, 0))] * (number % 3),
        "meta": [None, {"a": [number]}, [1, 2], "text"][number % 4],
        "price": Decimal(number) / 4,
    }


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 samples in more than ten compressed shards."""
    out = tmp_path_factory.mktemp("data") / "A"
    with MDSWriter(out=str(out), columns=_COLUMNS, compression="zstd", samples_per_shard=5) as writer:
        for number in range(60):
            writer.write(_sample(number))
    return out


def _by_number(dataset: LocalDataset) -> list[dict[str, Any]]:
    return sorted(dataset, key=lambda sample: sample["n"])


def test_a_round_trip_keeps_every_sample(written: Path, tmp_path: Path) -> None:
    import streamshard.ray

    read = streamshard.ray.read_mds(written, override_num_blocks=4)
    assert read.count() == 60
    count = streamshard.ray.write_mds(read, tmp_path / "B", columns=_COLUMNS, sample_hash="xxh64")
    assert count == 60
    made = _by_number(LocalDataset(str(tmp_path / "B"), decode_images=False, validate_samples=True))
    for sample, again in zip(LocalDataset(str(written), decode_images=False), made, strict=True):
        assert sample.keys() == again.keys()
        for name, value in sample.items():
            np.testing.assert_equal(again[name], value)


def test_columns_images_and_types(written: Path, cluster: LocalCluster) -> None:
    import streamshard.ray
    from streamshard.ray.sink import columns_of_dataset

    read = streamshard.ray.read_mds(written, columns=["photo", "n"], decode_images=True)
    row = max(read.take_all(), key=lambda row: row["n"])
    assert set(row) == {"n", "photo"}
    assert (row["n"], row["photo"].shape, row["photo"].dtype) == (59, (8, 9, 3), np.uint8)
    typed = streamshard.ray.read_mds(written, columns=["text", "raw", "small", "square", "n"])
    assert columns_of_dataset(typed) == {
        "text": "str", "raw": "bytes", "small": "uint8", "square": "ndarray:float32", "n": "int64",
    }  # fmt: skip
    with pytest.raises(ValueError, match=r"no column 'no'; there are: 'icons'"):
        streamshard.ray.read_mds(written, columns=["no"])
    with pytest.raises(ValueError, match=r"compressio=: no such option; there are compression"):
        streamshard.ray.write_mds(typed, cluster.hidden / "x", compressio="zstd")
    with pytest.raises(FormatError, match="unknown encoding 'strange'"):
        streamshard.ray.write_mds(typed, cluster.hidden / "x", columns={"n": "strange"})


def test_columns_that_run_code_are_refused(tmp_path: Path) -> None:
    import streamshard.ray

    with MDSWriter(out=str(tmp_path / "A"), columns={"x": "pkl"}) as writer:
        writer.write({"x": {1, 2}})
    with pytest.raises(UnsafeEncodingError):
        streamshard.ray.read_mds(tmp_path / "A")


def test_an_attempt_that_is_killed_is_not_counted(tmp_path: Path) -> None:
    import ray

    import streamshard.ray

    met = str(tmp_path / "met")

    def die_once(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] == 150:
            try:
                os.close(os.open(met, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return row
            os.kill(os.getpid(), signal.SIGKILL)
        return row

    rows = ray.data.range(200, override_num_blocks=2)
    out = tmp_path / "A"
    # A batch of one row: shards of the first attempt are there when it dies.
    rows = rows.map_batches(lambda batch: batch, batch_size=10).map(die_once)
    assert streamshard.ray.write_mds(rows, out, samples_per_shard=8) == 200
    assert Path(met).exists()
    assert sorted(sample["id"] for sample in LocalDataset(str(out))) == list(range(200))
    folders = {path.parent.name for path in out.rglob("*.mds")}
    named = {shard.raw.basename.split("/")[0] for shard in _shards(out)}
    assert folders == named == {path.name for path in out.iterdir() if path.is_dir()}


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    import ray

    import streamshard.ray

    rows = ray.data.range(100, override_num_blocks=2).map(lambda row: {"id": "x" if row["id"] == 99 else 1})
    with pytest.raises(Exception, match="expected an integer, found str"):
        streamshard.ray.write_mds(rows, tmp_path / "A", columns={"id": "int"})
    assert not [path for path in (tmp_path / "A").rglob("*") if path.is_file()]


def _shards(out: Path) -> Any:
    from streamshard.format.index import parse_index

    return parse_index((out / "index.json").read_bytes(), source="index").shards


def test_shards_are_shared_out_evenly_in_order() -> None:
    from streamshard.ray.source import shared_out

    assert shared_out([5, 5, 5, 5], 2) == [(0, 2), (2, 4)]
    assert shared_out([1, 1, 1], 9) == [(0, 1), (1, 2), (2, 3)]
    assert shared_out([], 4) == []
    for sizes in ([100, 1, 1, 1], [1, 1, 1, 100], [0, 0, 0], list(range(40))):
        for tasks in (1, 2, 3):
            runs = shared_out(sizes, tasks)
            assert len(runs) == min(tasks, len(sizes))
            assert [place for run in runs for place in range(*run)] == list(range(len(sizes)))
            assert all(begin < end for begin, end in runs)

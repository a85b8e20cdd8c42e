"""Rows from Python as an input."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamshard import LocalDataset, convert_records
from streamshard.errors import ConvertError
from tests.support.jsonl_inputs import files_of, picture, stopped_after


def _row(number: int) -> dict[str, Any]:
    return {
        "n": number,
        "text": f"ü {number}",
        "small": np.uint8(number),
        "ids": np.arange(number, dtype=np.uint16),
        "grid": np.full((2, 3), number, np.float32),
        "meta": {"a": [number, None], "b": np.arange(2)},
        "image": picture(color=(number, 0, 0)),
        "raw": bytes([number]),
    }


def _rows(count: int) -> Iterator[dict[str, Any]]:
    return map(_row, range(count))


def test_rows_keep_their_types(tmp_path: Path) -> None:
    summary = convert_records(_rows(20), tmp_path / "A", workers=1, samples_per_shard=7)
    assert summary.columns == {
        "n": "int", "text": "str", "small": "uint8", "ids": "ndarray:uint16", "grid": "ndarray:float32", "meta": "json",
        "image": "png", "raw": "bytes",
    }  # fmt: skip
    for number, sample in enumerate(LocalDataset(str(tmp_path / "A"), decode_images=False)):
        np.testing.assert_equal(sample, {**_row(number), "meta": {"a": [number, None], "b": [0, 1]}})
    assert {path.name for path in (tmp_path / "A").iterdir()} == {
        "index.json", "shard.00000.mds", "shard.00001.mds", "shard.00002.mds",
    }  # fmt: skip
    assert convert_records(_rows(20), tmp_path / "A", workers=1, samples_per_shard=7).finished_before
    with pytest.raises(ConvertError, match="other records"):
        convert_records(_rows(21), tmp_path / "A", workers=1, samples_per_shard=7)


def test_an_interrupted_run_of_the_same_rows_goes_on(tmp_path: Path) -> None:
    convert_records(_rows(20), tmp_path / "whole", workers=1, samples_per_shard=5)
    with stopped_after(2):
        convert_records(_rows(20), tmp_path / "A", workers=1, samples_per_shard=5)
    summary = convert_records(_rows(20), tmp_path / "A", workers=1, samples_per_shard=5)
    assert summary.resumed_shards == 2
    assert files_of(tmp_path / "A") == files_of(tmp_path / "whole")


def test_an_arrow_table_and_what_acts_like_a_dataset_are_read(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"n": [1, 2, 3], "ids": pa.array([[1], [2, 3], []], pa.list_(pa.int32()))})

    class Dataset:
        """What is used of ``datasets.Dataset``: a selection is applied as rows are given."""

        features = None

        def with_format(self, kind: str) -> Dataset:
            assert kind == "arrow"
            return self

        def iter(self, batch_size: int) -> Iterator[Any]:
            yield table.take([2])
            yield table.take([0, 1])

    convert_records(table, tmp_path / "A", workers=1)
    assert [sample["ids"].tolist() for sample in LocalDataset(str(tmp_path / "A"))] == [[1], [2, 3], []]
    convert_records(Dataset(), tmp_path / "B", workers=1)
    assert [sample["n"] for sample in LocalDataset(str(tmp_path / "B"))] == [3, 1, 2]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"a": 1}, 5], "row 2: expected a dict of columns, found int"),
        ([{1: 1}], "row 1: the key 1 is no text"),
        ([{"a": object()}], "row 1: a value of type object cannot be stored"),
        ([{"a": {"b": b"x"}}], "row 1: binary inside a nested value"),
        ([], "0 samples"),
    ],
)
def test_rows_that_cannot_be_stored_are_named(tmp_path: Path, rows: Any, words: str) -> None:
    with pytest.raises(ConvertError, match=words):
        convert_records(rows, tmp_path / "A", workers=1)
    # Rows are kept for a run that a rerun can go on from, and for no other.
    work = tmp_path / "A" / ".streamshard-convert"
    assert work.with_name(f"{work.name}-rows").exists() == work.exists()


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (
            [b"a", [b"b"]],
            "'v' holds one piece of binary in some records and a list of it in others; make a list",
        ),
        ([[b"b"], b"a", None], "make a list of each in the input, or leave the key out with --drop v"),
        ([b"a", "b"], "'v' holds binary in some records and other values in others"),
        ([[b"a"], ["b"]], "'v' holds binary in some records and other values in others"),
        ([[b"a", None]], "binary inside a nested value"),
    ],
)
def test_binary_beside_what_cannot_share_its_column_is_refused(
    tmp_path: Path, rows: list[Any], text: str
) -> None:
    with pytest.raises(ConvertError) as caught:
        convert_records([{"v": value} for value in rows], tmp_path / "A", workers=1)
    assert text in str(caught.value)

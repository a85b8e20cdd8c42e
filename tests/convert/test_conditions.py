"""``--where``: only records that hold; and costs by columns that an MDS input stores as bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamshard import LocalDataset, MDSWriter
from streamshard.convert.conditions import parse_where
from streamshard.errors import ConvertError
from tests.support.jsonl_inputs import converted, run, write_lines

_ROWS: list[dict[str, Any]] = [
    {"id": 0, "score": 0.25, "lang": "en"},
    {"id": 1, "score": 0.5, "lang": "de"},
    {"id": 2, "score": None, "lang": "en"},
    {"id": 3, "score": 1, "lang": None},
    {"id": 4, "lang": "e=n"},
]


@pytest.mark.parametrize(
    ("conditions", "ids"),
    [
        (["score>=0.5"], [1, 3]), (["score<0.5"], [0]), (["score=null"], [2, 4]), (["score!=null"], [0, 1, 3]),
        (["lang=en"], [0, 2]), (['lang="en"'], [0, 2]), (["lang!=en"], [1, 3, 4]), (["lang=e=n"], [4]),
        (["lang=en", "score>0"], [0]), (["score<=0.5", "score>=0.5"], [1]), (["lang<=en", "lang>de"], [0, 2, 4]),
    ],
)  # fmt: skip
def test_records_that_hold(tmp_path: Path, conditions: list[str], ids: list[int]) -> None:
    source = write_lines(tmp_path / "a.jsonl", _ROWS)
    out = tmp_path / "A"
    summary = run(source, out, where=parse_where(conditions))
    assert [sample["id"] for sample in LocalDataset(str(out))] == ids
    assert summary.warnings[-1].startswith(f"{5 - len(ids)} records are left out, for which --where ")
    assert run(source, out, where=parse_where(conditions)).finished_before


def test_conditions_that_cannot_be(tmp_path: Path) -> None:
    for wrong in ("score", "=3", "score>null", "score<true", "score>=[1]"):
        with pytest.raises(ValueError, match="--where"):
            parse_where([wrong])
    source = write_lines(tmp_path / "a.jsonl", _ROWS)
    with pytest.raises(
        ConvertError, match=r"a\.jsonl:1: key 'lang' holds 'en', which cannot be compared with 3"
    ):
        run(source, tmp_path / "A", where=parse_where(["lang>3"]))
    with pytest.raises(ConvertError, match="no records"):
        run(source, tmp_path / "A", where=parse_where(["id>100"]))


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    columns = {"n": "int", "text": "str", "tokens": "ndarray:uint16", "words": "json"}
    with MDSWriter(out=str(tmp_path / "old"), columns=columns) as out:
        for number in range(6):
            tokens = np.arange(number, dtype=np.uint16)
            out.write({"n": number, "text": f"t{number % 2}", "tokens": tokens, "words": ["w"] * number})
    return tmp_path / "old"


def test_rows_of_a_dataset_are_chosen_by_decoded_values(dataset: Path, tmp_path: Path) -> None:
    samples = converted(dataset, tmp_path / "A", where=parse_where(["text=t1", "n>1"]))
    assert [sample["n"] for sample in samples] == [3, 5]
    assert samples[0]["tokens"].tolist() == [0, 1, 2]
    assert samples[0]["words"] == ["w"] * 3


@pytest.mark.parametrize("key", ["tokens", "words", "n"])
def test_costs_by_columns_of_a_dataset(dataset: Path, tmp_path: Path, key: str) -> None:
    summary = run(dataset, tmp_path / "A", costs=(("c", key),))
    assert summary.costs == {"c": 15}

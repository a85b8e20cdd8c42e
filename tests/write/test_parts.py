"""Datasets of parts that many processes write: what is committed counts, once, and nothing else."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from streamshard import LocalDataset
from streamshard.errors import AccessDeniedError, BlobNotFoundError, SampleError, StorageError
from streamshard.storage.local_store import LocalStore
from streamshard.write.arrow_values import encoding_of, python_values, row_converter
from streamshard.write.parts import PartedDataset


def _rows(begin: int, end: int) -> list[dict[str, Any]]:
    return [{"n": number} for number in range(begin, end)]


def _dataset(out: Path, **options: Any) -> PartedDataset:
    return PartedDataset.of(out, {"n": "int"}, options, None)


def test_parts_are_joined_in_their_order_whoever_wrote_them_when(tmp_path: Path) -> None:
    parts = pickle.loads(pickle.dumps(_dataset(tmp_path / "A", samples_per_shard=3, sample_hash="xxh64")))
    parts.begin(exist_ok=False)
    later, empty, first = parts.write(7, _rows(5, 9)), parts.write(3, []), parts.write(0, _rows(0, 5))
    assert empty is None
    assert not (tmp_path / "A" / "index.json").exists()
    with pytest.raises(StorageError, match="9 samples were written of 10 rows"):
        parts.commit([later, first], num_rows=10)
    assert not (tmp_path / "A" / "index.json").exists()
    index = parts.commit([later, first], num_rows=9)
    assert [row["n"] for row in LocalDataset(str(tmp_path / "A"), validate_samples=True)] == list(range(9))
    assert index.num_samples == 9


def test_other_attempts_are_removed_and_other_files_stay(tmp_path: Path) -> None:
    out = tmp_path / "A"
    parts = _dataset(out)
    parts.begin(exist_ok=False)
    lost, kept = parts.write(0, _rows(0, 4)), parts.write(0, _rows(0, 4))
    torn = out / f"part-000001-{parts.run}-0badf00d"
    torn.mkdir()
    (torn / "shard.00000.mds.1.tmp").write_bytes(b"torn")
    (out / "part-000000-of-somebody").mkdir()
    (out / "part-000000-of-somebody" / "notes").write_text("mine")
    parts.commit([kept])
    assert lost is not None
    assert kept is not None
    assert sorted(path.name for path in out.iterdir()) == sorted(
        ["index.json", kept.folder, "part-000000-of-somebody"]
    )
    assert len(LocalDataset(str(out))) == 4
    _dataset(out).abandon()  # of another run
    assert len(LocalDataset(str(out))) == 4
    parts.abandon()
    assert [path.name for path in out.iterdir()] == ["part-000000-of-somebody"]


def test_where_nothing_may_be_deleted_a_dataset_is_complete_and_an_error_stays_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(store: LocalStore, key: str) -> None:
        raise AccessDeniedError(f"delete {store.url}/{key}: permission denied")

    parts = _dataset(tmp_path / "A")
    parts.begin(exist_ok=False)
    _, kept = parts.write(0, _rows(0, 4)), parts.write(0, _rows(0, 4))
    assert kept is not None
    monkeypatch.setattr(LocalStore, "delete", refuse)
    with pytest.raises(AccessDeniedError):  # each attempt is a dataset of its own
        parts.commit([kept], publish=False)
    parts.commit([kept])
    assert [row["n"] for row in LocalDataset(str(tmp_path / "A"))] == [0, 1, 2, 3]
    parts.abandon()
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert all("permission denied" in record.getMessage() for record in caplog.records)


def test_a_failed_attempt_leaves_nothing(tmp_path: Path) -> None:
    parts = _dataset(tmp_path / "A")
    parts.begin(exist_ok=False)
    with pytest.raises(SampleError, match="sample 3: column 'n'"):
        parts.write(0, [*_rows(0, 3), {"n": "three"}])
    assert not [path for path in (tmp_path / "A").rglob("*") if path.is_file()]


def test_a_part_twice_or_elsewhere_is_refused(tmp_path: Path) -> None:
    parts = _dataset(tmp_path / "A")
    parts.begin(exist_ok=False)
    one, again = parts.write(0, _rows(0, 4)), parts.write(0, _rows(0, 4))
    with pytest.raises(ValueError, match="part 0 was written twice"):
        parts.commit([one, again])
    other = PartedDataset(str(tmp_path / "B"), {"n": "int"}, run=parts.run)
    other.begin(exist_ok=False)
    elsewhere = other.write(1, _rows(0, 4))
    with pytest.raises(BlobNotFoundError, match="give an out that all nodes share"):
        parts.commit([one, elsewhere])
    assert not (tmp_path / "A" / "index.json").exists()


def test_an_old_dataset_is_refused_or_replaced(tmp_path: Path) -> None:
    for values, exist_ok in ((range(4), False), (range(9), True)):
        parts = _dataset(tmp_path / "A")
        parts.begin(exist_ok=exist_ok)
        written = parts.write(0, [{"n": value} for value in values])
        parts.commit([written])
        assert len(LocalDataset(str(tmp_path / "A"))) == len(values)
    with pytest.raises(FileExistsError, match="is not empty"):
        _dataset(tmp_path / "A").begin(exist_ok=False)
    assert len(list((tmp_path / "A").glob("part-*"))) == 1


def test_no_rows_make_an_empty_dataset_and_no_index_where_none_is_wanted(tmp_path: Path) -> None:
    parts = _dataset(tmp_path / "A")
    parts.begin(exist_ok=False)
    parts.commit([])
    assert json.loads((tmp_path / "A" / "index.json").read_text())["shards"] == []
    apart = _dataset(tmp_path / "B")
    apart.begin(exist_ok=False)
    written = apart.write(0, _rows(0, 2))
    apart.commit([written], publish=False)
    assert not (tmp_path / "B" / "index.json").exists()
    assert len(LocalDataset(str(next((tmp_path / "B").glob("part-*"))))) == 2


def test_credentials_are_not_shown_and_private_places_refused() -> None:
    parts = PartedDataset.of("s3://bucket/x", {"n": "int"}, {}, {"secret": "sesame"})
    assert "sesame" not in repr(parts)
    with pytest.raises(ValueError, match="one process alone"):
        PartedDataset.of("memory://x", {"n": "int"}, {}, None)


@pytest.mark.parametrize(
    ("kind", "encoding"),
    [
        (pa.string(), "str"),
        (pa.large_binary(), "bytes"),
        (pa.binary(4), "bytes"),
        (pa.int8(), "int8"),
        (pa.uint16(), "uint16"),
        (pa.float16(), "float16"),
        (pa.float64(), "float64"),
        (pa.list_(pa.int32()), "ndarray:int32"),
        (pa.list_(pa.float32(), 3), "ndarray:float32"),
        (pa.list_(pa.string()), "json"),
        (pa.bool_(), "json"),
        (pa.decimal128(10, 2), "str_decimal"),
        (pa.struct([("a", pa.int8())]), "json"),
        (pa.timestamp("us"), "json"),
    ],
    ids=str,
)
def test_arrow_types_have_encodings(kind: Any, encoding: str) -> None:
    assert encoding_of(kind) == encoding


def test_rows_take_the_form_of_their_encodings() -> None:
    import datetime
    from decimal import Decimal

    convert = row_converter(
        {"a": "ndarray:int16", "j": "json", "d": "str_decimal", "s": "str", "gone": "str"}
    )
    day = datetime.date(2020, 2, 29)
    row = {"a": [1, 2], "j": {"t": day, "x": (Decimal("1.5"), np.int8(3))}, "d": "2.50", "s": "x", "more": 1}
    found = convert(row)
    assert found.pop("a").tolist() == [1, 2]
    assert found == {"j": {"t": "2020-02-29", "x": ["1.5", 3]}, "d": Decimal("2.50"), "s": "x"}
    with pytest.raises(SampleError, match=r"column 'a' \(ndarray:int16\): a null among the numbers"):
        convert({"a": [1, None]})
    with pytest.raises(SampleError, match=r"column 'a'"):
        convert({"a": [1 << 40]})


def test_maps_are_dicts_at_any_depth() -> None:
    inner = pa.map_(pa.string(), pa.int64())
    kind = pa.struct([("m", pa.map_(pa.int8(), pa.list_(inner))), ("x", pa.int8())])
    rows = [{"m": [(1, [[("a", 2)], None]), (2, None)], "x": 3}, None, {"m": None, "x": None}]
    assert python_values(pa.array(rows, kind)) == [
        {"m": {1: [{"a": 2}, None], 2: None}, "x": 3}, None, {"m": None, "x": None},
    ]  # fmt: skip
    assert python_values(pa.array([[1], None])) == [[1], None]

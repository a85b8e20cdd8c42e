"""Readers for recipes: the records of any file that convert takes."""

from __future__ import annotations

import gzip
import io
import json
import tarfile

import numpy as np
import pytest

from streamshard.errors import ConvertError
from streamshard.recipes import read_records

ROWS = [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.jsonl.gz", "rows.json.gz", "rows.parquet"])
def test_rows_of_a_file(tmp_path, name):
    path = tmp_path / name
    lines = "".join(json.dumps(row) + "\n" for row in ROWS)
    text = (json.dumps(ROWS, indent=1) if ".json" in name and ".jsonl" not in name else lines).encode()
    if name.endswith(".parquet"):
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(ROWS), path)
    else:
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    assert list(read_records(path)) == ROWS
    assert list(read_records(path, columns=["b", "c"])) == [{"b": "x"}, {"b": "y"}]


def test_rows_of_tables_and_folders(tmp_path):
    (tmp_path / "one.csv").write_text("a,b\n1,x\n")
    (tmp_path / "two.csv").write_text("a,b\n2,y\n")
    assert list(read_records(tmp_path)) == [{"a": "1", "b": "x"}, {"a": "2", "b": "y"}]


def test_samples_of_a_tar(tmp_path):
    path = tmp_path / "00000.tar"
    with tarfile.open(path, "w") as tar:
        for name, content in (("1.txt", b"one"), ("1.jpg", b"\xff\xd8\xff"), ("2.json", b'{"n": 1}')):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    first, second = read_records(path)
    assert first == {"__key__": "1", "txt": "one", "jpg": b"\xff\xd8\xff"}
    assert second == {"__key__": "2", "json": {"n": 1}}


def test_arrays_of_a_parquet_file_stay_arrays(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"v": pa.array([[1, 2], [3]], pa.list_(pa.int16()))}), tmp_path / "v.parquet")
    first, second = read_records(tmp_path / "v.parquet")
    assert first["v"].dtype == np.int16
    assert first["v"].tolist() == [1, 2]
    assert second["v"].tolist() == [3]


def test_a_broken_row_has_its_place(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n\n{"a": \n')
    with pytest.raises(ConvertError, match=r"rows\.jsonl:3: broken JSON"):
        list(read_records(tmp_path / "rows.jsonl"))
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 cut")
    with pytest.raises(ConvertError, match=r"cut\.parquet"):
        list(read_records(tmp_path / "cut.parquet"))

"""CSV and TSV as sources."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamshard.errors import ConvertError
from tests.support.jsonl_inputs import converted, picture, run


def _file(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    ("name", "text", "rows"),
    [
        ("a.csv", "a,b\n1,x\n2,y\n", [{"a": "1", "b": "x"}, {"a": "2", "b": "y"}]),
        ("a.csv", "\ufeffa,b\r\n1,x\r\n", [{"a": "1", "b": "x"}]),
        ("a.csv", "a,b\n1,x", [{"a": "1", "b": "x"}]),
        ("a.csv", '"a ""1""",b\n"x,\ny","ü☃"\n', [{'a "1"': "x,\ny", "b": "ü☃"}]),
        ("a.csv", "a;b\n1,5;x\n", [{"a": "1,5", "b": "x"}]),
        ("a.csv", "a\tb\n1\tx\n", [{"a": "1", "b": "x"}]),
        ("a.csv", "a|b\n1|\n", [{"a": "1", "b": ""}]),
        ("a.csv", "\n\na,b\n\n1,x\n\n", [{"a": "1", "b": "x"}]),
        ("a.csv", "only\n007\n", [{"only": "007"}]),
        ("a.tsv", "a\tb\n1,2\tx\n", [{"a": "1,2", "b": "x"}]),
        ("a.csv", f"a,b\n{'x' * 300_000},y\n", [{"a": "x" * 300_000, "b": "y"}]),
        ("a.csv.gz", gzip.compress(b"a,b\n1,x\n", mtime=0), [{"a": "1", "b": "x"}]),
        ("a.csv.xz", lzma.compress(b"a,b\n1,") + lzma.compress(b"x\n"), [{"a": "1", "b": "x"}]),
    ],
)
def test_rows_are_records_of_text(tmp_path: Path, name: str, text: str | bytes, rows: list[Any]) -> None:
    assert converted(_file(tmp_path / name, text), tmp_path / "A") == rows


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,x\n2\n3,y,z\n", r"a\.csv: row 2: 1 values under a header of 2 names \(line 3(.|\n)*row 3: 3 values"),
        ("a,b\n1,\"x\n2,y\n", r"'a\.csv': line 3: unexpected end of data"),
        ("a,b\n1,\"x\"y\n", r"'a\.csv': line 2: ',' expected after '\"'"),
        ("a,,b\n1,2,3\n", r"column 2 of the header has no name"),
        ("a,b,a\n1,2,3\n", r"the header names column 'a' twice"),
        (b"a,b\n1,\xff\n", r"'a\.csv': line 2: byte 0xff is not UTF-8"),
        ("", "0 samples"),
        ("a,b\n", "0 samples"),
    ],
)  # fmt: skip
def test_what_is_no_table_is_named(tmp_path: Path, text: str | bytes, words: str) -> None:
    with pytest.raises(ConvertError, match=words):
        run(_file(tmp_path / "a.csv", text), tmp_path / "A")


def test_types_are_given_by_hand(tmp_path: Path) -> None:
    source = _file(tmp_path / "a.csv", 'n,x,j,t,s\n1,0.5,"{""a"": [1]}","[1, 2]",9\n')
    columns = (("n", "int"), ("x", "float32"), ("j", "json"), ("t", "ndarray:uint16"))
    (sample,) = converted(source, tmp_path / "A", columns=columns)
    np.testing.assert_equal(
        sample, {"n": 1, "x": np.float32(0.5), "j": {"a": [1]}, "t": np.array([1, 2], np.uint16), "s": "9"}
    )
    with pytest.raises(
        ConvertError, match=r"row 1: column 's' holds 'nine', which is no value for --column s=int8"
    ):
        run(_file(tmp_path / "b.csv", "s\nnine\n"), tmp_path / "B", columns=(("s", "int8"),))
    with pytest.raises(ConvertError, match=r"row 1: key 's'.*out of range"):
        run(_file(tmp_path / "c.csv", "s\n900\n"), tmp_path / "C", columns=(("s", "int8"),))


def test_images_are_found_by_the_paths_in_a_column(tmp_path: Path) -> None:
    (tmp_path / "p.png").write_bytes(picture())
    source = _file(tmp_path / "a.csv", "image,label\np.png,cat\n")
    assert converted(source, tmp_path / "A") == [{"image": picture(), "image_path": "p.png", "label": "cat"}]


def test_utf_16_with_a_line_for_the_separator(tmp_path: Path) -> None:
    for encoding in ("utf-16", "utf-8"):
        (tmp_path / "a.csv").write_bytes("sep=;\r\na;b\r\n1;2\r\n".encode(encoding))
        assert set(run(tmp_path / "a.csv", tmp_path / "A", overwrite=True).columns) == {"a", "b"}

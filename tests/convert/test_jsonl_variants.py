"""JSONL that is not quite JSONL: taken where its meaning is sure, else refused with what to do."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from streamshard import LocalDataset
from streamshard.convert import json_array
from streamshard.convert.job import convert
from streamshard.convert.options import ConvertOptions
from streamshard.errors import ConvertError

BOM = b"\xef\xbb\xbf"
ROWS = [{"id": 1, "t": "é"}, {"id": 2, "t": "b"}]
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode()


def converted(folder: Path, content: bytes, name: str = "in.jsonl", **options: Any):
    (folder / name).write_bytes(content)
    return convert(ConvertOptions((str(folder / name),), str(folder / "out"), workers=1, **options))


TAKEN = {
    "lines": LINES,
    "no-end": LINES.rstrip(b"\n"),
    "crlf": LINES.replace(b"\n", b"\r\n"),
    "mark": BOM + LINES,
    "marks-of-joined-files": BOM
    + LINES.splitlines(keepends=True)[0]
    + BOM
    + LINES.splitlines(keepends=True)[1],
    "mark-and-blanks": BOM + b" \n" + BOM + b"  " + LINES,
    "blank-lines": b"\n \n" + LINES.replace(b"\n", b"\n\n\t\n"),
    "indented": b"".join(b"  \t" + line + b" \n" for line in LINES.splitlines()),
    "array": json.dumps(ROWS).encode(),
    "array-pretty": json.dumps(ROWS, indent=2).encode(),
    "array-mark": BOM + json.dumps(ROWS).encode(),
    "array-lines": b"[\n" + LINES.rstrip(b"\n").replace(b"\n", b",\n") + b"\n]\n",
    "packed-without-its-ending": gzip.compress(LINES),
    "packed-in-parts": b"".join(gzip.compress(line + b"\n") for line in LINES.splitlines()),
    "packed-array": gzip.compress(json.dumps(ROWS).encode()),
    "escaped": json.dumps(ROWS[0]).encode() + b"\n" + json.dumps(ROWS[1]).encode(),
    "spaces": b'{ "id" : 1 , "t" : "\xc3\xa9" }\n{\t"id":2,"t":"b"}\n',
    "other-order": b'{"t":"\xc3\xa9","id":1}\n{"id":2,"t":"b"}\n',
}


@pytest.mark.parametrize("name", list(TAKEN))
def test_two_records_in_eighteen_clothes(tmp_path, name):
    assert converted(tmp_path, TAKEN[name]).samples == 2
    assert list(LocalDataset(tmp_path / "out")) == ROWS


@pytest.mark.parametrize("ending", [".jsonl.gz", ".ndjson", ".json", ".txt", ".JSONL"])
def test_the_name_says_less_than_the_content(tmp_path, ending):
    assert converted(tmp_path, LINES, f"in{ending}").samples == 2


REFUSED = {
    "pretty": (b'{\n "id": 1\n}\n', "in.jsonl:1: .*one a line .`jq -c . FILE`"),
    "commas": (b'{"id": 1},\n{"id": 2},\n', "in.jsonl:1: .*no comma behind it"),
    "together": (b'{"id": 1}{"id": 2}\n', "in.jsonl:1: .*another object follows on the same line"),
    "python": (b"{'id': True}\n", "in.jsonl:1: .*double quotes"),
    "comment": (b"# made by hand\n" + LINES, "in.jsonl:1: broken JSON at column 1"),
    "nul": (LINES + b"\0" * 600, "in.jsonl:3: broken JSON"),
    "control": (b'{"t": "a\tb"}\n', "in.jsonl:1: .*Invalid control character"),
    "latin-1": (LINES.decode().encode("latin-1"), "in.jsonl:1: byte 17 of the line is not UTF-8"),
    "plain-text": (
        b"a photo of a cat\n",
        "in.jsonl:1: .*expected an object, and the line is 'a photo of a cat'",
    ),
    "json-seq": (b'\x1e{"id": 1}\n', r"in.jsonl:1: .*the line is '\\x1e"),
    "scalars": (b'"a"\n', "in.jsonl:1: found a string"),
    "null": (b"null\n", "in.jsonl:1: found null"),
    "arrays": (b'[{"id": 1}]\n[{"id": 2}]\n', "text follows the end of the JSON array"),
    "array-of-numbers": (b"[1, 2]", "element 1: found a number"),
    "array-cut": (b'[{"id": 1}, {"id"', "in.jsonl"),
    "twice": (b'{"a": 1, "a": 2}\n', "in.jsonl:1: key 'a' stands twice"),
    "deep": (b'{"a": ' + b"[" * 600 + b"]" * 600 + b"}\n", "in.jsonl:1: JSON nested more than 500"),
    "long-number": (b'{"a": ' + b"9" * 5000 + b"}\n", "in.jsonl:1: a value that cannot be parsed"),
    "empty-key": (b'{"": 1}\n', "in.jsonl:1: a key is the empty string"),
    "zip": (b"PK\x03\x04" + bytes(40), "a ZIP archive"),
    "sqlite": (b"SQLite format 3\0" + bytes(40), "an SQLite database"),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(40), "an HDF5 file"),
    "orc": (b"ORC" + bytes(40), "an ORC file: write it as Parquet"),
    "avro": (b"Obj\x01" + bytes(40), "an Avro file"),
    "pickle": (b"\x80\x04\x95" + bytes(40), "a pickle, which is not read"),
    "numpy": (b"\x93NUMPY" + bytes(40), "a NumPy array"),
    "packed-twice": (gzip.compress(gzip.compress(LINES)), "in.jsonl:1: byte 2 of the line is not UTF-8"),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_is_refused_says_where_and_what_to_do(tmp_path, name):
    content, message = REFUSED[name]
    with pytest.raises(ConvertError, match=message):
        converted(tmp_path, content)
    assert not (tmp_path / "out" / "index.json").exists()


def test_one_object_that_holds_the_records_is_pointed_out(tmp_path):
    summary = converted(tmp_path, json.dumps({"version": "1", "data": ROWS}).encode(), "in.json")
    assert summary.samples == 1
    (warning,) = summary.warnings
    assert "in.json is one object" in warning
    assert "its 'data' holds 2 objects" in warning
    assert "--records data" in warning


KEYED = {str(row["id"]): {"t": row["t"]} for row in ROWS}
INSIDE: dict[str, tuple[str, Any]] = {
    "list": ("data", {"version": "1", "data": ROWS, "end": [[{}], "}"]}),
    "deeper": ("a/b", {"b": 1, "a": {"c": ["\\"], "b": ROWS}}),
    "keyed": (".", KEYED),
    "keyed-deeper": ("data", {"n": "]", "data": KEYED}),
}


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("name", list(INSIDE))
def test_records_inside_an_object_are_taken_where_it_is_said(tmp_path, name, indent):
    way, content = INSIDE[name]
    summary = converted(tmp_path, BOM + json.dumps(content, indent=indent).encode(), "in.json", records=way)
    assert not summary.warnings
    keyed = [{"__key__": key, **row} for key, row in KEYED.items()]
    assert list(LocalDataset(tmp_path / "out")) == (keyed if name.startswith("keyed") else ROWS)


@pytest.mark.parametrize("block", [1, 2, 3, 7])
def test_a_window_may_end_anywhere_in_what_is_passed_over_and_in_a_number(tmp_path, monkeypatch, block):
    monkeypatch.setattr(json_array, "_BLOCK", block)
    beside = ['\\\\"]', {"}": "\\\\\\\\"}, "\\n{" * 9]
    numbers = [2500.5, -1e300, 0.5e-7, 10**20]
    content = {"a": beside, "b": beside[0], "c": 1.25, "records": [{"n": number} for number in numbers]}
    converted(tmp_path, json.dumps(content).encode(), records="records")
    assert [sample["n"] for sample in LocalDataset(tmp_path / "out")] == numbers
    converted(tmp_path, json.dumps(dict(enumerate(numbers))).encode(), records=".", overwrite=True)
    assert [sample["value"] for sample in LocalDataset(tmp_path / "out")] == numbers


def test_a_value_under_a_key_is_a_record_of_both(tmp_path):
    converted(tmp_path, b'{"a": "x", "b" : [1, {}], "c": {}}\n', records=".")
    assert list(LocalDataset(tmp_path / "out")) == [
        {"__key__": "a", "value": "x"},
        {"__key__": "b", "value": [1, {}]},
        {"__key__": "c", "value": None},
    ]


@pytest.mark.parametrize(
    ("content", "way", "message"),
    [
        (b'{"a": [], "b": 1}', "c", "--records c: no key 'c'; there are: 'a', 'b'"),
        (b'{"a": "x"}', "a", "what --records a leads to begins with '\"', expected a JSON object or array"),
        (b'{"a": [1]}', "a/b", r"what --records a/b leads to begins with '\['"),
        (b"[1]", "a", r"the file begins with '\['"),
        (b'{"a": [{"n": 1}, {"n"', "a", "in.jsonl.*broken JSON in element 2"),
        (b'{"a": [{"n": 1}]', "a", "the file was cut"),
        (b'{"a": [{"n": 1}], "b": {"c": [', "a", "element 2 is cut"),
        (b'{"a": [{"n": 1}], "b": "x', "a", "element 2 is cut"),
        (b'{"b": [1}, "a": [{"n": 1}]}', "a", r"broken JSON in element 1: '\[' is closed by '}'"),
        (b'{"a": [{"n": 1}]} {}', "a", "text follows the end of the JSON object"),
        (b'{"a": [{"n": 1}], "a": []}', "a", "key 'a' stands twice"),
        (b'{"a": [{"n": 1}, 5]}', "a", "in.jsonl: record 2: found a number"),
        (b'{1: {"n": 1}}', ".", "expected a key in double quotes"),
    ],
)
def test_what_is_wrong_inside_an_object_is_named(tmp_path, content, way, message):
    with pytest.raises(ConvertError, match=message):
        converted(tmp_path, content, records=way)


def test_records_inside_are_of_json_alone(tmp_path):
    with pytest.raises(ConvertError, match=r"--records a: source 'in\.csv' is csv"):
        converted(tmp_path, b"a,b\n1,2\n", "in.csv", records="a")


def test_an_object_with_a_key_for_each_record_is_pointed_out(tmp_path):
    (warning,) = converted(tmp_path, json.dumps(KEYED).encode()).warnings
    assert "it holds 2 objects" in warning
    assert "--records ." in warning
    many = json.dumps({str(n): {"t": "x"} for n in range(300)}).encode()
    with pytest.raises(ConvertError, match=r"an object of 300 keys.*say --records \."):
        converted(tmp_path, many, overwrite=True)


@pytest.mark.parametrize(
    "record",
    [{"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}, {"a": [{}]}],
)
def test_one_record_alone_is_none_of_that(tmp_path, record):
    assert not converted(tmp_path, json.dumps(record).encode()).warnings


def test_options_that_meet_no_key_are_told(tmp_path):
    summary = converted(tmp_path, LINES, drop=("t", "tt"), rename=(("id", "n"), ("idd", "m")))
    assert summary.warnings == ("--drop tt: no record has this key", "--rename idd: no record has this key")
    assert list(LocalDataset(tmp_path / "out")) == [{"n": 1}, {"n": 2}]


def test_a_clash_of_names_tells_the_option(tmp_path):
    with pytest.raises(ConvertError, match=r"would be column 't' .--rename id=t."):
        converted(tmp_path, LINES, rename=(("id", "t"),))

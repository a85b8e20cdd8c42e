"""docs/reference/format.md says what the code does: its tables and its dump are parsed and compared."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path

import numpy as np
import pytest

from streamshard import MDSWriter
from streamshard.format import compression, costs, encodings, hashing, images, ndarray, sample_hashes
from streamshard.format.index import FileInfo, ShardInfo, index_text
from streamshard.format.schema import Schema
from streamshard.format.shard import config_text
from tests.support.stored_datasets import load_samples

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "format.md").read_text(encoding="utf-8")
SAMPLES = [{"caption": "hé", "label": 5}, {"caption": "", "label": -1}]
COLUMNS = {"caption": "str", "label": "int"}


def table(name: str) -> list[dict[str, str]]:
    """The rows of the table below ``<!-- table: name -->``, by the names of its columns; backticks removed."""
    block = PAGE.split(f"<!-- table: {name} -->\n")[1].split("\n\n")[0]
    head, _, *rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in block.splitlines()]
    return [dict(zip(head, (cell.strip("`") for cell in row), strict=True)) for row in rows]


def dump() -> bytes:
    text = PAGE.split("<!-- dump -->\n```text\n")[1].split("```")[0]
    content = bytearray()
    for line in text.splitlines():
        at, pairs = re.fullmatch(r"([0-9a-f]{4})  ((?:[0-9a-f]{2} )*[0-9a-f]{2})(?:  .*)?", line).groups()
        assert int(at, 16) == len(content), line
        content += bytes.fromhex(pairs)
    return bytes(content)


def test_the_labelled_dump_is_the_shard_that_the_writer_makes(tmp_path):
    with MDSWriter(out=tmp_path, columns=COLUMNS) as writer:
        for sample in SAMPLES:
            writer.write(sample)
    assert (tmp_path / "shard.00000.mds").read_bytes() == dump()
    assert load_samples(tmp_path) == SAMPLES


def test_the_labels_of_the_dump_give_the_offsets_that_are_in_it():
    labelled = [int(value) for value in re.findall(r"offsets\[\d\] = (\d+)", PAGE)]
    assert labelled == list(struct.unpack_from("<3I", dump(), 4))


def test_the_config_shown_is_the_one_in_the_dump():
    shown = PAGE.split("```json\n")[1].split("\n```")[0]
    assert shown.encode() == dump()[16:214]


def test_the_encodings_are_those_of_the_code_with_their_sizes_and_letters():
    rows = {row["Name"]: row for row in table("encodings")}
    assert set(rows) == set(encodings.known_encodings())
    for name, row in rows.items():
        size = encodings.parse_encoding(name).size
        assert row["Size"] == {"ndarray": "– or fixed"}.get(name, "–" if size is None else str(size))
        if row["Struct"] == "–":
            assert name not in encodings.SCALARS
        else:
            assert struct.calcsize("<" + row["Struct"]) == size
            assert encodings.SCALARS[name][0] == row["Struct"]


def test_the_dtype_codes_are_those_of_the_code():
    rows = table("dtypes")
    assert {row["Dtype"]: int(row["Code"]) for row in rows} == ndarray.DTYPE_CODES
    assert all(np.dtype(row["Dtype"]).itemsize == int(row["Bytes"]) for row in rows)


def test_the_forms_of_arrays_store_what_the_table_says():
    array = np.arange(6, dtype=np.uint16).reshape(2, 3)
    for row in table("ndarray-forms"):
        payload = encodings.parse_encoding(row["Name"]).encode(array)
        head = (row["Dtype code"] == "1 byte") + 3 * (row["Shape header"] == "yes")
        assert len(payload) == head + 12


def test_the_worked_array_is_right():
    worked = re.search(r"is `((?:[0-9a-f]{2} ?)+)`: code 8", PAGE).group(1)
    assert encodings.parse_encoding("ndarray").encode(np.zeros((2, 3), np.uint8)) == bytes.fromhex(worked)


def test_the_compressions_are_those_of_the_code_with_their_levels():
    rows = {row["Name"]: (row["Levels"], row["Default"]) for row in table("compression")}
    assert rows == {
        name: ("–", "–") if bounds is None else (f"{bounds[0]}–{bounds[1]}", str(bounds[2]))
        for name, bounds in compression.LEVELS.items()
    }


def test_the_hashes_are_those_of_the_code():
    assert tuple(row["Name"] for row in table("hashes")) == hashing.known_hashes()


def test_the_keys_of_index_and_config_are_those_that_are_written():
    schema = Schema.from_columns(COLUMNS)
    file = FileInfo("shard.00000.mds", 100, {"xxh64": "0" * 16})
    zipped = FileInfo("shard.00000.mds.gz", 100, {})
    shard = ShardInfo(schema, "gz", ("xxh64",), file, zipped, 2, None)
    document = json.loads(index_text([shard], {"a": 1}))
    config = json.loads(config_text(schema, compression=None, hashes=(), size_limit=None))
    entry = document["shards"][0]
    for name, found in [
        ("index", document),
        ("entry", entry),
        ("file", entry["raw_data"]),
        ("file", entry["zip_data"]),
        ("config", config),
    ]:
        assert [row["Key"] for row in table(name)] == list(found)
    kinds = {"integer": int, "string": str, "object": dict, "list": list, "null": type(None)}
    for row in table("entry"):
        allowed = tuple(kind for word, kind in kinds.items() if re.search(rf"\b{word}\b", row["Type"]))
        assert isinstance(entry[row["Key"]], allowed), row


def test_the_costs_are_written_and_read_as_the_page_says():
    shown = json.loads(re.search(r"e\.g\. `(\{.*?\}\}\})`", PAGE)[1])
    assert [row["Key"] for row in table("extra")] == [*shown, sample_hashes.SAMPLE_HASHES_KEY]
    assert shown == {costs.COSTS_KEY: costs.costs_entry({"tokens": [100, 90]})}
    assert costs.parse_costs(shown["costs"], 2)["tokens"].tolist() == [100, 90]
    kinds = {"list of integers": list, "integer": int}
    entry = shown["costs"]["tokens"]
    assert {row["Key"]: kinds[row["Type"]] for row in table("cost")} == {k: type(v) for k, v in entry.items()}
    assert costs.MAX_COST == 2**63 - 1


def test_the_hashes_of_samples_are_read_as_the_page_says():
    shown = json.loads(re.search(r"e\.g\. `(\{\"sample_hashes.*?\]\}\})`", PAGE)[1])
    entry = shown[sample_hashes.SAMPLE_HASHES_KEY]
    assert [row["Key"] for row in table("sample_hashes")] == list(entry)
    found = sample_hashes.parse_sample_hashes(entry, 2)
    assert found.entry() == entry
    assert f"`{sample_hashes.side_basename('shard.00000.mds')}`" in PAGE


@pytest.mark.parametrize(("name", "nbytes"), [("shard", 4), ("pil", 12), ("list", 8), ("jpeg_array", 4)])
def test_the_fixed_fields_of_each_structure_have_the_sizes_in_the_table(name, nbytes):
    rows = table(name)
    fixed = [row for row in rows if row["Bytes"].isdigit()]
    assert fixed == rows[: len(fixed)]
    assert sum(struct.calcsize({"u32": "<I"}[row["Type"]]) for row in fixed) == nbytes
    assert sum(int(row["Bytes"]) for row in fixed) == nbytes
    if name == "pil":
        assert images._PIL_HEAD.size == nbytes

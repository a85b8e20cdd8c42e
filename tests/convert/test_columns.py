"""Which columns a dataset gets, and that every planned size is the real one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamshard import LocalDataset
from streamshard.convert.jsonl import parse_record
from streamshard.convert.problems import RecordProblem
from streamshard.errors import ConvertError
from tests.support.jsonl_inputs import converted, files_of, picture, run, write_lines


@pytest.mark.parametrize(
    ("values", "encoding"),
    [
        (["a", ""], "str"),
        (["a", None], "json"),
        (["a", "\ud800"], "json"),
        ([1, -5], "int"),
        ([1, 2**63], "json"),
        ([1, 1.0], "json"),
        ([1.5, -0.0], "float64"),
        ([True, False], "json"),
        ([True, 1], "json"),
        ([[], [1]], "json"),
        ([{}, {"a": None}], "json"),
        (["1", 1], "json"),
        ([None, None], "json"),
    ],
)
def test_a_key_has_the_type_that_all_records_share(tmp_path: Path, values: list[Any], encoding: str) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{"v": value} for value in values])
    summary = run(source, tmp_path / "A")
    assert summary.columns == {"v": encoding}
    found = [sample["v"] for sample in LocalDataset(str(tmp_path / "A"))]
    assert found == values
    # A float64 column reads as NumPy scalars, which are floats.
    assert all(isinstance(value, type(wanted)) for value, wanted in zip(found, values, strict=True))
    assert [isinstance(value, bool) for value in found] == [isinstance(value, bool) for value in values]


def test_skipped_records_have_no_say_in_the_types(tmp_path: Path) -> None:
    rows = [{"v": 1, "image": "a.png"}, {"v": "x", "image": "missing.png"}]
    (tmp_path / "a.png").write_bytes(picture())
    summary = run(write_lines(tmp_path / "a.jsonl", rows), tmp_path / "A", on_error="skip")
    assert summary.columns["v"] == "int"


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(st.characters(blacklist_categories=()), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
_KEYS = st.sampled_from(["a", "é", "b c", '"', "z"])


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    rows=st.lists(st.dictionaries(_KEYS, _VALUES, min_size=1), min_size=1, max_size=6),
    seed=st.none() | st.just(3),
)
def test_whatever_the_values_they_come_back_equal(
    tmp_path: Path, rows: list[dict[str, Any]], seed: int | None
) -> None:
    # That it converts at all says that the planned sizes were exact: writing compares each of them.
    source = write_lines(tmp_path / "a.jsonl", rows)
    out = tmp_path / "A"
    run(source, out, overwrite=True, shuffle=seed)
    names = {name for row in rows for name in row}
    found = sorted(json.dumps(sample, sort_keys=True) for sample in LocalDataset(str(out)))
    assert found == sorted(
        json.dumps({name: row.get(name) for name in names}, sort_keys=True) for row in rows
    )


def _wide(count: int) -> list[dict[str, Any]]:
    return [{"id": row, "t": "x", **{f"k{row}_{key}": [key] for key in range(count)}} for row in range(3)]


def test_too_many_keys_are_refused_naming_the_rarest_and_the_way_out(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", _wide(100))
    with pytest.raises(ConvertError, match=r"302 different keys, more than the 256 columns") as caught:
        run(source, tmp_path / "A")
    assert "(1 records)" in str(caught.value)
    assert "--json-rest COLUMN" in str(caught.value)


def test_the_rarest_keys_go_into_one_column(tmp_path: Path) -> None:
    rows = _wide(100)
    source = write_lines(tmp_path / "a.jsonl", rows)
    summary = run(source, tmp_path / "A", json_rest="rest")
    assert len(summary.columns) == 256
    assert summary.columns["rest"] == "json"
    assert summary.columns["id"] == "int"
    assert summary.columns["t"] == "str"
    for row, sample in zip(rows, LocalDataset(str(tmp_path / "A")), strict=True):
        rest = sample.pop("rest")
        assert {**{name: value for name, value in sample.items() if value is not None}, **rest} == row


def test_256_columns_need_no_rest(tmp_path: Path) -> None:
    rows = [{f"k{number}": number for number in range(256)}]
    summary = run(write_lines(tmp_path / "a.jsonl", rows), tmp_path / "A", json_rest="rest")
    assert len(summary.columns) == 256
    assert "rest" not in summary.columns


def test_the_name_of_the_rest_must_be_free(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", _wide(100))
    with pytest.raises(ConvertError, match="a column of that name exists"):
        run(source, tmp_path / "A", json_rest="id")


def test_records_without_keys_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConvertError, match="no usable columns"):
        run(write_lines(tmp_path / "a.jsonl", [{}]), tmp_path / "A")


def test_odd_but_legal_keys_are_columns(tmp_path: Path) -> None:
    rows = [{"a\nb": 1, "schön": "x", "a/b": 2.5, " ": None}]
    assert converted(write_lines(tmp_path / "a.jsonl", rows), tmp_path / "A") == rows
    assert "index.json" in files_of(tmp_path / "A")


def test_a_duplicate_key_is_found_at_any_depth() -> None:
    assert parse_record(b'{"a":{"b":1},"b":1}') == {"a": {"b": 1}, "b": 1}
    with pytest.raises(RecordProblem, match="'b' stands twice"):
        parse_record(b'{"a":[{"b":1,"c":2,"b":1}]}')

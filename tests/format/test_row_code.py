"""The code made for a schema gives what the step-by-step decoder gives, whatever the columns."""

from __future__ import annotations

import mmap
import tempfile
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamshard.errors import FormatError
from streamshard.format.decoder import FEW
from streamshard.format.schema import Schema

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(-(2**63), 2**63 - 1),
    "str": st.text(max_size=20),
    "bytes": st.binary(max_size=20),
    "uint16": st.integers(0, 2**16 - 1).map(np.uint16),
    "float64": st.floats(allow_nan=False).map(np.float64),
    "json": st.lists(st.integers(), max_size=3),
    "ndarray:int16:2": st.lists(st.integers(-5, 5), min_size=2, max_size=2).map(
        lambda each: np.array(each, np.int16)
    ),
}
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)


@st.composite
def datasets(draw: st.DrawFn) -> tuple[Schema, list[dict[str, Any]], tuple[str, ...]]:
    columns = draw(st.dictionaries(NAMES, st.sampled_from(sorted(VALUES)), min_size=1, max_size=6))
    sample = st.fixed_dictionaries({name: VALUES[kind] for name, kind in columns.items()})
    samples = draw(st.lists(sample, min_size=1, max_size=5))
    wanted = draw(st.lists(st.sampled_from(sorted(columns)), unique=True, min_size=1))
    return Schema.from_columns(columns), samples, tuple(wanted)


def same(found: dict[str, Any], sample: dict[str, Any], wanted: tuple[str, ...]) -> bool:
    return set(found) == set(wanted) and all(
        type(found[name]) is type(sample[name]) and np.array_equal(found[name], sample[name])
        for name in wanted
    )


@given(datasets())
def test_one_by_one_and_many_at_once_agree_for_every_schema(case: Any) -> None:
    schema, samples, wanted = case
    samples = (samples * FEW)[: FEW + len(samples) - 1]
    parts = [b"junk", *(schema.encode_sample(sample) for sample in samples)]
    ends = np.cumsum([len(part) for part in parts])
    begins, ends = ends[:-1], ends[1:]
    buffer = b"".join(parts)
    decoder = schema.decoder(wanted)
    rows = [decoder.row(buffer, a, b) for a, b in zip(begins.tolist(), ends.tolist(), strict=True)]
    assert all(same(row, sample, wanted) for row, sample in zip(rows, samples, strict=True))
    many = decoder.many(buffer, begins, ends)
    assert all(same(row, sample, wanted) for row, sample in zip(many, samples, strict=True))
    assert [list(row) for row in rows] == [list(row) for row in many]
    stepped = decoder._step_by_step(buffer, int(begins[0]), int(ends[0]))
    assert same(stepped, samples[0], wanted)
    columns, joined = decoder.columns_of(buffer, begins, ends), decoder.columns_from(rows)
    for name in wanted:
        assert type(columns[name]) is type(joined[name])
        if isinstance(columns[name], np.ndarray):
            assert joined[name].dtype == columns[name].dtype
            assert joined[name].shape == columns[name].shape
            assert joined[name].flags.writeable
            assert np.array_equal(columns[name], joined[name])
        else:
            assert columns[name] == joined[name]


@pytest.mark.parametrize("change", [-1, 1])
def test_lengths_that_do_not_add_up_are_an_error_and_no_guess(change: int) -> None:
    schema = Schema.from_columns({"a": "str", "b": "bytes", "n": "int"})
    sample = bytearray(schema.encode_sample({"a": "text", "b": b"blob", "n": 3}))
    sample[0] += change
    with pytest.raises(FormatError, match="length words"):
        schema.decoder().one(bytes(sample))
    with pytest.raises(FormatError, match="shorter than"):
        schema.decoder().one(bytes(sample[:3]))


def test_values_sliced_from_a_map_are_copies() -> None:
    schema = Schema.from_columns({"a": "bytes", "n": "int"})
    sample = schema.encode_sample({"a": b"bytes", "n": -1})
    with tempfile.TemporaryFile() as file:
        file.write(b"x" + sample)
        file.flush()
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        found = schema.decoder().row(mapped, 1, 1 + len(sample))
        mapped.close()  # nothing looks into it
    assert found == {"a": b"bytes", "n": -1}

"""Samples to bytes and back, by row, by column and one by one."""

from __future__ import annotations

import contextlib
import pickle
import struct
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamshard.errors import FormatError, SampleError, UnsafeEncodingError
from streamshard.format.schema import Schema

COLUMNS = {"z": "str", "b": "int", "m": "ndarray:int16:2"}
SCHEMA = Schema.from_columns(COLUMNS)
SAMPLE = {"b": 5, "m": np.array([1, 2], np.int16), "z": "hé"}


def laid_out(schema, samples, gap=0):
    """Samples in one buffer with gaps between them, and where each begins and ends."""
    payloads = [schema.encode_sample(sample) for sample in samples]
    buffer = bytearray(b"\xee" * gap)
    begins, ends = [], []
    for payload in payloads:
        begins.append(len(buffer))
        buffer += payload
        ends.append(len(buffer))
        buffer += b"\xee" * gap
    return bytes(buffer), np.array(begins, np.int64), np.array(ends, np.int64)


def test_a_sample_is_its_lengths_then_its_values_in_the_order_of_names():
    payload = SCHEMA.encode_sample(SAMPLE)
    assert payload.hex() == "03000000" + "0500000000000000" + "01000200" + "68c3a9"
    assert SCHEMA.names == ("b", "m", "z")
    assert SCHEMA.sizes == (8, 4, None)
    found = SCHEMA.decoder().one(payload)
    assert found["b"] == 5
    assert found["z"] == "hé"
    assert found["m"].tolist() == [1, 2]


ALL = {
    "a": "int",
    "b": "str",
    "c": "bytes",
    "d": "float32",
    "e": "ndarray",
    "f": "ndarray:uint8:2,2",
    "g": "json",
    "h": "uint8",
    "i": "str_int",
}
_VALUES = st.fixed_dictionaries(
    {
        "a": st.integers(-(2**63), 2**63 - 1),
        "b": st.text(max_size=8),
        "c": st.binary(max_size=8),
        "d": st.floats(width=32, allow_nan=False),
        "e": st.lists(st.integers(0, 255), max_size=5).map(lambda v: np.array(v, np.uint8)),
        "f": st.integers(0, 255).map(lambda v: np.full((2, 2), v, np.uint8)),
        "g": st.lists(st.integers() | st.none(), max_size=3),
        "h": st.integers(0, 255),
        "i": st.integers(),
    }
)


def equal(found, wanted):
    return found.keys() == wanted.keys() and all(
        np.array_equal(found[k], wanted[k]) and type(found[k]) is type(wanted[k])
        if not isinstance(found[k], np.generic)
        else found[k] == wanted[k]
        for k in wanted
    )


@settings(deadline=None)
@given(st.lists(_VALUES, max_size=25), st.integers(0, 3), st.data())
def test_rows_columns_and_single_samples_agree_whatever_is_selected(samples, gap, data):
    columns = data.draw(st.lists(st.sampled_from(sorted(ALL)), min_size=1, unique=True))
    schema = Schema.from_columns(ALL)
    buffer, begins, ends = laid_out(schema, samples, gap)
    order = np.array(data.draw(st.permutations(range(len(samples)))), np.int64)
    wanted = [{name: samples[i][name] for name in sorted(columns)} for i in order]
    decoder = schema.decoder(columns)
    assert decoder.columns == tuple(sorted(columns))
    for form in (buffer, memoryview(buffer)):
        rows = decoder.many(form, begins[order], ends[order])
        assert all(equal(row, expected) for row, expected in zip(rows, wanted, strict=True))
        singles = [decoder.one(form[begins[i] : ends[i]]) for i in order]
        assert all(equal(row, expected) for row, expected in zip(singles, wanted, strict=True))
        assert [list(row) for row in rows] == [sorted(columns)] * len(rows)
        by_column = decoder.columns_of(form, begins[order], ends[order])
        assert list(by_column) == sorted(columns)
        for name, values in by_column.items():
            assert len(values) == len(samples)
            assert all(np.array_equal(v, expected[name]) for v, expected in zip(values, wanted, strict=True))


def test_columns_of_gives_arrays_for_what_has_a_fixed_size():
    schema = Schema.from_columns({"n": "int", "h": "float16", "a": "ndarray:int16:2,3", "t": "str"})
    samples = [{"n": i, "h": i, "a": np.full((2, 3), i, np.int16), "t": str(i)} for i in range(20)]
    found = schema.decoder().columns_of(*laid_out(schema, samples))
    assert found["n"].dtype == np.int64
    assert found["h"].dtype == np.float16
    assert found["a"].shape == (20, 2, 3)
    assert found["t"] == [str(i) for i in range(20)]
    found["a"] += 1  # memory of its own


def test_values_have_the_types_that_mosaicml_gives():
    schema = Schema.from_columns({"n": "int", "u": "uint8", "f": "float32"})
    for count in (1, 50):
        for row in schema.decoder().many(*laid_out(schema, [{"n": 1, "u": 2, "f": 3}] * count)):
            assert [type(v) for v in row.values()] == [np.float32, int, np.uint8]


@pytest.mark.parametrize("shape", ["2", "3000"])
@pytest.mark.parametrize("count", [1, 50])
def test_s19_arrays_are_writeable_on_request(shape, count):
    schema = Schema.from_columns({"a": f"ndarray:int16:{shape}", "b": "ndarray"})
    samples = [{"a": np.ones(int(shape), np.int16), "b": np.ones(3)}] * count
    laid = laid_out(schema, samples)
    for row in schema.decoder().many(*laid):
        assert not row["a"].flags.writeable
        assert not row["b"].flags.writeable
    rows = schema.decoder(writeable_arrays=True).many(*laid)
    rows[0]["a"][:] = 9
    rows[0]["b"][:] = 9
    again = schema.decoder().many(*laid)
    assert again[0]["a"].max() == 1
    assert all(row["a"].max() == 1 for row in rows[1:])


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        ({"b": 5, "z": "x"}, r"column 'm' is missing; the sample has 'b', 'z'"),
        ({**SAMPLE, "q": 1}, r"column 'q' was not declared; declared: 'b', 'm', 'z'"),
        ({**SAMPLE, "b": "5"}, r"column 'b' \(encoding 'int'\): expected an integer, found str"),
        ({**SAMPLE, "z": None}, r"column 'z' \(encoding 'str'\): expected str, found NoneType"),
        ({**SAMPLE, "m": np.zeros(3, np.int16)}, r"column 'm' .*shape \(2,\), found \(3,\) .*numpy.ndarray"),
        ({**SAMPLE, "b": 2**63}, r"column 'b' .*out of range.*of type int"),
        ([1, 2], "expected a dict of columns, found list"),
        (None, "expected a dict of columns, found NoneType"),
        ({}, "column 'b' is missing; the sample has none"),
    ],
)
def test_a_refused_sample_names_column_encoding_and_type(sample, words):
    with pytest.raises(SampleError, match=words):
        SCHEMA.encode_sample(sample)


@pytest.mark.parametrize("columns", [{}, None, [("a", "int")], {"a": 1}, {1: "int"}])
def test_columns_that_are_no_mapping_of_strings_are_refused(columns):
    with pytest.raises(ValueError, match="columns"):
        Schema.from_columns(columns)


def test_an_unknown_encoding_names_the_column():
    with pytest.raises(FormatError, match="column 'a': unknown encoding 'text'"):
        Schema.from_columns({"a": "text"})


def test_an_unknown_column_lists_those_that_are_there():
    with pytest.raises(ValueError, match="no column 'q'; there are: 'b', 'm', 'z'"):
        SCHEMA.decoder(["b", "q"])
    for columns in ("b", []):
        with pytest.raises(ValueError, match="expected a list of column names"):
            SCHEMA.decoder(columns)


def test_pickle_is_refused_by_name_unless_allowed_or_left_out():
    schema = Schema.from_columns({"p": "pkl", "n": "int"})
    payload = schema.encode_sample({"p": {1, 2}, "n": 3})
    with pytest.raises(UnsafeEncodingError, match=r"column 'p'.*allow_unsafe_types=True"):
        schema.decoder()
    assert schema.decoder(["n"]).one(payload) == {"n": 3}
    assert schema.decoder(allow_unsafe_types=True).one(payload) == {"n": 3, "p": {1, 2}}


def test_a_pickle_is_not_touched_when_it_is_not_selected():
    schema = Schema(("n", "p"), ("int", "pkl"), (8, None))
    bomb = b"cos\nsystem\n(S'touch /nowhere/ran'\ntR."
    payload = struct.pack("<I", len(bomb)) + bytes(8) + bomb
    assert schema.decoder(["n"]).one(payload) == {"n": 0}


def test_b083_a_column_of_unknown_encoding_is_refused_only_when_it_is_read():
    schema = Schema(("a", "b"), ("int", "jpegs"), (8, None))
    payload = struct.pack("<Iq", 2, 7) + b"xx"
    assert schema.decoder(["a"]).one(payload) == {"a": 7}
    with pytest.raises(FormatError, match=r"column 'b': unknown encoding 'jpegs'; known: .*jpeg_array"):
        schema.decoder()


def test_b063_images_can_be_read_as_their_bytes(tmp_path):
    from PIL import Image

    path = tmp_path / "a.png"
    Image.new("RGB", (2, 2)).save(path)
    content = path.read_bytes()
    schema = Schema.from_columns({"i": "png", "l": "list[jpeg]", "j": "jpegarray", "p": "pil", "t": "str"})
    sample = {"i": content, "l": [content], "j": [content] * 2, "p": Image.new("L", (1, 1)), "t": "x"}
    payload = schema.encode_sample(sample)
    found = schema.decoder(decode_images=False).one(payload)
    assert found == {**sample, "p": struct.pack("<III", 1, 1, 1) + b"L\0"}
    assert schema.decoder().one(payload)["l"][0].size == (2, 2)


def test_schema_and_decoder_survive_pickling_and_threads():
    schema = pickle.loads(pickle.dumps(SCHEMA))
    assert schema == SCHEMA
    assert hash(schema) == hash(SCHEMA)
    schema.encode_sample(SAMPLE)
    decoder = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(schema)).decoder(["b", "z"])))
    laid = laid_out(SCHEMA, [{**SAMPLE, "b": i} for i in range(64)])
    with ThreadPoolExecutor(4) as pool:
        for rows in pool.map(lambda _: decoder.many(*laid), range(16)):
            assert [row["b"] for row in rows] == list(range(64))


@pytest.mark.parametrize("count", [3, 40])
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda b, begins, ends: begins.__setitem__(2, -1), r"row 2: bytes -1 to"),
        (lambda b, begins, ends: ends.__setitem__(2, len(b) + 1), r"row 2: bytes"),
        (
            lambda b, begins, ends: ends.__setitem__(2, begins[2] + 3),
            r"row 2: a sample of 3 bytes, shorter than the 16",
        ),
        (lambda b, begins, ends: ends.__setitem__(2, begins[2] - 3), r"row 2: bytes"),
        (
            lambda b, begins, ends: struct.pack_into("<I", b, begins[2], 4),
            r"row 2: a sample of 19 bytes whose columns take 20",
        ),
        (
            lambda b, begins, ends: struct.pack_into("<I", b, begins[2], 2**32 - 1),
            r"row 2: .*take 4294967311",
        ),
        (
            lambda b, begins, ends: b.__setitem__(begins[2] + 17, 0xFF),
            r"row 2: column 'z' \(encoding 'str'\): not UTF-8",
        ),
    ],
)
def test_a_damaged_sample_is_named_by_row_and_never_cut_wrongly(count, damage, words):
    buffer, begins, ends = laid_out(SCHEMA, [SAMPLE] * count)
    memory = bytearray(buffer)
    damage(memory, begins, ends)
    decoder = SCHEMA.decoder()
    for form in (bytes(memory), memoryview(memory)):
        with pytest.raises(FormatError, match=words):
            decoder.many(form, begins, ends)
        with pytest.raises(FormatError, match=words):
            decoder.columns_of(form, begins, ends)


def test_two_lengths_that_wrap_in_32_bits_are_refused():
    schema = Schema.from_columns({"a": "bytes", "b": "bytes"})
    payload = struct.pack("<II", 2**31, 2**31 + 4) + b"abcd"
    for rows in (1, 40):
        with pytest.raises(FormatError, match="take 4294967308"):
            schema.decoder().many(payload, np.zeros(rows, np.int64), np.full(rows, 12, np.int64))


@settings(deadline=None)
@given(st.binary(max_size=60), st.integers(1, 12))
def test_no_bytes_at_all_give_anything_but_samples_or_a_format_error(junk, count):
    schema = Schema.from_columns({"a": "str", "b": "ndarray", "c": "uint16", "d": "list[png]", "e": "json"})
    decoder = schema.decoder()
    begins, ends = np.zeros(count, np.int64), np.full(count, len(junk), np.int64)
    for call in (lambda: decoder.many(junk, begins, ends), lambda: decoder.one(junk)):
        with contextlib.suppress(FormatError):
            call()


def test_column_names_of_any_text_become_keys_and_never_code():
    names = ["a'b", 'c"d', "__import__('os')", "{x}", "\n", "\ud800", ""]
    schema = Schema.from_columns(dict.fromkeys(names, "int"))
    sample = {name: i for i, name in enumerate(names)}
    assert schema.decoder().many(*laid_out(schema, [sample] * 20)) == [sample] * 20


def test_hundreds_of_columns_work():
    schema = Schema.from_columns({f"c{i}": "str" if i % 2 else "int" for i in range(600)})
    sample = {f"c{i}": str(i) if i % 2 else i for i in range(600)}
    assert schema.decoder().many(*laid_out(schema, [sample] * 12)) == [sample] * 12


@pytest.mark.parametrize(
    ("names", "encodings", "sizes", "words"),
    [
        ((), (), (), "no columns"),
        (("a",), ("int", "int"), (8,), "1 column names, 2 encodings, 1 sizes"),
        (("a", "a"), ("int", "int"), (8, 8), "occurs twice"),
    ],
)
def test_a_schema_that_contradicts_itself_is_refused(names, encodings, sizes, words):
    with pytest.raises(FormatError, match=words):
        Schema(names, encodings, sizes)


def test_a_size_in_the_index_that_is_not_the_encodings_is_refused():
    with pytest.raises(FormatError, match="encoding 'int' has size 8, the index says 4"):
        Schema(("a",), ("int",), (4,)).decoder()

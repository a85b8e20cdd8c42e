"""Scalars, text, json, pickle: bytes by literals, values by round trip, refusals by their words."""

from __future__ import annotations

import pickle
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamshard.errors import FormatError, SampleError
from streamshard.format import encodings
from streamshard.format.encodings import (
    SCALARS,
    Encoding,
    known_encodings,
    parse_encoding,
    register_encoding,
)


@pytest.mark.parametrize(
    ("name", "value", "payload"),
    [
        ("int", 5, "0500000000000000"),
        ("int", -1, "ffffffffffffffff"),
        ("int", True, "0100000000000000"),
        ("uint8", 255, "ff"),
        ("uint8", np.bool_(True), "01"),
        ("uint16", 0x1234, "3412"),
        ("int32", np.int64(-2), "feffffff"),
        ("uint64", 2**64 - 1, "ff" * 8),
        ("float16", 1.5, "003e"),
        ("float32", 1, "0000803f"),
        ("float64", float("-inf"), "000000000000f0ff"),
        ("str", "hé", "68c3a9"),
        ("str", "", ""),
        ("bytes", bytearray(b"ab"), "6162"),
        ("json", {"b": [1, None], "a": "é"}, b'{"b": [1, null], "a": "\\u00e9"}'.hex()),
        ("json", np.array([[1, 2]]), b"[[1, 2]]".hex()),
        ("str_int", -(10**20), b"-100000000000000000000".hex()),
        ("str_int", True, b"1".hex()),
        ("str_float", 0.1, b"0.1".hex()),
        ("str_decimal", Decimal("4E+15"), b"4E+15".hex()),
    ],
)
def test_a_value_becomes_these_bytes(name, value, payload):
    assert parse_encoding(name).encode(value).hex() == payload


@pytest.mark.parametrize("name", list(SCALARS))
def test_scalars_read_back_with_the_type_that_mosaicml_gives(name):
    encoding = parse_encoding(name)
    value = encoding.decode(encoding.encode(7))
    assert value == 7
    assert type(value) is (int if name == "int" else np.dtype(name).type)
    assert encoding.size == np.dtype(SCALARS[name][1]).itemsize


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("int", 2**63),
        ("int", 2**64),
        ("int", -(2**63) - 1),
        pytest.param("int", 10**5000, id="int-5000 digits"),
        ("uint8", 256),
        ("uint8", -1),
        ("int8", 128),
        ("uint64", 2**64),
        ("float16", 1e6),
        ("float32", 1e300),
    ],
)
def test_b009_a_number_beyond_its_column_is_refused_with_the_range(name, value):
    with pytest.raises(SampleError, match="out of range"):
        parse_encoding(name).encode(value)


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63), 0])
def test_b009_the_ends_of_int64_are_stored(value):
    encoding = parse_encoding("int")
    assert encoding.decode(encoding.encode(value)) == value


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("int", 1.0, "float"),
        ("int", "1", "str"),
        ("int", None, "NoneType"),
        ("int", np.array([1]), "numpy.ndarray"),
        ("uint8", 3.7, "float"),
        ("float32", "1.5", "str"),
        ("float64", None, "NoneType"),
        ("str", 1, "int"),
        ("str", None, "NoneType"),
        ("bytes", "x", "str"),
        ("str_int", 1.0, "float"),
        ("str_float", 1, "int"),
        ("str_decimal", 1.0, "float"),
    ],
)
def test_a_value_of_another_type_is_refused_by_its_type(name, value, found):
    with pytest.raises(SampleError, match=f"found {found}$"):
        parse_encoding(name).encode(value)


@pytest.mark.parametrize(
    "name", ["int", "uint8", "float32", "str", "str_int", "str_float", "str_decimal", "json"]
)
def test_s12_bytes_do_not_pass_an_encoder_that_is_not_for_bytes(name):
    with pytest.raises(SampleError):
        parse_encoding(name).encode(b"12345678")


def test_text_that_utf8_cannot_hold_is_refused():
    with pytest.raises(SampleError, match="surrogates not allowed"):
        parse_encoding("str").encode("\ud800")


@pytest.mark.parametrize("value", [{1, 2}, b"x", {"a": object()}])
def test_json_refuses_what_json_cannot_hold(value):
    with pytest.raises(SampleError, match="JSON cannot hold"):
        parse_encoding("json").encode(value)


def test_json_refuses_a_list_that_holds_itself():
    endless: list = []
    endless.append(endless)
    with pytest.raises(SampleError, match="Circular"):
        parse_encoding("json").encode(endless)


@pytest.mark.parametrize(
    ("name", "payload", "words"),
    [
        ("int", b"1234567", "takes 8 bytes, found 7"),
        ("uint16", b"", "takes 2 bytes, found 0"),
        ("str", b"a\xff", "not UTF-8: invalid start byte at byte 1"),
        ("json", b"{", "not JSON"),
        ("json", b"[" * 100_000, "not JSON"),
        ("json", b"\xff", "not JSON"),
        ("str_int", b"1.5", "not a number"),
        ("str_int", b"9" * 100_000, "not a number"),
        ("str_float", b"", "not a number"),
        ("str_decimal", b"x", "not a number"),
        ("str_decimal", b"\xff", "not a number"),
        ("pkl", b"garbage", "not a pickle"),
    ],
)
def test_bytes_that_are_no_value_are_a_format_error(name, payload, words):
    for form in (payload, memoryview(payload)):
        with pytest.raises(FormatError, match=words):
            parse_encoding(name).decode(form)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("int", st.integers(-(2**63), 2**63 - 1)),
        ("uint32", st.integers(0, 2**32 - 1)),
        ("float64", st.floats(allow_nan=False)),
        ("float32", st.floats(allow_nan=False, width=32)),
        ("float16", st.floats(allow_nan=False, width=16)),
        ("str", st.text()),
        ("bytes", st.binary()),
        ("str_int", st.integers()),
        ("str_float", st.floats(allow_nan=False)),
        ("str_decimal", st.decimals(allow_nan=False)),
        (
            "json",
            st.recursive(
                st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
                lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
                max_leaves=8,
            ),
        ),
        ("pkl", st.tuples(st.integers(), st.text())),
    ],
)
def test_what_is_encoded_decodes_to_itself(name, values):
    encoding = parse_encoding(name)

    @given(values)
    def check(value):
        payload = encoding.encode(value)
        assert encoding.decode(payload) == value
        assert encoding.decode(memoryview(payload)) == value

    check()


@pytest.mark.parametrize("name", ["float16", "float32", "float64", "str_float", "json"])
def test_b007_nan_reads_back_as_nan(name):
    encoding = parse_encoding(name)
    assert np.isnan(encoding.decode(encoding.encode(float("nan"))))


@pytest.mark.parametrize("name", ["", "jpg", "int:4", "str:", "INT", "list[int]", "jpeg_arrays"])
def test_b083_an_unknown_encoding_is_named_with_the_known_ones(name):
    with pytest.raises(FormatError, match=r"unknown encoding .*jpeg_array, jpegarray.*list\[png\]"):
        parse_encoding(name)


def test_every_known_encoding_is_one_object_and_pickles_to_itself():
    for name in known_encodings():
        encoding = parse_encoding(name)
        assert encoding.name == name
        assert pickle.loads(pickle.dumps(encoding)) is encoding
        assert encoding.unsafe is (name == "pkl")


@pytest.mark.parametrize(
    "value",
    [
        {"ner": [[[0, 4, "P"], [15, 16, "Q"]], [], None, {"k": [1, "2", 3.5]}]},
        {"body": '{"a": 1} ,action: string, t: timestamp[s]', "id": 1},
        [9223372036854775807, 9223372036854775808, 18446744073709551616],
        [1.0, 2, 2.5],
        [float("inf"), -float("inf")],
    ],
    ids=[
        "b014-mixed lists",
        "b015-text like a schema",
        "b009-large integers",
        "b010-floats stay",
        "b007-infinity",
    ],
)
def test_json_values_keep_their_types_and_nesting(value):
    encoding = parse_encoding("json")
    found = encoding.decode(encoding.encode(value))
    assert found == value
    assert repr(found) == repr(value)


class _Reversed(Encoding):
    name = "reversed"

    def encode(self, value):
        return value.encode()[::-1]

    def decode(self, payload):
        return bytes(payload)[::-1].decode()


def test_an_encoding_of_ones_own_can_be_added_but_none_replaced(monkeypatch):
    monkeypatch.setattr(encodings, "_registered", {})
    register_encoding("reversed", lambda parameters: _Reversed())
    encoding = parse_encoding("reversed")
    assert encoding.decode(encoding.encode("abc")) == "abc"
    assert "reversed" in known_encodings()
    for prefix in ("int", "", "a:b"):
        with pytest.raises(ValueError, match="expected a new name"):
            register_encoding(prefix, lambda parameters: _Reversed())
    parse_encoding.cache_clear()

"""Arrays in all three forms of header."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from streamshard.errors import FormatError, SampleError
from streamshard.format.encodings import parse_encoding
from streamshard.format.ndarray import DTYPE_CODES


@pytest.mark.parametrize(
    ("name", "array", "payload"),
    [
        ("ndarray", np.zeros((2, 3), np.uint8), "08080203" + "00" * 6),
        ("ndarray:uint8", np.arange(3, dtype=np.uint8), "0403000102"),
        ("ndarray:int16:2", np.array([1, 2], np.int16), "01000200"),
        ("ndarray", np.array([1.5], np.float16), "120401003e"[:4] + "01" + "003e"),
        ("ndarray:uint8", np.zeros((1, 256), np.uint8), "09" + "01000001" + "00" * 256),
        ("ndarray:uint8", np.zeros(70000, np.uint8), "06" + "70110100" + "00" * 70000),
        ("ndarray", np.array(7, np.uint8), "080007"),
        ("ndarray:int32", np.zeros((0, 3), np.int32), "080003"),
    ],
)
def test_an_array_becomes_these_bytes(name, array, payload):
    assert parse_encoding(name).encode(array).hex() == payload


@given(
    hnp.arrays(
        st.sampled_from(sorted(DTYPE_CODES)),
        hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4),
        elements={"allow_nan": False},
    )
)
def test_every_array_reads_back_with_dtype_shape_and_values(array):
    names = ["ndarray", f"ndarray:{array.dtype.name}"]
    if array.size and array.ndim:
        names.append(f"ndarray:{array.dtype.name}:" + ",".join(map(str, array.shape)))
    for name in names:
        encoding = parse_encoding(name)
        payload = encoding.encode(array)
        assert encoding.size in (None, len(payload))
        for form in (payload, memoryview(payload)):
            found = encoding.decode(form)
            assert found.dtype == array.dtype
            assert found.shape == array.shape
            assert np.array_equal(found, array)


@pytest.mark.parametrize("kind", ["i2", "u4", "f2", "f8"])
@pytest.mark.parametrize("form", ["ndarray", "ndarray:{}", "ndarray:{}:3"])
def test_s10_big_endian_arrays_keep_their_numbers(kind, form):
    big = np.array([1, 2, 300], ">" + kind)
    encoding = parse_encoding(form.format(big.dtype.newbyteorder("<").name))
    found = encoding.decode(encoding.encode(big))
    assert found.tolist() == [1, 2, 300]
    assert found.dtype == np.dtype("<" + kind)


def test_an_array_in_fortran_order_or_with_strides_is_stored_in_c_order():
    encoding = parse_encoding("ndarray")
    array = np.arange(24, dtype=np.int32).reshape(4, 6)
    for odd in (np.asfortranarray(array), array[::-1, ::2], array.T):
        assert np.array_equal(encoding.decode(encoding.encode(odd)), odd)


def test_s19_arrays_are_read_only_unless_writeable_ones_are_asked_for():
    encoding = parse_encoding("ndarray:uint8:2")
    payload = encoding.encode(np.array([1, 2], np.uint8))
    assert not encoding.decode(payload).flags.writeable
    array = encoding.decode_writeable(payload)
    array += 1
    assert array.tolist() == [2, 3]
    assert payload == b"\x01\x02"


def test_an_array_never_refers_to_a_buffer_that_may_change_or_be_closed():
    encoding = parse_encoding("ndarray")
    memory = bytearray(encoding.encode(np.arange(4, dtype=np.uint8)))
    found = encoding.decode(memoryview(memory))
    memory[-1] = 99
    assert found.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("ndarray", [1, 2], "expected a numpy array, found list"),
        ("ndarray", np.float32(1), "expected a numpy array, found numpy.float32"),
        ("ndarray", np.array([True]), "arrays of bool cannot be stored"),
        ("ndarray", np.array([1j]), "arrays of complex128"),
        ("ndarray", np.array(["a"]), "arrays of <U1"),
        ("ndarray", np.ma.masked_array([1, 2], [True, False]), "MaskedArray"),
        ("ndarray:uint16", np.zeros(2, np.int16), "expected an array of uint16, found int16"),
        ("ndarray:uint16:2,3", np.zeros((3, 2), np.uint16), r"shape \(2, 3\), found \(3, 2\)"),
        ("ndarray:uint16:2", np.zeros(0, np.uint16), r"shape \(2,\), found \(0,\)"),
    ],
)
def test_what_the_column_cannot_hold_is_refused(name, value, words):
    with pytest.raises(SampleError, match=words):
        parse_encoding(name).encode(value)


@pytest.mark.parametrize(
    ("name", "payload", "words"),
    [
        ("ndarray", b"", "0 bytes: expected a dtype code"),
        ("ndarray", b"\x07\x04\x01\x00", "unknown ndarray dtype code 7"),
        ("ndarray", b"\x08", "expected a shape header"),
        ("ndarray", b"\x08\xff", "whose shape header takes"),
        ("ndarray", b"\x08\x04\x03ab", "takes 3 bytes, found 2"),
        ("ndarray:uint8", b"\x04\x02abc", "takes 2 bytes, found 3"),
        ("ndarray:uint8", b"\x0b" + b"\xff" * 16, "takes .* bytes, found 0"),
        ("ndarray:uint8", b"\x0b" + b"\xff" * 8 + bytes(8), "an array of shape"),
        ("ndarray:uint16:2", b"abc", "takes 4 bytes, found 3"),
    ],
)
def test_hostile_headers_are_format_errors(name, payload, words):
    for form in (payload, memoryview(payload)):
        with pytest.raises(FormatError, match=words):
            parse_encoding(name).decode(form)


@pytest.mark.parametrize(
    "name",
    [
        "ndarray:bool",
        "ndarray::2",
        "ndarray:uint8:",
        "ndarray:uint8:0",
        "ndarray:uint8:-1",
        "ndarray:uint8:2,",
        "ndarray:uint8:2:3",
        "ndarray:uint8: 2",
        "ndarray:uint8:999999999,999999999",
        "ndarray:uint8:" + ",".join(["1"] * 64),
    ],
)
def test_names_that_make_no_array_are_refused(name):
    with pytest.raises(FormatError, match="ndarray"):
        parse_encoding(name)

"""Lists of plain bytes; lists of images are in test_images.py."""

from __future__ import annotations

import struct

import pytest

from streamshard.errors import FormatError, SampleError
from streamshard.format.encodings import parse_encoding


def test_bytes_keep_order_count_and_content():
    encoding = parse_encoding("list[bytes]")
    assert encoding.encode([b"ab", b"", bytearray(b"c")]) == struct.pack("<5I", 0, 3, 2, 0, 1) + b"abc"
    for values in ([], [b""], [b"ab", b"", b"c"]):
        payload = encoding.encode(values)
        assert encoding.decode(payload) == encoding.stored(memoryview(payload)) == values


@pytest.mark.parametrize(
    ("value", "words"),
    [(b"ab", "a list of values, found bytes"), (["a"], "value 0 of 1: expected bytes"), (None, "NoneType")],
)
def test_what_is_no_list_of_bytes_is_refused(value, words):
    with pytest.raises(SampleError, match=words):
        parse_encoding("list[bytes]").encode(value)


def test_sizes_beyond_the_value_are_refused():
    with pytest.raises(FormatError, match="1 values end at 17"):
        parse_encoding("list[bytes]").decode(struct.pack("<III", 0, 1, 5) + b"abcd")

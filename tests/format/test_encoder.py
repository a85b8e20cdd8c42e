"""The quick encoder of a schema: the same bytes and the same refusals as the careful one, whatever the columns."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamshard.errors import FormatError, SampleError
from streamshard.format import encodings
from streamshard.format.encoder import compile_encoder
from streamshard.format.encodings import Encoding, parse_encoding, register_encoding

VALUES = {
    "int": st.integers(-(2**63), 2**63 - 1),
    "uint8": st.integers(0, 255),
    "float32": st.floats(width=32, allow_nan=False),
    "float64": st.floats(allow_nan=False),
    "str": st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    "bytes": st.binary(max_size=8) | st.binary(max_size=8).map(bytearray),
    "json": st.lists(st.integers(), max_size=3),
    "str_int": st.integers(),
    "ndarray:int16:2": st.just(np.array([1, -2], np.int16)),
    "ndarray": st.just(np.arange(5)),
}


def laid_out(names, kinds, sample):
    """The format as its definition says it, written out."""
    parts = [parse_encoding(kind).encode(sample[name]) for name, kind in zip(names, kinds, strict=True)]
    sizes = [len(p) for p, kind in zip(parts, kinds, strict=True) if parse_encoding(kind).size is None]
    return struct.pack(f"<{len(sizes)}I", *sizes) + b"".join(parts)


@given(st.data(), st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=7))
def test_any_columns_are_laid_out_as_the_format_says(data, kinds):
    names = [f"it's {number}" for number in range(len(kinds))]
    columns = (names, kinds, [parse_encoding(kind).size for kind in kinds])
    sample = {name: data.draw(VALUES[kind]) for name, kind in zip(names, kinds, strict=True)}
    wanted = laid_out(names, kinds, sample)
    assert compile_encoder(*columns)(sample) == wanted
    assert b"".join(compile_encoder(*columns, joined=False)(sample)) == wanted
    broken = data.draw(st.sampled_from(names))
    for wrong in ({**sample, broken: object()}, {**sample, "more": 1}, {n: sample[n] for n in names[1:]}):
        for compiled in (compile_encoder(*columns), compile_encoder(*columns, joined=False)):
            with pytest.raises(SampleError):
                compiled(wrong)


def test_what_struct_does_not_take_but_an_encoding_does_is_encoded_with_care():
    columns = (["a", "b", "c"], ["int", "str", "uint8"], [8, None, 1])
    sample = {"a": np.bool_(True), "b": "x", "c": np.uint8(3)}
    wanted = struct.pack("<Iq", 1, 1) + b"x\3"
    assert compile_encoder(*columns)(sample) == wanted
    assert b"".join(compile_encoder(*columns, joined=False)(sample)) == wanted


def test_large_values_are_given_on_without_a_copy():
    blob = bytes(1000)
    parts = compile_encoder(["a", "b"], ["int", "bytes"], [8, None], joined=False)({"a": 1, "b": blob})
    assert any(part is blob for part in parts)


def test_an_encoding_that_gives_another_size_than_its_own_is_named(monkeypatch):
    class Odd(Encoding):
        name = "odd"
        size = 3

        def encode(self, value):
            return b"12"

        def decode(self, payload):
            return bytes(payload)

    monkeypatch.setattr(encodings, "_registered", dict(encodings._registered))
    register_encoding("odd", lambda _: Odd())
    with pytest.raises(FormatError, match="column 'a': encoding 'odd' gave 2 bytes, its size is 3"):
        compile_encoder(["a"], ["odd"], [3])({"a": 1})
    parse_encoding.cache_clear()


class _Part:
    def __len__(self) -> int:
        return 1000


def test_given_values_are_parts_as_they_are():
    part = _Part()
    encode = compile_encoder(["a", "b"], ["str", "bytes"], [None, None], joined=False, given={"b"})
    assert encode({"a": "xy", "b": part}) == (struct.pack("<2I", 2, 1000), b"xy", part)
    # What struct does not take at once is encoded with care, around them too.
    encode = compile_encoder(["a", "b"], ["int", "bytes"], [8, None], joined=False, given={"b"})
    assert b"".join(encode({"a": np.bool_(True), "b": b"z"})) == struct.pack("<Iq", 1, 1) + b"z"
    with pytest.raises(SampleError, match="column 'a'"):
        encode({"a": "no number", "b": part})

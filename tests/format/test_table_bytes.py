"""The binary form of an index: what comes back, and what is refused."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from streamshard.errors import FormatError
from streamshard.format.index import FileInfo, Index, ShardInfo
from streamshard.format.schema import Schema
from streamshard.format.table_bytes import pack_table, unpack_table

A = Schema.from_columns({"n": "int", "t": "str"})
B = Schema.from_columns({"x": "float64"})
DIGEST = bytes(range(16))
HEAD = 96


def shard(number: int, **changes: object) -> ShardInfo:
    name = f"shard.{number:05}.mds"
    compressed = None if number % 3 else FileInfo(name + ".é", 7 + number, {"md5": "0" * number})
    fields = {
        "schema": B if number % 5 == 1 else A,
        "compression": None if compressed is None else "zstd",
        "hashes": ("xxh64",),
        "raw": FileInfo(name, 5000 + number, {"xxh64": f"{number:016x}"}),
        "compressed": compressed,
        "num_samples": number,
        "size_limit": 1 << 70,
    }
    return ShardInfo(**{**fields, **changes})  # type: ignore[arg-type]


def index(count: int = 20) -> Index:
    costs = {name: {"shards": [k * n for n in range(count)], "total": k * sum(range(count))} for name, k in
             (("tokens", 3), ("seconds", 5))}  # fmt: skip
    return Index([shard(n) for n in range(count)], {"costs": costs, "images": {"i": {"png": 3}}})


def packed(source: Index) -> bytes:
    return b"".join(pack_table(source, DIGEST))


def unpacked(content: bytes, digest: bytes = DIGEST) -> Index:
    found = unpack_table(memoryview(content), digest)
    return Index.of_table(found.table, found.facts, found.costs)


@pytest.mark.parametrize("count", [0, 1, 20])
def test_what_is_packed_comes_back(count: int) -> None:
    source = index(count)
    found = unpacked(packed(source))
    assert found.shards == source.shards
    assert found.extra == source.extra
    assert found.begins.tolist() == source.begins.tolist()
    assert found.schemas == source.schemas
    assert {name: sums.tolist() for name, sums in found.costs.items()} == {
        name: sums.tolist() for name, sums in source.costs.items()
    }
    assert packed(found) == packed(source)


def test_arrays_are_views_that_nobody_can_change() -> None:
    content = bytearray(packed(index()))
    found = unpack_table(memoryview(content), DIGEST)
    with pytest.raises(ValueError, match="read-only"):
        found.table.begins[0] = 5
    content[HEAD] ^= 1
    assert found.table.num_samples[0] == 1


def test_the_table_of_another_index_is_refused() -> None:
    with pytest.raises(FormatError, match="another index"):
        unpacked(packed(index()), bytes(16))


def test_a_table_cut_anywhere_or_with_more_behind_it_is_refused() -> None:
    content = packed(index())
    for end in range(len(content)):
        with pytest.raises(FormatError):
            unpacked(content[:end])
    with pytest.raises(FormatError):
        unpacked(content + b"\0")


@settings(deadline=None)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_changed_bit_anywhere_is_refused(place: float, bit: int) -> None:
    content = bytearray(packed(index()))
    content[int(place * len(content))] ^= 1 << bit
    with pytest.raises(FormatError):
        unpacked(bytes(content))


def summed(content: bytearray) -> bytes:
    """Set the checksum right, as whoever means harm would."""
    content[32:48] = xxhash.xxh3_128(bytes(content[48:])).digest()
    return bytes(content)


def number(place: int, value: int, kind: str = "<q") -> Callable[[bytearray], None]:
    def change(content: bytearray) -> None:
        struct.pack_into(kind, content, place, value)

    return change


def shifted(begin: int, count: int, by: int, *others: tuple[int, int]) -> Callable[[bytearray], None]:
    """Add a number to some neighbouring words, and set others."""

    def change(content: bytearray) -> None:
        words = np.frombuffer(content, "<i8", count, begin) + by
        content[begin : begin + 8 * count] = words.tobytes()
        for place, value in others:
            struct.pack_into("<q", content, place, value)

    return change


def facts(change: Callable[[dict[str, object]], object]) -> Callable[[bytearray], None]:
    def apply(content: bytearray) -> None:
        (length,) = struct.unpack_from("<Q", content, HEAD - 8)
        document = json.loads(bytes(content[len(content) - length :]))
        changed = change(document)
        tail = changed if isinstance(changed, bytes) else json.dumps(document).encode()
        content[len(content) - length :] = tail
        struct.pack_into("<Q", content, HEAD - 8, len(tail))

    return apply


# Columns of 20 shards, in the order in which they lie.
SAMPLES = HEAD
BEGINS = SAMPLES + 160
RAW = BEGINS + 168
COMPRESSED = RAW + 160
FIRST = COMPRESSED + 160
STRINGS = FIRST + 160
NUM_STRINGS = 20 * 2 + 7 * 2
COSTS = STRINGS + 8 * (NUM_STRINGS + 1)
KIND = COSTS + 320


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(number(48, 3), id="later version"),
        pytest.param(number(56, 21), id="more shards"),
        pytest.param(number(56, 0), id="no shards"),
        pytest.param(number(56, -1), id="2**64 - 1 shards"),
        pytest.param(number(56, 1 << 61), id="shards whose bytes wrap round"),
        pytest.param(number(64, NUM_STRINGS - 1), id="fewer strings"),
        pytest.param(number(72, 1), id="fewer costs"),
        pytest.param(number(80, 3), id="less text"),
        pytest.param(number(88, 3), id="less JSON"),
        pytest.param(number(SAMPLES, -1), id="negative samples"),
        pytest.param(shifted(BEGINS + 8, 20, -2, (SAMPLES, -2)), id="negative samples that fit the begins"),
        pytest.param(shifted(BEGINS, 21, 1), id="begins that are all one further"),
        pytest.param(number(COMPRESSED + 8, -2), id="negative size where there is no file"),
        pytest.param(shifted(STRINGS + 8 * NUM_STRINGS, 1, -1), id="text goes on behind the last string"),
        pytest.param(number(SAMPLES + 8 * 3, 1 << 40), id="more samples than bytes"),
        pytest.param(number(BEGINS, 1), id="does not begin at 0"),
        pytest.param(number(BEGINS + 8, 1), id="begins at another sample"),
        pytest.param(number(BEGINS + 160, 191), id="more samples in all"),
        pytest.param(number(RAW, 1 << 32), id="raw file of 4 GiB"),
        pytest.param(number(RAW + 8, 3), id="raw file of 3 bytes"),
        pytest.param(number(COMPRESSED, -1), id="no compressed file where there is one"),
        pytest.param(number(COMPRESSED, -2), id="negative size"),
        pytest.param(number(COMPRESSED + 8, 5), id="compressed file where there is none"),
        pytest.param(number(FIRST + 8, 0), id="strings of another shard"),
        pytest.param(number(FIRST + 8, 1 << 60), id="strings out of the table"),
        pytest.param(number(STRINGS, 1), id="text begins late"),
        pytest.param(number(STRINGS + 8, -1), id="string begins before the text"),
        pytest.param(number(STRINGS + 8, 1 << 60), id="string begins behind the text"),
        pytest.param(number(STRINGS + 8 * NUM_STRINGS, 5), id="text ends early"),
        pytest.param(number(COSTS + 16, -1), id="negative cost"),
        pytest.param(number(KIND, -1, "<i"), id="negative kind"),
        pytest.param(number(KIND, 4, "<i"), id="kind that is not there"),
        pytest.param(number(KIND, 1, "<i"), id="kind of another shape"),
        pytest.param(facts(lambda document: b"["), id="no JSON"),
        pytest.param(facts(lambda document: b"[" * 100_000), id="deep JSON"),
        pytest.param(facts(lambda document: document.pop("kinds")), id="no kinds"),
        pytest.param(facts(lambda document: document.update(kinds=5)), id="kinds no list"),
        pytest.param(facts(lambda document: document.update(facts=5)), id="facts no object"),
        pytest.param(facts(lambda document: document.update(costs=5)), id="costs no list"),
        pytest.param(facts(lambda document: document.update(costs=["tokens", 5])), id="name no string"),
        pytest.param(facts(lambda document: document.update(costs=["tokens", "tokens"])), id="name twice"),
        pytest.param(facts(lambda document: document.update(kinds=[5])), id="kind no object"),
        pytest.param(facts(lambda document: document["kinds"].pop()), id="a kind less"),  # type: ignore[attr-defined]
        pytest.param(
            facts(lambda document: document["kinds"][0].update(column_sizes=[4, 4])),  # type: ignore[index]
            id="kind with wrong columns",
        ),
        pytest.param(
            facts(lambda document: document.update(sample_hashes="md5")), id="digests that are not there"
        ),
        pytest.param(facts(lambda document: document.update(sample_hashes="sha0")), id="unknown hash"),
        pytest.param(facts(lambda document: document.update(sample_hashes=5)), id="hash no string"),
    ],
)
def test_a_malformed_table_with_a_right_checksum_is_refused(damage: Callable[[bytearray], None]) -> None:
    content = bytearray(packed(index()))
    assert summed(content) == packed(index())
    damage(content)
    with pytest.raises(FormatError):
        unpacked(summed(content))


def test_a_name_that_leads_out_of_the_directory_is_refused_when_it_is_used() -> None:
    content = bytearray(packed(index()))
    place = content.index(b"shard.00003.mds")
    content[place : place + 15] = b"../../../../etc"
    found = unpacked(summed(content))
    assert found.shards[2].raw.basename == "shard.00002.mds"
    with pytest.raises(FormatError, match=r"'\.\./\.\./\.\./\.\./etc' outside"):
        found.shards[3]
    content[place] = 0xFF
    with pytest.raises(FormatError, match="UTF-8"):
        unpacked(summed(content)).shards[3]


def test_entries_are_a_sequence_like_any_other() -> None:
    shards = index().shards
    wanted = [shard(n) for n in range(20)]
    assert shards == wanted
    assert shards == tuple(wanted)
    assert shards != wanted[:-1]
    assert shards != [*wanted[:-1], wanted[0]]
    assert shards != 5
    assert shards[-1] == wanted[-1]
    assert shards[np.int64(3)] == wanted[3]
    assert shards[3:7:2] == tuple(wanted[3:7:2])
    assert list(reversed(shards)) == wanted[::-1]
    assert wanted[4] in shards
    for beyond in (20, -21):
        with pytest.raises(IndexError):
            shards[beyond]

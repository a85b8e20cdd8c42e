"""Shard files: layout, the rule of the cut, and every way a header can lie."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamshard.errors import FormatError, ShardTooLargeError
from streamshard.format import shard
from streamshard.format.index import FileInfo, ShardInfo
from streamshard.format.schema import Schema
from streamshard.format.shard import (
    MAX_SHARD_NBYTES,
    ShardCutter,
    config_text,
    pack_shard,
    packed_size,
    parse_header,
)

SCHEMA = Schema.from_columns({"n": "int", "t": "str"})
CONFIG = config_text(SCHEMA, compression=None, hashes=(), size_limit=None)


def shard_of(count):
    samples = [SCHEMA.encode_sample({"n": i, "t": "x" * i}) for i in range(count)]
    content = b"".join(pack_shard(samples, CONFIG))
    info = ShardInfo(SCHEMA, None, (), FileInfo("shard.00000.mds", len(content), {}), None, count, None)
    return content, info, samples


def header_of(content, info=None):
    return parse_header(lambda a, b: content[a:b], len(content), shard="shard.00007.mds", expected=info)


def test_the_config_is_the_text_that_mosaicml_writes():
    text = config_text(SCHEMA, compression="zstd:3", hashes=("sha1",), size_limit=1 << 26)
    assert text == (
        b'{"column_encodings": ["int", "str"], "column_names": ["n", "t"], "column_sizes": [8, null], '
        b'"compression": "zstd:3", "format": "mds", "hashes": ["sha1"], "size_limit": 67108864, "version": 2}'
    )


@pytest.mark.parametrize("count", [0, 1, 2, 50])
def test_a_shard_is_count_offsets_config_samples(count):
    content, info, samples = shard_of(count)
    assert len(content) == packed_size(count, sum(map(len, samples)), CONFIG) == info.raw.nbytes
    header = header_of(content, info)
    assert header.num_samples == count
    assert header.config == json.loads(CONFIG)
    assert int(header.offsets[0]) == 8 + 4 * count + len(CONFIG)
    found = [content[a:b] for a, b in zip(header.offsets[:-1], header.offsets[1:], strict=True)]
    assert found == samples


class _Sized(bytes):
    """Bytes that claim a length; nothing is allocated for it."""

    claimed = 0

    def __len__(self):
        return self.claimed


def sized(nbytes):
    sample = _Sized()
    sample.claimed = nbytes
    return sample


def test_b064_a_shard_whose_real_size_passes_4_gib_is_refused_to_the_byte():
    room = MAX_SHARD_NBYTES - packed_size(2, 0, CONFIG)
    pack_shard([sized(room - 5), sized(5)], CONFIG)
    with pytest.raises(ShardTooLargeError, match=r"would take 4294967296 bytes.*smaller size_limit"):
        pack_shard([sized(room - 5), sized(6)], CONFIG)


def cut(sizes, **options):
    cutter = ShardCutter(100, **options)
    shards = []
    for size in sizes:
        if not cutter.fits(size):
            shards.append(cutter.num_samples)
            cutter.reset()
        cutter.add(size)
    return [*shards, cutter.num_samples]


@given(st.lists(st.lists(st.integers(0, 300))), st.integers(1, 900), st.one_of(st.none(), st.integers(1, 5)))
def test_many_samples_are_cut_as_one_by_one(blocks, limit, most):
    cutter = ShardCutter(100, size_limit=limit, samples_per_shard=most)
    cuts, place = [], 0
    for block in blocks:
        cuts += [place + at for at in cutter.add_all(np.array(block, np.int64))]
        place += len(block)
    shards = [end - begin for begin, end in pairwise([0, *cuts, place])]
    assert shards == cut(
        [size for block in blocks for size in block], size_limit=limit, samples_per_shard=most
    )
    assert cutter.num_samples == shards[-1]
    with pytest.raises(ShardTooLargeError):
        cutter.add_all(np.array([1, MAX_SHARD_NBYTES], np.int64))


def test_a_shard_is_cut_before_the_sample_that_would_pass_the_limit():
    assert cut([10] * 5, size_limit=108 + 28) == [2, 2, 1]
    assert cut([10] * 5, size_limit=108 + 27) == [1, 1, 1, 1, 1]


def test_s8_a_sample_larger_than_the_limit_gets_a_shard_of_its_own_and_none_is_empty():
    assert cut([500, 1, 500, 500], size_limit=120) == [1, 1, 1, 1]


@given(st.lists(st.integers(0, 300), min_size=1), st.integers(1, 900))
def test_the_rule_is_mosaicmls_except_for_its_empty_shards(sizes, limit):
    shards, count, estimate = [], 0, 108
    for size in sizes:  # the rule as the study states it, written out
        if limit < estimate + size + 4:
            shards.append(count)
            count, estimate = 0, 108
        count, estimate = count + 1, estimate + size + 4
    assert cut(sizes, size_limit=limit) == [n for n in [*shards, count] if n]


def test_b082_samples_per_shard_cuts_too():
    assert cut([10] * 1050, size_limit=None, samples_per_shard=100) == [100] * 10 + [50]


def test_b064_without_a_limit_the_cut_comes_before_4_gib():
    gib = 1 << 30
    assert cut([gib] * 9, size_limit=None) == [3, 3, 3]
    assert cut([2**31] * 2, size_limit=None) == [1, 1]


def test_a_sample_that_no_shard_can_hold_is_refused_and_the_largest_is_taken():
    cutter = ShardCutter(100, size_limit=None)
    largest = MAX_SHARD_NBYTES - 108 - 4
    assert cutter.fits(largest)
    cutter.add(largest)
    assert cutter.nbytes == MAX_SHARD_NBYTES
    with pytest.raises(ShardTooLargeError, match=f"{largest + 1} bytes.*below {largest + 1} bytes"):
        cutter.fits(largest + 1)


def put(at, value):
    def damage(content):
        struct.pack_into("<I", content, at, value)

    return damage


CONTENT, INFO, _ = shard_of(5)
FIRST, LAST = 4, 4 + 4 * 5


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda c: c.pop(), "the last sample is said to end at .*, the file has"),
        (lambda c: c.append(0), "the last sample is said to end at"),
        (lambda c: c.__delitem__(slice(6, None)), "6 bytes, a shard has at least 8"),
        (lambda c: c.__delitem__(slice(20, None)), "5 samples need 28 bytes of header, the file has 20"),
        (put(0, 6), "the last sample is said to end at 1868767867"),
        (put(0, 2**32 - 1), "4294967295 samples need 17179869188 bytes"),
        (put(FIRST, 27), "said to begin at 27, behind a header of 28"),
        (put(FIRST, 2**32 - 1), "said to begin at 4294967295"),
        (put(FIRST, 200), "sample 0 is said to end|is not JSON"),
        (put(8, 0), "sample 0 is said to end at 0, before it begins"),
        (put(16, 2**32 - 1), "sample 3 is said to end"),
        (put(LAST, 3), "the last sample is said to end at 3"),
        (lambda c: c.__setitem__(28, 0), "is not JSON"),
        (lambda c: c.__setitem__(28, 0xFF), "is not JSON"),
    ],
)
def test_b068_a_header_that_lies_is_named(damage, words):
    memory = bytearray(CONTENT)
    damage(memory)
    with pytest.raises(FormatError, match=f"shard 'shard.00007.mds': .*({words})"):
        header_of(bytes(memory))


def test_b068_index_and_shard_must_agree():
    for info, words in [
        (
            replace(INFO, raw=replace(INFO.raw, nbytes=len(CONTENT) + 1)),
            f"index says {len(CONTENT) + 1} bytes, the file has {len(CONTENT)}",
        ),
        (replace(INFO, num_samples=6), "the index says 6 samples, the file has 5"),
        (
            replace(INFO, schema=Schema.from_columns({"n": "int", "u": "str"})),
            "column_names are .* in the file",
        ),
        (replace(INFO, schema=Schema.from_columns({"n": "int", "t": "bytes"})), "column_encodings are"),
    ]:
        with pytest.raises(FormatError, match=words):
            header_of(CONTENT, info)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (b"[]", "its config is a list"),
        (b"{}", "format None version None"),
        (b'{"format": "csv", "version": 2}', "format 'csv'"),
        (b'{"format": "mds", "version": 3}', "version 3"),
        (b"[" * 100_000, "is not JSON"),
        (b"", "is not JSON"),
    ],
)
def test_a_config_that_is_not_mds_version_2_is_refused(config, words):
    with pytest.raises(FormatError, match=words):
        header_of(b"".join(pack_shard([b"x"], config)))


def test_a_config_that_was_good_for_one_index_is_refused_for_another():
    other = replace(INFO, schema=Schema.from_columns({"n": "int", "t": "bytes"}))
    assert header_of(CONTENT, INFO).config == header_of(CONTENT, INFO).config == json.loads(CONFIG)
    with pytest.raises(FormatError, match="column_encodings are"):
        header_of(CONTENT, other)
    assert header_of(CONTENT, INFO).config == json.loads(CONFIG)


def test_a_config_that_a_caller_changes_is_not_the_one_that_is_remembered():
    header_of(CONTENT, INFO).config.clear()
    header_of(CONTENT, INFO).config.clear()
    assert header_of(CONTENT, INFO).config == json.loads(CONFIG)


def test_only_the_last_configs_are_remembered():
    for number in range(shard._MOST_REMEMBERED + 9):
        config = json.dumps({**json.loads(CONFIG), "size_limit": number}).encode()
        content = b"".join(pack_shard([b"x"], config))
        info = replace(INFO, num_samples=1, raw=FileInfo("a", len(content), {}))
        assert header_of(content, info).config["size_limit"] == number
    assert len(shard._GOOD_CONFIGS) == shard._MOST_REMEMBERED


def test_a_config_beyond_all_reason_is_not_read():
    head = struct.pack("<III", 1, 2**25, 2**25)
    reads = []

    def read(begin, end):
        reads.append(end - begin)
        return head[begin:end]

    with pytest.raises(FormatError, match="at most 16777216 are read"):
        parse_header(read, 2**25, shard="a", expected=None)
    assert sum(reads) <= 12


def test_s9_a_reader_that_gives_less_than_was_asked_is_an_error():
    with pytest.raises(FormatError, match="shard 'a': 4 bytes wanted at 0, 3 found: it is cut short"):
        parse_header(lambda a, b: CONTENT[a : b - 1], len(CONTENT), shard="a", expected=None)


@given(st.integers(0, len(CONTENT) - 1), st.integers(0, 255))
def test_any_single_byte_changed_gives_a_header_within_the_file_or_a_format_error(at, value):
    memory = bytearray(CONTENT)
    memory[at] = value
    try:
        header = header_of(bytes(memory), INFO)
    except FormatError:
        return
    offsets = header.offsets.astype(np.int64)
    assert (np.diff(offsets) >= 0).all()
    assert offsets[-1] == len(CONTENT)

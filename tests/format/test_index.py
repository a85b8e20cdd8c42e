"""index.json: the text, the checks, and finding samples."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

from streamshard.errors import FormatError
from streamshard.format.index import FileInfo, Index, ShardInfo, index_text, is_safe_path, parse_index
from streamshard.format.schema import Schema
from streamshard.format.shard_table import Kind
from streamshard.format.table_builder import TableBuilder

SCHEMA = Schema.from_columns({"n": "int", "t": "str"})


def shard(place=0, count=3, **changes):
    raw = FileInfo(f"shard.{place:05}.mds", 1000, {"xxh64": "0123456789abcdef"})
    fields = {
        "schema": SCHEMA, "compression": None, "hashes": ("xxh64",), "raw": raw, "compressed": None,
        "num_samples": count, "size_limit": 1 << 26,
    }  # fmt: skip
    return ShardInfo(**{**fields, **changes})


def test_the_text_is_the_one_that_mosaicml_writes():
    compressed = FileInfo("shard.00000.mds.zstd", 500, {})
    assert index_text([shard(compression="zstd", compressed=compressed)]) == (
        b'{"shards": [{"column_encodings": ["int", "str"], "column_names": ["n", "t"], "column_sizes": [8, null], '
        b'"compression": "zstd", "format": "mds", "hashes": ["xxh64"], "raw_data": {"basename": "shard.00000.mds", '
        b'"bytes": 1000, "hashes": {"xxh64": "0123456789abcdef"}}, "samples": 3, "size_limit": 67108864, '
        b'"version": 2, "zip_data": {"basename": "shard.00000.mds.zstd", "bytes": 500, "hashes": {}}}], "version": 2}'
    )


def test_our_own_facts_stand_under_one_more_key():
    text = index_text([shard()], {"images": {"i": {"png": 3}}})
    assert json.loads(text)["streamshard"] == {"images": {"i": {"png": 3}}}
    assert set(json.loads(text)) == {"shards", "streamshard", "version"}
    assert parse_index(text, source="x").extra == {"images": {"i": {"png": 3}}}
    assert b"streamshard" not in index_text([shard()], {})


def test_what_is_written_parses_to_the_same():
    other = Schema.from_columns({"a": "ndarray:uint8:2,3", "é": "json"})
    shards = (
        shard(),
        shard(1, 0),
        shard(2, 5, schema=other, hashes=(), size_limit=None),
        shard(3, compression="br:5", compressed=FileInfo("a/b/shard.00003.mds.br", 7, {})),
    )
    index = parse_index(index_text(shards), source="x")
    assert index.shards == shards
    assert index.num_samples == 11
    assert index.shards[0].schema is index.shards[1].schema
    assert index.shards[3].stored.basename == "a/b/shard.00003.mds.br"


def test_keys_that_mds_does_not_know_are_passed_over():
    document = json.loads(index_text([shard()]))
    document["shards"][0]["later"] = 1
    document["also"] = 2
    assert parse_index(json.dumps(document).encode(), source="x").shards == (shard(),)


def test_an_index_without_shards_is_an_empty_dataset():
    index = parse_index(b'{"shards": [], "version": 2}', source="x")
    assert (index.num_samples, index.num_shards) == (0, 0)
    assert index.locate(np.zeros(0, np.int64))[0].size == 0


def change(path, value):
    def apply(document):
        *inner, last = path
        for key in inner:
            document = document[key]
        if value is KeyError:
            del document[last]
        else:
            document[last] = value

    return apply


S = ("shards", 0)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (change(("version",), 1), "version 1, expected 2"),
        (change(("version",), KeyError), "version None"),
        (change(("shards",), {}), "expected an object with a list 'shards'"),
        (change(("shards", 0), 5), "shard 0: 5 is not an object"),
        (change(("streamshard",), 5), "'streamshard' is a int"),
        (change((*S, "format"), "json"), "format 'json' version 2"),
        (change((*S, "version"), "2"), "version '2'"),
        (change((*S, "samples"), -1), "samples is -1, expected a count"),
        (change((*S, "samples"), True), "samples is True"),
        (change((*S, "samples"), 1.0), "samples is 1.0"),
        (change((*S, "samples"), KeyError), "samples is None"),
        (change((*S, "samples"), 10**9), "1000 bytes for 1000000000 samples"),
        (change((*S, "samples"), 10**30), "samples"),
        (change((*S, "raw_data"), None), "raw_data is None"),
        (change((*S, "raw_data", "bytes"), 2**32), "raw_data has 4294967296 bytes"),
        (change((*S, "raw_data", "bytes"), 3), "raw_data has 3 bytes"),
        (change((*S, "raw_data", "hashes"), []), "raw_data.hashes is"),
        (change((*S, "raw_data", "hashes"), {"a": 1}), "raw_data.hashes is"),
        (change((*S, "zip_data"), 5), "zip_data is 5"),
        (change((*S, "zip_data"), {"basename": "a", "bytes": 3, "hashes": {}}), "although zip_data is given"),
        (change((*S, "compression"), "lz4"), "compression='lz4'"),
        (change((*S, "compression"), "zstd:99"), "compression='zstd:99'"),
        (change((*S, "compression"), 3), "compression=3"),
        (change((*S, "hashes"), "sha1"), "hashes is 'sha1'"),
        (change((*S, "size_limit"), [1]), "size_limit is"),
        (change((*S, "column_names"), ["n"]), "1 column names, 2 encodings"),
        (change((*S, "column_names"), ["n", "n"]), "occurs twice"),
        (change((*S, "column_names"), ["n", 5]), "column_names is"),
        (change((*S, "column_encodings"), None), "column_encodings is None"),
        (change((*S, "column_sizes"), [4, None]), "column 'n': encoding 'int' has size 8, found 4"),
        (change((*S, "column_sizes"), [8, 0]), "column 't' has size 0"),
        (change((*S, "column_sizes"), [8, True]), "column_sizes is"),
        (change((*S, "column_sizes"), [8, 2**40]), "column 't' has size"),
        (
            change((*S, "raw_data", "basename"), "shard.00001.mds"),
            "two shards have the file 'shard.00001.mds'",
        ),
    ],
)
def test_b068_an_index_that_is_not_one_is_named_with_the_place(damage, words):
    document = json.loads(index_text([shard(), shard(1)]))
    damage(document)
    with pytest.raises(FormatError, match=f"^s3://b/index.json: .*{words}"):
        parse_index(json.dumps(document).encode(), source="s3://b/index.json")


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[" * 100_000, b"\xff\xfe", b'{"shards": [', b"null", b"<html>"]
)
def test_b069_text_that_is_no_index_is_named(text):
    with pytest.raises(FormatError, match=r"^here: (not JSON|expected an object)"):
        parse_index(text, source="here")


@pytest.mark.parametrize(
    "path", ["../a", "a/../b", "/a", "a//b", "", ".", "a/.", "a\\b", "C:/a", "c:a", "a\0b", "..", "a/"]
)
def test_a_basename_that_could_leave_the_directory_is_refused(path):
    assert not is_safe_path(path)
    document = json.loads(index_text([shard()]))
    document["shards"][0]["raw_data"]["basename"] = path
    with pytest.raises(FormatError, match=r"raw_data.basename"):
        parse_index(json.dumps(document).encode(), source="x")


@pytest.mark.parametrize("path", ["a", "a/b/c", "...", "a..b", ".hidden", "a b+c=%2e", "2024-01-01T00:00/x"])
def test_b042_plain_paths_of_any_characters_are_taken(path):
    assert is_safe_path(path)


def test_sample_ids_are_located_over_empty_shards():
    index = Index([shard(i, n) for i, n in enumerate([0, 3, 0, 0, 2, 0])])
    shards, rows = index.locate(np.arange(5))
    assert shards.tolist() == [1, 1, 1, 4, 4]
    assert rows.tolist() == [0, 1, 2, 0, 1]
    for bad in (-1, 5):
        with pytest.raises(IndexError, match="of a dataset of 5 samples"):
            index.locate(np.array([0, bad]))


def test_samples_of_1e12_are_located_exactly():
    """Golden values; the shards' sizes follow a rule, so that each can be checked by a sum of whole numbers."""
    number = np.arange(1_000_000)
    sizes = 1_000_000 + (number % 7 - 3) * 11
    builder = TableBuilder()
    builder.add_alike(
        Kind(SCHEMA, None, (), None, (), None),
        sizes.tolist(),
        (8 + 12 * sizes).tolist(),
        None,
        [f"{i:06}" for i in number.tolist()],
    )
    index = Index.of_table(builder.table())
    assert index.num_samples == 999_999_999_967  # of the last, broken seven only the first is there: -33
    ids = np.array([0, 999_966, 999_967, 10**11, 2**39, 987_654_321_987, 999_999_999_966])
    shards, rows = index.locate(ids)
    assert shards.tolist() == [0, 0, 1, 100_000, 549_755, 987_654, 999_999]
    assert rows.tolist() == [0, 999_966, 0, 55, 813_954, 322_053, 999_966]
    for shard_id, row, sample in zip(shards.tolist(), rows.tolist(), ids.tolist(), strict=True):
        whole, rest = divmod(shard_id, 7)
        before = whole * 7_000_000 + sum(1_000_000 + (n - 3) * 11 for n in range(rest))
        assert before + row == sample
    assert index.shards[987_654].raw == FileInfo("987654", 8 + 12 * int(sizes[987_654]), {})
    with pytest.raises(IndexError, match="of a dataset of 999999999967 samples"):
        index.locate(np.array([999_999_999_967]))


@pytest.mark.slow
def test_an_index_of_100_000_shards_parses_in_seconds():
    text = index_text([shard(i) for i in range(100_000)])
    begin = time.perf_counter()
    assert parse_index(text, source="x").num_shards == 100_000
    assert time.perf_counter() - begin < 20

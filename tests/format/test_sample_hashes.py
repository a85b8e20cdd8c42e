"""What an index says of the hashes of its samples: parsed, refused, kept in every form of the index."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest

from streamshard.errors import FormatError
from streamshard.format.hashing import hash_bytes, known_hashes
from streamshard.format.index import FileInfo, Index, ShardInfo, index_text, parse_index, side_basenames
from streamshard.format.sample_hashes import digest_nbytes, side_bytes
from streamshard.format.schema import Schema
from streamshard.format.table_bytes import pack_table, unpack_table

SCHEMA = Schema.from_columns({"n": "int"})
DIGESTS = ["00ff00ff00ff00ff", "0123456789abcdef", "ffffffffffffffff"]


def shards(count: int = 3) -> list[ShardInfo]:
    return [
        ShardInfo(SCHEMA, None, (), FileInfo(f"s{number}.mds", 900, {}), None, 5, None)
        for number in range(count)
    ]


def text(entry: object) -> bytes:
    return index_text(shards(), {"sample_hashes": entry, "other": 7})


def good() -> Index:
    return parse_index(text({"algorithm": "xxh64", "digests": DIGESTS}), source="x")


def test_digests_are_kept_beside_the_table_and_come_back() -> None:
    index = good()
    assert index.sample_hashes is not None
    assert index.sample_hashes.digests.shape == (3, 8)
    assert [index.sample_hashes.side_file(shard) for shard in range(3)] == DIGESTS
    assert index.facts == {"other": 7}
    assert index.extra == {"other": 7, "sample_hashes": {"algorithm": "xxh64", "digests": DIGESTS}}
    assert list(side_basenames(index)) == ["s0.mds.samples", "s1.mds.samples", "s2.mds.samples"]
    assert pickle.loads(pickle.dumps(index)).extra == index.extra
    assert index_text(index.shards, index.extra) == text({"algorithm": "xxh64", "digests": DIGESTS})


def test_the_binary_form_keeps_them() -> None:
    digest = bytes(16)
    found = unpack_table(memoryview(b"".join(pack_table(good(), digest))), digest)
    assert found.facts == {"other": 7}
    assert found.sample_hashes is not None
    assert found.sample_hashes.entry() == {"algorithm": "xxh64", "digests": DIGESTS}
    plain = Index(shards(), {})
    assert unpack_table(memoryview(b"".join(pack_table(plain, digest))), digest).sample_hashes is None


def test_an_index_without_them_says_so() -> None:
    assert Index(shards(), {}).sample_hashes is None
    assert list(side_basenames(Index(shards(), {}))) == []


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ([], "list, expected an object"),
        ({}, "None"),
        ({"algorithm": "sha0", "digests": DIGESTS}, "sha0"),
        ({"algorithm": ["xxh64"], "digests": DIGESTS}, "xxh64"),
        ({"algorithm": "xxh64"}, "NoneType for 3 shards"),
        ({"algorithm": "xxh64", "digests": DIGESTS[:2]}, "2 digests for 3 shards"),
        ({"algorithm": "md5", "digests": DIGESTS}, "shard 0 is .* 32 hex digits"),
        ({"algorithm": "xxh64", "digests": [*DIGESTS[:2], 5]}, "shard 2 is 5"),
        ({"algorithm": "xxh64", "digests": [*DIGESTS[:2], "0123456789abcdeg"]}, "shard 2"),
        ({"algorithm": "xxh64", "digests": [*DIGESTS[:2], "01234567 89abcde"]}, "shard 2"),
        ({"algorithm": "xxh64", "digests": [*DIGESTS[:2], "0123456789abcde٣"]}, "shard 2"),
    ],
)
def test_other_things_are_refused_by_name(entry: object, words: str) -> None:
    with pytest.raises(FormatError, match=words) as caught:
        parse_index(text(entry), source="the.json")
    assert str(caught.value).startswith("the.json: ")


@pytest.mark.parametrize("algorithm", known_hashes())
def test_a_side_file_is_the_digests_one_after_another(algorithm: str) -> None:
    samples = [b"one", b"", b"three" * 100]
    nbytes = digest_nbytes(algorithm)
    content = side_bytes(algorithm, [memoryview(sample) for sample in samples])
    assert len(content) == 3 * nbytes
    pieces = np.frombuffer(content, np.uint8).reshape(3, nbytes)
    assert [bytes(piece).hex() for piece in pieces] == [hash_bytes(algorithm, sample) for sample in samples]


def test_the_name_of_the_key_is_that_of_the_page() -> None:
    document = json.loads(text({"algorithm": "xxh64", "digests": DIGESTS}))
    assert set(document["streamshard"]) == {"sample_hashes", "other"}

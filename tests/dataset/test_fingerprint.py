"""Fingerprints are in saved states: they must stay what they always were."""

from __future__ import annotations

import hashlib

import pytest

from streamshard.dataset import fingerprint
from streamshard.dataset.fingerprint import Fingerprints, fingerprints
from streamshard.format.index import FileInfo, Index, ShardInfo, index_text, parse_index
from streamshard.format.schema import Schema

A = Schema.from_columns({"n": "int", "t": "str"})
B = Schema.from_columns({"x": "float64"})


def shard(
    number: int,
    num_samples: int,
    hashes: dict[str, str],
    schema: Schema = A,
    compression: str | None = None,
    folder: str = "",
) -> ShardInfo:
    name = f"{folder}shard.{number:05}.mds"
    raw = FileInfo(name, 1000 + 8 * num_samples + number, hashes)
    compressed = None if compression is None else FileInfo(f"{name}.zstd", 7 + number, {"md5": "0"})
    limit = None if number % 2 else 1 << 26
    return ShardInfo(schema, compression, tuple(hashes), raw, compressed, num_samples, limit)


def both(number: int) -> dict[str, str]:
    """The same two hashes, in one order or the other."""
    values = [("md5", f"{number:032x}"), ("xxh64", f"{number:016x}")]
    return dict(values if number % 2 else values[::-1])


CASES = {
    "empty": [],
    "one": [shard(0, 3, {"xxh64": "0123456789abcdef"})],
    "upper": [shard(i, i, {"xxh64": f"{i * 7919:016X}"}) for i in range(50)],
    "none": [shard(i, i, {}) for i in range(5)],
    "partly": [
        shard(i, i, {"sha1": "a" * 40} if i % 3 else {"sha1": "b" * 40, "xxh64": "c" * 16}) for i in range(9)
    ],
    "uneven": [shard(i, i, {"x": "é" * i + "İ" + "A" * i}) for i in range(9)],
    "surrogate": [shard(i, i, {"x": "\ud800é"}) for i in range(3)],
    "mixed": [shard(i, 1000 - i, both(i), A if i % 5 else B, None if i % 7 else "zstd") for i in range(300)],
    "long": [shard(i, i % 9, {"xxh64": f"{i:016x}"}) for i in range(70_000)],
}
# Computed when an index was still a list of objects, hashed shard by shard.
GOLDEN = {
    "empty": {
        "layout": "cae66941d9efbd404e4d88758ea67670",
    },
    "one": {
        "layout": "d53eec8e7e6e6df2747cf9f5bb9ad5b1",
        "xxh64": "b01084209f8271f6e1f668713ffa2bd5",
    },
    "upper": {
        "layout": "44a4f23a2e88476bc4cdcd74c18fbb37",
        "xxh64": "ab7ef49e2dda9290ae7f19ab3b2ce07f",
    },
    "none": {
        "layout": "e1d73622d2591b1514c4195a48d33dd2",
    },
    "partly": {
        "layout": "9255da273bbb3b86df8340a7777a28b7",
        "sha1": "00b96f4bba99551e3ca4bff6321e2291",
    },
    "uneven": {
        "layout": "9255da273bbb3b86df8340a7777a28b7",
        "x": "233d0b63c82decffc164516cbc5aec48",
    },
    "surrogate": {
        "layout": "7f80bf4e672fece871f17f9e3ddc1c2e",
        "x": "9cfb3f1f784d36828cffc45e966553e0",
    },
    "mixed": {
        "layout": "ded64191aef8784ccd4bae89f63c9e30",
        "md5": "fc16fa454975c3adad3200e225f49d2d",
        "xxh64": "97d99655efbeebd6637f5204ee41c4eb",
    },
    "long": {
        "layout": "a72288681668ced39482bb2388ff84d2",
        "xxh64": "d47c064b7cd2ab02d720a17e8cfcd5a7",
    },
}


@pytest.mark.parametrize("case", CASES)
def test_fingerprints_are_what_they_always_were(case: str) -> None:
    assert fingerprints(parse_index(index_text(CASES[case]), source="x")) == GOLDEN[case]


def test_the_golden_values_are_those_of_the_definition() -> None:
    shards = CASES["mixed"]
    sizes = b"".join(
        number.to_bytes(8, "little") for each in shards for number in (each.num_samples, each.raw.nbytes)
    )
    texts = {"layout": sizes}
    for name in ("md5", "xxh64"):
        texts[name] = "".join(each.raw.hashes[name].lower() for each in shards).encode()
    assert GOLDEN["mixed"] == {
        name: hashlib.blake2b(text, digest_size=16).hexdigest() for name, text in texts.items()
    }


def test_names_compression_and_columns_do_not_matter_and_data_does() -> None:
    def of(*args: object, **options: object) -> dict[str, str]:
        return fingerprints(Index([shard(3, 5, *args, **options)]))  # type: ignore[arg-type]

    plain = of({"xxh64": "0a"})
    assert plain == of({"xxh64": "0A"}, B, "zstd", folder="elsewhere/")
    assert plain["layout"] == of({})["layout"]
    assert plain["xxh64"] != of({"xxh64": "0b"})["xxh64"]


def test_hashes_in_any_order_and_of_any_length_are_joined() -> None:
    assert fingerprints(Index(CASES["mixed"])) == GOLDEN["mixed"]  # not sorted by a writer on their way
    values = ["b", "", "AAA", "cc"]
    found = fingerprints(Index([shard(i, i, {"x": value}) for i, value in enumerate(values)]))
    assert found["x"] == hashlib.blake2b(b"baaacc", digest_size=16).hexdigest()


def test_those_of_many_indexes_are_made_when_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    indexes = [Index(shards) for shards in CASES.values()]
    made: list[Index] = []
    monkeypatch.setattr(fingerprint, "fingerprints", lambda index: made.append(index) or fingerprints(index))
    every = Fingerprints(indexes)
    assert len(every) == len(indexes)
    assert made == []
    assert every[-1] == every[len(indexes) - 1] == fingerprints(indexes[-1])
    assert made == indexes[-1:]
    assert list(every) == every[:] == [fingerprints(index) for index in indexes]
    assert len(made) == len(indexes)
    with pytest.raises(IndexError):
        every[len(indexes)]

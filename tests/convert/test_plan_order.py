"""The order of records and the borders of shards."""

from __future__ import annotations

import itertools
import json
import os
import resource
from pathlib import Path

import numpy as np
import pytest

from streamshard import LocalDataset, MDSWriter
from streamshard.convert import random_order
from streamshard.convert.option_texts import parse_size_limit
from streamshard.convert.options import ConvertOptions
from streamshard.convert.random_order import permutation_in_parts, ranked
from tests.convert.test_tar_inputs import write_tar
from tests.support.jsonl_inputs import converted, files_of, run, shards_of, write_lines
from tests.support.small_datasets import write_dataset


def test_b082_a_number_of_samples_per_shard_can_be_asked_for(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{"id": number} for number in range(1050)])
    summary = run(source, tmp_path / "A", samples_per_shard=100)
    index = json.loads((tmp_path / "A" / "index.json").read_bytes())
    assert summary.shards == 11
    assert [shard["samples"] for shard in index["shards"]] == [100] * 10 + [50]


@pytest.mark.parametrize("compression", [None, "zstd:3", "gz"])
@pytest.mark.parametrize("limit", [2500, 12000, None])
def test_shards_are_those_that_the_writer_makes(
    tmp_path: Path, limit: int | None, compression: str | None
) -> None:
    rows = [{"id": number, "t": "x" * (number * 7 % 200)} for number in range(300)]
    run(write_lines(tmp_path / "a.jsonl", rows), tmp_path / "A", size_limit=limit, compression=compression)
    columns = {"id": "int", "t": "str"}
    with MDSWriter(
        out=str(tmp_path / "B"), columns=columns, size_limit=limit, compression=compression, hashes=["xxh64"]
    ) as writer:
        for row in rows:
            writer.write(row)
    assert shards_of(tmp_path / "A") == shards_of(tmp_path / "B")
    ours, theirs = (json.loads((tmp_path / name / "index.json").read_bytes()) for name in "AB")
    assert ours["shards"] == theirs["shards"]


def test_hashes_are_a_choice(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{"id": 1}])
    for hashes in ((), ("sha1", "xxh3_64")):
        run(source, tmp_path / "A", hashes=hashes, overwrite=True)
        (shard,) = json.loads((tmp_path / "A" / "index.json").read_bytes())["shards"]
        assert shard["hashes"] == list(hashes)
        assert sorted(shard["raw_data"]["hashes"]) == sorted(hashes)


@pytest.mark.parametrize("kind", ["jsonl", "tar", "mds"])
def test_more_sources_than_files_that_may_be_open_are_shuffled(tmp_path: Path, kind: str) -> None:
    sources = tmp_path / "sources"
    sources.mkdir()
    for number in range(100):
        if kind == "jsonl":
            write_lines(sources / f"{number:03}.jsonl", [{"id": f"{number}"}, {"id": f"{number} again"}])
        elif kind == "tar":
            write_tar(
                sources / f"{number:03}.tar", [("a.txt", b"%d" % number), ("b.txt", b"%d again" % number)]
            )
    if kind == "mds":
        samples = [{"id": f"{number}{end}"} for number in range(100) for end in ("", " again")]
        write_dataset(sources, samples, {"id": "str"}, samples_per_shard=2)
    most, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 60, hard))
    try:
        found = converted(str(sources), tmp_path / "A", shuffle=1, workers=1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    column = "txt" if kind == "tar" else "id"
    wanted = {f"{number}{end}" for number in range(100) for end in ("", " again")}
    assert {sample[column] for sample in found} == wanted


def test_a_shuffle_is_one_permutation_of_all_records(tmp_path: Path) -> None:
    first = write_lines(tmp_path / "a.jsonl", [{"id": number} for number in range(500)])
    second = write_lines(tmp_path / "b.jsonl", [{"id": number} for number in range(500, 1000)])
    ids = [sample["id"] for sample in converted([first, second], tmp_path / "A", shuffle=0, size_limit=1024)]
    assert sorted(ids) == list(range(1000))
    # Both files are all over the output.
    assert 80 < sum(number < 500 for number in ids[:250]) < 170
    assert ids == numbers(1000, 0)
    again = [
        sample["id"] for sample in converted([first, second], tmp_path / "B", shuffle=1, size_limit=1024)
    ]
    assert again != ids


def test_the_permutation_of_a_seed_is_fixed_for_ever() -> None:
    assert numbers(10, 0) == GOLDEN[0]
    assert numbers(10, 7) == GOLDEN[7]
    assert numbers(10, 2**40) == GOLDEN[2**40]
    assert numbers(0, 0) == []
    assert sorted(numbers(1001, 3)) == list(range(1001))


@pytest.mark.parametrize("num_records", [0, 1, 5, 64, 999])
def test_many_records_are_put_in_the_same_order_part_by_part(
    num_records: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = numbers(num_records, 3)
    bounds = [0, num_records // 3, num_records // 3, num_records * 7 // 8, num_records]
    monkeypatch.setattr(random_order, "_SORTED_AT_ONCE", 50)
    monkeypatch.setattr(random_order, "_MADE_AT_ONCE", 13)
    monkeypatch.setattr(random_order, "_TOP_BITS", 3)
    assert numbers(num_records, 3) == whole
    longest = max(len(part) for part in permutation_in_parts(num_records, 3))
    assert longest <= 100
    for first, last in itertools.pairwise(bounds):
        found = [number for part in ranked(num_records, 3, first, last) for number in part.tolist()]
        assert found == sorted(whole[first:last])


def test_records_with_equal_bits_stay_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [np.array([5, 9, 5, 5], np.uint64), np.array([5, 0, 9], np.uint64)]
    monkeypatch.setattr(random_order, "_keys", lambda *_: zip((0, 4), keys, strict=True))
    order = [5, 0, 2, 3, 4, 1, 6]
    assert numbers(7, 0) == order
    for first in range(8):
        for last in range(first, 8):
            found = [number for part in ranked(7, 0, first, last) for number in part.tolist()]
            assert found == sorted(order[first:last])


def numbers(num_records: int, seed: int) -> list[int]:
    return [number for part in permutation_in_parts(num_records, seed) for number in part.tolist()]


GOLDEN: dict[int, list[int]] = {
    0: [6, 1, 7, 5, 4, 3, 9, 8, 2, 0],
    7: [0, 2, 4, 3, 8, 5, 7, 1, 6, 9],
    2**40: [9, 7, 5, 0, 8, 6, 2, 3, 1, 4],
}


def test_the_input_order_is_kept_without_a_shuffle(tmp_path: Path) -> None:
    sources = [
        write_lines(tmp_path / f"{name}.jsonl", [{"id": f"{name}{n}"} for n in range(40)]) for name in "ba"
    ]
    ids = [sample["id"] for sample in converted(sources, tmp_path / "A", workers=2)]
    assert ids == [f"{name}{n}" for name in "ba" for n in range(40)]


@pytest.mark.parametrize("limit", [2**32, 2**40, 0, -1])
def test_b065_a_size_limit_out_of_range_is_named(limit: int) -> None:
    with pytest.raises(ValueError, match=f"size_limit={limit}"):
        ConvertOptions(("a.jsonl",), "out", size_limit=limit)


def test_b065_sizes_are_1024_based() -> None:
    assert parse_size_limit("100kb") == 102400
    assert parse_size_limit("none") is None
    for junk in ("abc", "-1", "1xb", ""):
        with pytest.raises(ValueError, match="size_limit="):
            parse_size_limit(junk)


def test_options_that_cannot_be_are_named() -> None:
    for name, value in [
        ("on_error", "ignore"), ("workers", 0), ("samples_per_shard", 0), ("max_image_pixels", 0),
        ("shuffle", -1), ("shuffle", 2**64), ("compression", "lz77"), ("hashes", ("crc8",)), ("sources", ()),
    ]:  # fmt: skip
        options = {"sources": ("a.jsonl",), "out": "out", name: value}
        with pytest.raises(ValueError):
            ConvertOptions(**options)


def test_nothing_of_the_machine_enters_the_output(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{"id": 1}])
    run(source, tmp_path / "A")
    (tmp_path / "deep" / "er").mkdir(parents=True)
    moved = tmp_path / "deep" / "er" / "other-name.jsonl"
    moved.write_bytes(source.read_bytes())
    run(moved, tmp_path / "B", workers=3)
    assert files_of(tmp_path / "A") == files_of(tmp_path / "B")
    assert str(tmp_path).encode() not in (tmp_path / "A" / "index.json").read_bytes()
    assert len(LocalDataset(str(tmp_path / "B"))) == 1

"""Samples are checked one by one where a dataset has hashes of them, by every reader that is asked to."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamshard import LocalDataset, MDSWriter, StreamingDataset, merge_index
from streamshard.errors import BlobNotFoundError, ChecksumError, FormatError, StorageError
from streamshard.format.schema import Schema
from streamshard.read import raw_file
from streamshard.read.sample_check import SampleCheck
from streamshard.read.verify import verify_dataset
from tests.support import damage
from tests.support.small_datasets import COLUMNS, text_samples, write_dataset

SIDE = "shard.00001.mds.samples"


def write(directory: Path, count: int = 35, **options: Any) -> Path:
    options = {"sample_hash": "xxh64", "samples_per_shard": 10, **options}
    with MDSWriter(out=directory, columns=COLUMNS, **options) as writer:
        for sample in text_samples(count):
            writer.write(sample)
    return directory


def corrupt(directory: Path, row: int = 3) -> None:
    """Change one letter of one sample in the second shard: it decodes, and no offset tells."""
    path = directory / "shard.00001.mds"
    content = bytearray(path.read_bytes())
    at = content.index(f"text of 1{row}".encode())
    content[at] = ord("T")
    path.write_bytes(content)


@pytest.mark.parametrize(
    "read",
    [
        lambda reader, rows: reader.samples(rows),
        lambda reader, rows: [reader.decoder.one(piece) for piece in reader.pieces(rows)],
        lambda reader, rows: [
            dict(zip(COLUMNS, row, strict=True))
            for row in zip(*reader.columns_of(rows).values(), strict=True)
        ],
        lambda reader, rows: [reader.sample(row) for row in rows.tolist()],
    ],
    ids=["samples", "pieces", "columns", "sample"],
)
def test_what_is_decoded_is_what_was_checked_though_the_file_changes_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Any
) -> None:
    reader = LocalDataset(write(tmp_path), validate_samples=True)._shards.reader(1)
    path = tmp_path / "shard.00001.mds"
    good = path.read_bytes()

    def changing(name: str) -> Any:
        check = getattr(SampleCheck, name)

        def check_then_change(*arguments: Any) -> None:
            check(*arguments)
            if name == "many" or arguments[1] == 3:
                with path.open("r+b") as file:
                    file.write(good.replace(b"text of", b"Text of"))

        return check_then_change

    for name in ("one", "many"):
        monkeypatch.setattr(SampleCheck, name, changing(name))
    assert read(reader, np.array([3])) == text_samples(35)[13:14]
    assert path.read_bytes() != good
    with pytest.raises(ChecksumError):
        read(reader, np.array([3]))


@pytest.mark.parametrize("algorithm", ["xxh64", "sha256", "xxh3_128"])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_good_samples_pass(tmp_path: Path, algorithm: str, compression: str | None) -> None:
    write(tmp_path, sample_hash=algorithm, compression=compression)
    dataset = LocalDataset(tmp_path, validate_samples=True)
    wanted = text_samples(35)
    assert dataset[:] == list(dataset) == wanted
    assert [dataset[-1], dataset[17]] == [wanted[-1], wanted[17]]
    assert pickle.loads(pickle.dumps(dataset))[12] == wanted[12]
    assert (tmp_path / SIDE).stat().st_size == 10 * {"xxh64": 8, "sha256": 32, "xxh3_128": 16}[algorithm]


def test_a_changed_sample_is_named_and_the_others_are_given(tmp_path: Path) -> None:
    write(tmp_path)
    corrupt(tmp_path)
    assert LocalDataset(tmp_path)[13]["text"].startswith("Text")
    dataset = LocalDataset(tmp_path, validate_samples=True)
    words = r"'shard.00001.mds', row 3, sample 13 of the dataset: xxh64 of its \d+ bytes is \w{16}, expected"
    for read in (lambda: dataset[13], lambda: dataset[-22], lambda: dataset[10:20]):
        with pytest.raises(ChecksumError, match=words):
            read()
    assert [dataset[12], dataset[14]] == [text_samples(35)[12], text_samples(35)[14]]
    given = []
    with pytest.raises(ChecksumError, match=words):
        given.extend(iter(dataset))
    assert given == text_samples(35)[:13]


def test_rows_of_columns_and_joined_bytes_are_checked_too(tmp_path: Path) -> None:
    write(tmp_path)
    corrupt(tmp_path)
    dataset = LocalDataset(tmp_path, validate_samples=True)
    reader = dataset._shards.reader(1)
    for read in (reader.columns_of, reader.gather, reader.samples):
        with pytest.raises(ChecksumError, match="row 3"):
            read(np.array([0, -7]))
        read(np.array([0, 4]))
    with pytest.raises(ChecksumError, match="row 3"):
        reader.raw(-7)
    with pytest.raises(ChecksumError, match="row 3"):
        pickle.loads(pickle.dumps(reader)).sample(3)


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("nbytes", [40, 4000])
def test_rows_read_without_a_map_are_checked_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nbytes: int, mapped: bool
) -> None:
    monkeypatch.setattr(raw_file, "is_local_device", lambda _device: mapped)
    with MDSWriter(out=tmp_path, columns={"b": "bytes"}, sample_hash="xxh64") as writer:
        for number in range(8):
            writer.write({"b": bytes([number]) * nbytes})
    path = tmp_path / "shard.00000.mds"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    reader = LocalDataset(tmp_path, validate_samples=True)._shards.reader(0)
    for read in (reader.samples, reader.columns_of):
        with pytest.raises(ChecksumError, match="row 7"):
            read(np.array([2, 7]))
        assert read(np.arange(7))
    with pytest.raises(ChecksumError, match="row 7"):
        reader.sample(7)


def test_a_dataset_without_hashes_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    write_dataset(tmp_path, text_samples(10))
    with pytest.raises(ValueError, match=r"has no hashes of samples.*sample_hash"):
        LocalDataset(tmp_path, validate_samples=True)
    with pytest.raises(ValueError, match=r"has no hashes of samples.*sample_hash"):
        StreamingDataset(local=tmp_path, batch_size=2, validate_samples=True)


@pytest.mark.parametrize(
    ("spoil", "error", "words"),
    [
        (lambda path: path.unlink(), BlobNotFoundError, SIDE),
        (lambda path: os.truncate(path, 72), FormatError, "72 bytes for 10 samples, expected 80"),
        (lambda path: os.truncate(path, 1 << 40), StorageError, "at most 80 were expected"),
        (lambda path: path.write_bytes(bytes(80)), ChecksumError, "the index says"),
    ],
    ids=["missing", "cut", "huge", "other bytes"],
)
def test_a_side_file_that_the_index_does_not_mean_is_refused(
    tmp_path: Path, spoil: Any, error: type[Exception], words: str
) -> None:
    write(tmp_path)
    spoil(tmp_path / SIDE)
    dataset = LocalDataset(tmp_path, validate_samples=True)
    assert dataset[9] == text_samples(10)[9]
    with pytest.raises(error, match=words):
        dataset[10]
    report = verify_dataset(tmp_path)
    assert [problem.shard for problem in report.problems] == [SIDE]
    assert LocalDataset(tmp_path)[10] == text_samples(11)[10]


def stream(directory: Path, cache: Path | None, **options: Any) -> list[int]:
    place = {"local": directory} if cache is None else {"remote": str(directory), "local": cache}
    dataset = StreamingDataset(**place, batch_size=5, validate_samples=True, **options)
    return [sample["number"] for sample in dataset]


@pytest.mark.parametrize("compression", [None, "gz"])
@pytest.mark.parametrize("cached", [False, True])
def test_a_stream_checks_what_it_reads(tmp_path: Path, cached: bool, compression: str | None) -> None:
    write(tmp_path / "d", compression=compression)
    cache = tmp_path / "c" if cached else None
    for _ in range(2):
        assert stream(tmp_path / "d", cache) == list(range(35))
    if cached:
        assert (tmp_path / "c" / SIDE).read_bytes() == (tmp_path / "d" / SIDE).read_bytes()


def test_a_file_that_goes_bad_in_the_cache_after_it_was_checked_is_noticed(tmp_path: Path) -> None:
    """Size and time as before, so that the mark in the cache vouches for it: only samples tell."""
    write(tmp_path / "d")
    assert stream(tmp_path / "d", tmp_path / "c") == list(range(35))
    path = tmp_path / "c" / "shard.00001.mds"
    status = path.stat()
    with path.open("r+b") as file:
        at = path.read_bytes().index(b"text of 13")
        file.seek(at)
        file.write(b"T")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(ChecksumError, match="row 3, sample 13"):
        stream(tmp_path / "d", tmp_path / "c")
    left = stream(tmp_path / "d", tmp_path / "c", on_error="skip", error_limit=1)
    assert left == [number for number in range(35) if number != 13]


def test_the_cache_limit_counts_side_files_and_holds(tmp_path: Path) -> None:
    write(tmp_path / "d", 60)
    limit = 2 * (tmp_path / "d" / "shard.00000.mds").stat().st_size
    assert stream(tmp_path / "d", tmp_path / "c", cache_limit=limit) == list(range(60))
    kept = sum(path.stat().st_size for path in (tmp_path / "c").glob("shard*"))
    assert kept <= limit


def test_verify_names_the_sample_and_knows_the_side_files(tmp_path: Path) -> None:
    write(tmp_path, hashes=[])
    report = verify_dataset(tmp_path)
    assert report.ok
    assert report.notes == []
    assert (report.hashed_samples, report.decoded_samples) == (35, 35)
    corrupt(tmp_path)
    damage.remove(tmp_path, 2)
    for decode in (True, False):
        report = verify_dataset(tmp_path, decode=decode)
        assert [(problem.shard, problem.row) for problem in report.problems] == [
            ("shard.00001.mds", 3),
            ("shard.00002.mds", None),
        ]
    write(tmp_path, exist_ok=True, sample_hash=None)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "index.json",
        *(f"shard.{number:05d}.mds" for number in range(4)),
    ]


def test_merging_keeps_them_where_all_parts_have_them(tmp_path: Path) -> None:
    write(tmp_path / "a")
    write(tmp_path / "b/c", 15)
    merge_index(str(tmp_path))
    dataset = LocalDataset(tmp_path, validate_samples=True)
    assert dataset[35:] == text_samples(15)
    corrupt(tmp_path / "b/c", 2)
    with pytest.raises(ChecksumError, match=r"b/c/shard.00001.mds', row 2, sample 47"):
        LocalDataset(tmp_path, validate_samples=True)[40:]
    write(tmp_path / "d", 5, sample_hash="md5")
    with pytest.warns(UserWarning, match="hashes of samples are left out.*md5, xxh64"):
        merge_index(str(tmp_path))
    assert "streamshard" not in json.loads((tmp_path / "index.json").read_text())


def test_unknown_names_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="sha0"):
        write(tmp_path / "d", sample_hash="sha0")
    assert not (tmp_path / "d").exists()


def test_the_hash_is_that_of_the_encoded_sample(tmp_path: Path) -> None:
    import xxhash

    write(tmp_path)
    encoded = [Schema.from_columns(COLUMNS).encode_sample(sample) for sample in text_samples(20)]
    assert (tmp_path / SIDE).read_bytes() == b"".join(xxhash.xxh64_digest(sample) for sample in encoded[10:])

"""A published file is whole or absent."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamshard.errors import BlobNotFoundError, StorageError
from streamshard.format.schema import Schema
from streamshard.write.encode import write_shard
from streamshard.write.publish import publish_file
from tests.support.stored_datasets import files_of, shard_samples


def test_buffers_are_joined_and_no_other_name_remains(tmp_path):
    publish_file(tmp_path / "new", "a/b.bin", [b"one", memoryview(b"two"), b""])
    assert files_of(tmp_path) == {"new/a/b.bin": b"onetwo"}


def test_a_failure_in_the_middle_keeps_the_file_that_was_there(tmp_path):
    publish_file(tmp_path, "a", [b"old"])

    def buffers():
        yield b"new"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        publish_file(tmp_path, "a", buffers())
    assert files_of(tmp_path) == {"a": b"old"}


def test_an_error_of_those_who_make_the_buffers_stays_theirs(tmp_path):
    def buffers():
        yield b"new"
        raise BlobNotFoundError("no such picture")

    with pytest.raises(BlobNotFoundError, match=r"^no such picture$"):
        publish_file(tmp_path, "a", buffers())
    assert files_of(tmp_path) == {}


def test_the_content_is_on_the_disk_before_the_name(tmp_path, monkeypatch):
    events = []
    real_replace = Path.replace
    monkeypatch.setattr("os.fsync", lambda handle: events.append("fsync"))
    monkeypatch.setattr(Path, "replace", lambda self, to: (events.append("rename"), real_replace(self, to)))
    publish_file(tmp_path, "a", [b"x"])
    assert events == ["fsync", "rename", "fsync"]


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match=r"file/a: could not be written"):
        publish_file(tmp_path / "file", "a", [b"x"])


@pytest.mark.parametrize("compression", [None, "zstd:3"])
@pytest.mark.parametrize("sizes", [[10] * 3000, [3_000_000, 1, 2_000_000, 5], []])
def test_a_shard_of_any_mixture_of_sizes_is_described_as_it_is(compression, sizes, tmp_path):
    from streamshard.format.hashing import hash_bytes
    from tests.support.stored_datasets import raw_shard

    schema = Schema.from_columns({"b": "bytes"})
    rows = [{"b": bytes([i % 251]) * size} for i, size in enumerate(sizes)]
    info = write_shard(
        tmp_path, "s/x.mds", schema, [schema.encode_sample(r) for r in rows],
        compression=compression, hashes=("md5", "xxh64"), size_limit=None,
    )  # fmt: skip
    stored = (tmp_path / info.stored.basename).read_bytes()
    assert info.stored.nbytes == len(stored)
    assert info.stored.hashes == {name: hash_bytes(name, stored) for name in ("md5", "xxh64")}
    raw = raw_shard(tmp_path, info)
    assert info.raw.hashes["xxh64"] == hash_bytes("xxh64", raw)
    assert shard_samples(raw, info) == rows

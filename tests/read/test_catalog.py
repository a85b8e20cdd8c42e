"""The index of a dataset, and its shards as blobs for the cache."""

from __future__ import annotations

import json
import os
import pickle
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamshard.errors import BlobNotFoundError, ChecksumError, FormatError, StorageError
from streamshard.format.index import FileInfo, ShardInfo
from streamshard.read import catalog, tables
from streamshard.read.catalog import load_index, shard_blob
from streamshard.storage import NodeCache, RetryPolicy, Store, open_store
from tests.support.small_datasets import text_samples, write_dataset


def put_all(store: Store, directory: Path, prefix: str = "") -> None:
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            store.put(prefix + path.relative_to(directory).as_posix(), path)


@pytest.fixture
def remote() -> Iterator[Store]:
    store = open_store(f"memory://{uuid.uuid4().hex}")
    yield store
    for key in store.list():
        store.delete(key)


def test_the_digest_tells_one_index_from_another(tmp_path: Path) -> None:
    write_dataset(tmp_path / "a", text_samples(20))
    write_dataset(tmp_path / "b", text_samples(20))
    write_dataset(tmp_path / "c", text_samples(21))
    digests = [load_index(open_store(tmp_path / name))[1] for name in "abc"]
    assert digests[0] == digests[1] != digests[2]
    assert len(digests[0]) == 32
    index, _ = load_index(open_store(tmp_path), split="c")
    assert index.num_samples == 21


def test_an_index_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_dataset(tmp_path, text_samples(20))
    monkeypatch.setattr(catalog, "MAX_INDEX_NBYTES", 100)
    with pytest.raises(StorageError, match=r"index\.json.*100"):
        load_index(open_store(tmp_path))


def test_b070_a_remote_place_without_an_index_says_what_is_there(tmp_path: Path, remote: Store) -> None:
    with pytest.raises(BlobNotFoundError, match=rf"{remote.url}/index\.json; nothing at all"):
        load_index(remote)
    write_dataset(tmp_path, text_samples(20))
    put_all(remote, tmp_path, "train/")
    with pytest.raises(BlobNotFoundError, match=r"sub-directories that have one: 'train'.*split='train'"):
        load_index(remote)
    remote.delete("train/index.json")
    with pytest.raises(BlobNotFoundError, match=rf"{remote.url}/train/index\.json, but 2 shard files"):
        load_index(remote, split="train")
    with pytest.raises(BlobNotFoundError, match=r"/valid/index\.json; nothing is there.*'train'"):
        load_index(remote, split="valid")


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("split", [None, "train"])
def test_a_blob_goes_through_the_cache(
    tmp_path: Path, remote: Store, compression: str | None, split: str | None
) -> None:
    infos = write_dataset(tmp_path / "data", text_samples(20), compression=compression, keep_raw=True)
    put_all(remote, tmp_path / "data", f"{split}/" if split else "")
    index, digest = load_index(remote, split=split)
    cache = NodeCache(tmp_path / "cache", remote, digest=digest)
    for info in index.shards:
        blob = pickle.loads(pickle.dumps(shard_blob(info, split=split)))
        path = cache.ensure(blob)
        assert path.read_bytes() == (tmp_path / "data" / info.raw.basename).read_bytes()
    assert list(index.shards) == infos


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("validate", [None, True, "sha1", "xxh64"])
def test_b073_a_damaged_download_is_named_and_not_left_in_the_cache(
    tmp_path: Path, compression: str | None, validate: str | bool | None
) -> None:
    data = tmp_path / "data"
    (info,) = write_dataset(data, text_samples(9), compression=compression, hashes=["sha1", "xxh64"])
    path = data / info.stored.basename
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)
    retry = RetryPolicy(attempts=2, backoff_s=0)
    cache = NodeCache(tmp_path / "cache", open_store(data), digest="d", retry=retry)
    algorithm = validate if isinstance(validate, str) else "xxh64"
    wanted = info.stored.hashes[algorithm]
    with pytest.raises(ChecksumError, match=rf"{info.stored.basename}.*{algorithm}.* is [0-9a-f]+.*{wanted}"):
        cache.ensure(shard_blob(info, validate_hash=validate))
    assert not (tmp_path / "cache" / info.raw.basename).exists()


def test_the_hash_asked_for_must_be_known_and_in_the_index(tmp_path: Path) -> None:
    (info,) = write_dataset(tmp_path, text_samples(9), hashes=["md5"])
    with pytest.raises(ValueError, match=r"'sha1'.*shard.00000.mds.*md5"):
        shard_blob(info, validate_hash="sha1")
    with pytest.raises(ValueError, match="sha0"):
        shard_blob(info, validate_hash="sha0")
    assert shard_blob(info).check is not None
    assert shard_blob(info, validate_hash=False).check is None


def test_a_hash_that_nobody_knows_is_no_check(tmp_path: Path) -> None:
    (info,) = write_dataset(tmp_path, text_samples(9), hashes=[])
    assert shard_blob(info).check is None
    raw = FileInfo(info.raw.basename, info.raw.nbytes, {"future": "00"})
    odd = ShardInfo(info.schema, None, ("future",), raw, None, 9, None)
    assert shard_blob(odd).check is None


def test_a_bomb_is_not_unpacked_beyond_the_declared_size(tmp_path: Path) -> None:
    import zstandard

    (info,) = write_dataset(tmp_path, text_samples(9), compression="zstd")
    (tmp_path / "bomb").write_bytes(zstandard.compress(b"\0" * (50 << 20)))
    assert info.compressed is not None
    nbytes = (tmp_path / "bomb").stat().st_size
    bomb = ShardInfo(info.schema, "zstd", (), info.raw, FileInfo("bomb", nbytes, {}), 9, None)
    unpack = shard_blob(bomb).unpack
    assert unpack is not None
    with pytest.raises(FormatError, match=r"'bomb'.*more than"):
        unpack(tmp_path / "bomb", tmp_path / "out")
    assert (tmp_path / "out").stat().st_size <= info.raw.nbytes


def test_an_index_with_a_thousand_shards_shares_its_schema(tmp_path: Path) -> None:
    write_dataset(tmp_path, text_samples(1000), samples_per_shard=1)
    index, _ = load_index(open_store(tmp_path))
    assert len({id(info.schema) for info in index.shards}) == 1
    assert json.loads((tmp_path / "index.json").read_text())["version"] == 2


def test_an_index_that_is_known_is_not_read_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "KEPT_FROM_NBYTES", 1000)
    write_dataset(tmp_path / "a", text_samples(40))
    store = open_store(tmp_path / "a")
    plain, digest = load_index(store)
    assert load_index(store, tables=tmp_path / "cache")[0].shards == plain.shards
    real = type(store).read

    def refuse(*arguments: object, **options: object) -> bytes:
        raise AssertionError("read")

    monkeypatch.setattr(type(store), "read", refuse)
    index, found = load_index(store, tables=tmp_path / "cache")
    assert (index.shards, found) == (plain.shards, digest)
    assert isinstance(index, tables.MappedIndex)
    with pytest.raises(AssertionError, match="read"):  # no table elsewhere
        load_index(store, tables=tmp_path / "other")
    monkeypatch.setattr(type(store), "read", real)
    write_dataset(tmp_path / "a", text_samples(50))
    index, found = load_index(store, tables=tmp_path / "cache")
    assert found != digest
    assert index.num_samples == 50


@pytest.mark.parametrize("kind", ["nothing", "directory", "pipe"])
def test_b070_what_is_no_index_file_is_named_as_without_tables(tmp_path: Path, kind: str) -> None:
    if kind == "directory":
        (tmp_path / "index.json").mkdir()
    elif kind == "pipe":
        os.mkfifo(tmp_path / "index.json")
    store = open_store(tmp_path, retry=RetryPolicy(attempts=1))
    errors = []
    for place in (None, tmp_path / "cache"):
        with pytest.raises(StorageError) as caught:
            load_index(store, tables=place)
        errors.append(str(caught.value).split(" in ")[0])
    assert errors[0] == errors[1]

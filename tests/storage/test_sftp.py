"""A real SFTP server: what every store promises, and a dataset that is converted, written, streamed and repaired."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamshard import LocalDataset, MDSWriter, StreamingDataLoader, StreamingDataset
from streamshard.convert.job import convert
from streamshard.convert.options import ConvertOptions
from streamshard.errors import AccessDeniedError, BlobNotFoundError, ConvertError, StorageError
from streamshard.read.verify import verify_dataset
from streamshard.repair.job import repair_dataset
from streamshard.storage import RetryPolicy, open_store
from tests.support.loading import numbers_of
from tests.support.small_datasets import COLUMNS, text_samples
from tests.support.store_contract import StoreContract

pytest.importorskip("paramiko", reason="needs paramiko: pip install 'streamshard[sftp]'")

from tests.support.sftp_server import SftpServer, sftp_server

QUICK = RetryPolicy(attempts=3, timeout_s=20, backoff_s=0.01)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SftpServer]:
    with sftp_server(tmp_path_factory.mktemp("sftp")) as running:
        yield running


class TestSftp(StoreContract):
    gives_tags = False

    @pytest.fixture
    def store(self, server: SftpServer, tmp_path: Any) -> Any:
        url = f"{server.url}/some/{tmp_path.name}"
        return open_store(url, storage_options=server.storage_options, retry=QUICK)


def place(server: SftpServer, name: str) -> str:
    return f"{server.url}/{name}-{secrets.token_hex(4)}"


def test_a_dataset_is_written_streamed_by_workers_verified_and_repaired_from(
    server: SftpServer, tmp_path: Path
) -> None:
    url, options = place(server, "set"), server.storage_options
    samples = text_samples(60)
    with MDSWriter(
        out=(str(tmp_path / "d"), url), columns=COLUMNS, keep_local=True, storage_options=options, samples_per_shard=5,
        compression="zstd",
    ) as writer:  # fmt: skip
        for sample in samples:
            writer.write(sample)
    assert verify_dataset(url, storage_options=options).ok
    dataset = StreamingDataset(
        remote=url,
        local=tmp_path / "cache",
        storage_options=options,
        shuffle=True,
        batch_size=7,
        predownload=30,
    )
    numbers = [
        number for batch in StreamingDataLoader(dataset, num_workers=2) for number in numbers_of(batch)
    ]
    assert sorted(set(numbers)) == list(range(60))
    (tmp_path / "d" / "shard.00003.mds.zstd").write_bytes(b"damaged")
    mended = repair_dataset(tmp_path / "d", origin=url, storage_options=options)
    assert (mended.ok, mended.num_lost) == (True, 0)
    assert list(LocalDataset(tmp_path / "d")[17]["text"]) == list(samples[17]["text"])


def test_records_are_converted_from_there_to_there(server: SftpServer, tmp_path: Path) -> None:
    options = server.storage_options
    source, out = place(server, "in"), place(server, "out")
    lines = b"".join(b'{"number": %d}\n' % number for number in range(100))
    open_store(source, storage_options=options).put_bytes("a.jsonl", lines)
    summary = convert(
        ConvertOptions(
            sources=(f"{source}/a.jsonl",),
            out=out,
            samples_per_shard=30,
            work_dir=str(tmp_path / "work"),
            storage_options=options,
        )
    )
    assert (summary.samples, summary.shards) == (100, 4)
    assert open_store(out, storage_options=options).list() == [
        "index.json", "shard.00000.mds", "shard.00001.mds", "shard.00002.mds", "shard.00003.mds",
    ]  # fmt: skip
    again = ConvertOptions(sources=(f"{source}/a.jsonl",), out=out, storage_options=options)
    with pytest.raises(ConvertError, match="--overwrite"):
        convert(again)


def test_a_broken_connection_is_replaced(server: SftpServer) -> None:
    store = open_store(place(server, "x"), storage_options=server.storage_options, retry=QUICK)
    store.put_bytes("a", b"content")
    for _ in range(3):
        server.drop()
        assert store.read("a") == b"content"
        server.drop()
        store.put_bytes("a", b"content")


def test_what_could_not_be_written_is_not_there(server: SftpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(place(server, "x"), storage_options=server.storage_options, retry=QUICK)
    store.put_bytes("a", b"old")
    monkeypatch.setattr(server, "full", True)
    for name in ("a", "b"):
        with pytest.raises(StorageError, match="after 3 attempts"):
            store.put_bytes(name, b"new")
    monkeypatch.setattr(server, "full", False)
    assert store.list() == ["a"]
    assert store.read("a") == b"old"
    assert [path.name for path in (server.directory / store.url.rpartition("/")[2]).iterdir()] == ["a"]


def test_a_wrong_password_is_denied_and_not_told(server: SftpServer) -> None:
    for url, options in (
        (place(server, "x"), {**server.storage_options, "password": "wrong-and-secret"}),
        (f"sftp://tester:wrong-and-secret@127.0.0.1:{server.port}/x", {}),
    ):
        store = open_store(url, storage_options=options, retry=QUICK)
        with pytest.raises(AccessDeniedError, match="permission denied") as caught:
            store.read("a")
        assert "wrong-and-secret" not in f"{caught.value} {store.url} {store!r} {caught.value.__cause__!r}"


def test_the_url_may_hold_everything(server: SftpServer) -> None:
    store = open_store(f"sftp://tester:an-sftp-password@127.0.0.1:{server.port}/y", retry=QUICK)
    store.put_bytes("a", b"1")
    assert store.list() == ["a"]
    told = store.modified("a")
    assert told is not None
    with pytest.raises(BlobNotFoundError):
        store.modified("b")

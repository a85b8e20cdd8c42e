"""``hf://`` by huggingface-hub's own client, against a server that answers as the Hub does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from streamshard import MDSWriter, StreamingDataLoader, StreamingDataset
from streamshard.errors import BlobNotFoundError
from streamshard.read.verify import verify_dataset
from streamshard.storage import RetryPolicy, open_store
from tests.support.hub_server import HubServer, hub_server
from tests.support.loading import numbers_of, text_dataset

pytest.importorskip("huggingface_hub", reason="needs huggingface-hub: pip install 'streamshard[hf]'")

URL = "hf://datasets/someone/data"
QUICK = RetryPolicy(attempts=2, timeout_s=30, backoff_s=0.01)


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with hub_server() as running:
        yield running


def test_files_are_read_whole_and_by_range(hub: HubServer, tmp_path: Path) -> None:
    content = bytes(range(256)) * 40
    hub.files.update({"a b/x.bin": content, "README.md": b"#"})
    store = open_store(f"{URL}/a b", storage_options=hub.storage_options, retry=QUICK)
    assert store.size("x.bin") == len(content)
    assert store.read("x.bin") == content
    assert store.read_range("x.bin", 100, 5000) == content[100:5000]
    assert store.fetch_to("x.bin", tmp_path / "x", nbytes=len(content)) == len(content)
    assert (tmp_path / "x").read_bytes() == content
    assert store.list() == ["x.bin"]
    assert not store.exists("y.bin")
    assert set(hub.tokens) == {"Bearer hf_aTokenOfTests"}


def test_what_is_missing_or_private_says_so_without_the_token(hub: HubServer) -> None:
    for url, key in ((URL, "nope"), ("hf://datasets/someone/private", "a")):
        with pytest.raises(BlobNotFoundError, match=key) as caught:
            open_store(url, storage_options=hub.storage_options, retry=QUICK).read(key)
        assert "hf_aToken" not in f"{caught.value}{caught.value.__cause__!r}"


def test_a_dataset_is_streamed_and_verified(hub: HubServer, tmp_path: Path) -> None:
    directory = text_dataset(tmp_path / "set", 60, samples_per_shard=20)
    hub.files.update({f"train/{path.name}": path.read_bytes() for path in directory.iterdir()})
    options = hub.storage_options
    assert verify_dataset(URL, split="train", storage_options=options).ok
    dataset = StreamingDataset(
        remote=URL,
        split="train",
        local=tmp_path / "cache",
        storage_options=options,
        shuffle=True,
        batch_size=9,
    )
    numbers = [
        number for batch in StreamingDataLoader(dataset, num_workers=1) for number in numbers_of(batch)
    ]
    assert set(numbers) == set(range(60))


def test_a_dataset_is_written_each_file_a_commit(hub: HubServer, tmp_path: Path) -> None:
    options = hub.storage_options
    with MDSWriter(
        out=f"{URL}/train", columns={"number": "int"}, storage_options=options, samples_per_shard=10
    ) as writer:
        for number in range(35):
            writer.write({"number": number})
    names = [f"train/shard.{number:05}.mds" for number in range(4)]
    assert sorted(hub.files) == ["train/index.json", *names]
    assert hub.commits == 5
    assert verify_dataset(URL, split="train", storage_options=options, deep=True).ok
    store = open_store(f"{URL}/train", storage_options=options, retry=QUICK)
    store.put_bytes("index.json", b"{}")
    assert store.read("index.json") == b"{}"
    store.delete("index.json")
    assert not store.exists("index.json")

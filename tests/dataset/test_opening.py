"""Opening streams: indexes of many, large ones, and what is left on the disk."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamshard import Stream, StreamingDataset
from streamshard.dataset.source import Decoding, Fetching, OpenStream, Source
from streamshard.errors import BlobNotFoundError
from streamshard.read import catalog, tables
from streamshard.read.tables import MappedIndex
from streamshard.storage import open_store
from streamshard.storage.cache import NodeCache
from tests.support.small_datasets import COLUMNS, text_samples, write_dataset


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("STREAMSHARD_CACHE", str(directory))
    monkeypatch.setattr(tables, "KEPT_FROM_NBYTES", 1000)
    return directory


def remote_of(directory: Path) -> str:
    url = f"memory://{uuid.uuid4().hex}"
    store = open_store(url)
    for path in directory.iterdir():
        store.put(path.name, path)
    return url


def files(directory: Path) -> list[str]:
    """Names of all files but those of locks."""
    found = (path for path in directory.rglob("*") if path.is_file() and path.suffix != ".lock")
    return sorted(path.relative_to(directory).as_posix() for path in found)


def test_the_table_of_data_read_in_place_lies_in_this_users_cache(tmp_path: Path, own_cache: Path) -> None:
    write_dataset(tmp_path, text_samples(40))
    before = files(tmp_path)
    for where in ({"local": tmp_path}, {"remote": tmp_path}, {"remote": tmp_path.as_uri()}):
        opened = OpenStream(Stream(**where), Fetching())
        assert isinstance(opened.index, MappedIndex)
        assert opened.index.num_samples == 40
    assert files(tmp_path) == before
    (table,) = files(own_cache)
    assert table.endswith(f".streamshard/tables/{opened.digest}.v2.table")


def test_the_table_of_a_remote_place_lies_in_its_cache(tmp_path: Path, own_cache: Path) -> None:
    write_dataset(tmp_path / "a", text_samples(40))
    for remote in (remote_of(tmp_path / "a"), (tmp_path / "a").as_uri()):
        local = tmp_path / remote.partition(":")[0]
        opened = OpenStream(Stream(remote=remote, local=local), Fetching())
        assert isinstance(opened.index, MappedIndex)
        assert [name for name in files(local) if not name.endswith(".note")] == [
            f".streamshard/tables/{opened.digest}.v2.table"
        ]
    assert files(own_cache) == []


def test_a_table_survives_a_cache_that_has_no_room(tmp_path: Path) -> None:
    """It is no shard: neither counted nor evicted."""
    write_dataset(tmp_path / "a", text_samples(40))
    local = tmp_path / "cache"
    remote = remote_of(tmp_path / "a")
    largest = max(path.stat().st_size for path in (tmp_path / "a").glob("*.mds"))
    dataset = StreamingDataset(remote=remote, local=local, cache_limit=largest)
    assert [dataset[number]["number"] for number in range(40)] == list(range(40))
    assert [name for name in files(local) if name.endswith(".table")] != []
    assert StreamingDataset(remote=remote, local=local, cache_limit=largest)[39]["number"] == 39


def test_a_source_shares_the_numbers_of_a_single_index_and_travels_without_them(tmp_path: Path) -> None:
    write_dataset(tmp_path / "a", text_samples(40))
    write_dataset(tmp_path / "b", text_samples(25))
    for names in ("a", "ab"):
        opened = [OpenStream(Stream(local=tmp_path / name), Fetching()) for name in names]
        whole = Source(opened, Decoding())
        assert np.shares_memory(whole.begins, opened[0].index.begins) == (names == "a")
        copy = pickle.loads(pickle.dumps(whole))
        for each in (whole, copy):
            assert each.begins.tolist() == [0, 10, 20, 30, 40, *([50, 60, 65] if names == "ab" else [])]
            assert each.first_shard.tolist() == [0, 4, *([7] if names == "ab" else [])]
            assert each.raw_nbytes == sum(
                path.stat().st_size for n in names for path in (tmp_path / n).glob("*.mds")
            )
            assert each.info(each.num_shards - 1).num_samples == (10 if names == "a" else 5)
    assert set(COLUMNS) == set(whole.info(0).schema.names)


def test_indexes_of_remote_streams_are_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 5
    remotes = []
    for number in range(count):
        write_dataset(tmp_path / str(number), text_samples(10 + number))
        remotes.append(remote_of(tmp_path / str(number)))
    together = threading.Barrier(count, timeout=60)
    real = catalog._read

    def load(*arguments: Any, **options: Any) -> Any:
        together.wait()  # broken, which is an error, unless all are here at once
        return real(*arguments, **options)

    monkeypatch.setattr(catalog, "_read", load)
    dataset = StreamingDataset(streams=[Stream(remote=remote) for remote in remotes])
    assert [stream.index.num_samples for stream in dataset._source.streams] == [10, 11, 12, 13, 14]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("streamshard-open")]


def test_of_several_streams_that_cannot_be_opened_the_first_is_named(tmp_path: Path) -> None:
    write_dataset(tmp_path / "a", text_samples(10))
    good = remote_of(tmp_path / "a")
    bad = [f"memory://{uuid.uuid4().hex}" for _ in range(3)]
    with pytest.raises(BlobNotFoundError, match=bad[0]):
        StreamingDataset(streams=[Stream(remote=remote) for remote in (good, *bad, good)])


def test_a_stream_that_is_read_in_place_makes_a_cache_when_something_needs_it(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_dataset(tmp_path / "set", text_samples(8))
    made: list[Path] = []
    init = NodeCache.__init__

    def noted(self: NodeCache, directory: Path, *arguments: Any, **options: Any) -> None:
        made.append(directory)
        init(self, directory, *arguments, **options)

    monkeypatch.setattr(NodeCache, "__init__", noted)
    opened = OpenStream(Stream(local=tmp_path / "set"), Fetching(cache_limit=5000))
    assert opened.blob(0) is None
    assert Path(opened.path_in_place(opened.index.shards[0])).exists()
    assert opened.limit_bytes == 5000
    assert not made
    assert opened.cache is opened.cache
    assert opened.cache.limit_bytes == 5000
    (directory,) = made
    assert directory.parent == own_cache
    OpenStream(Stream(remote=tmp_path / "set", local=tmp_path / "kept"), Fetching())
    assert made == [directory, tmp_path / "kept"]  # of a relative name, it stays where it is now


def test_no_part_of_numpy_is_loaded_that_takes_longer_than_a_first_batch(tmp_path: Path) -> None:
    """``np.unique`` alone loads ``numpy.ma``: 10 ms, in which a thousand streams find their first samples."""
    for number in range(20):
        write_dataset(tmp_path / str(number), text_samples(8), samples_per_shard=2)
    code = f"""
import sys
from streamshard import Stream, StreamingDataset
dataset = StreamingDataset(
    streams=[Stream(local=f"{tmp_path}/{{n}}") for n in range(20)], shuffle=True, batch_size=4
)
assert len(list(dataset)) == len(list(dataset)) == 160
assert "numpy.ma" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)

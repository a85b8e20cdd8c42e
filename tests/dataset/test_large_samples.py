"""Large samples, decoded when their turn comes, in pieces; and shards that stay open for the next epoch."""

from __future__ import annotations

import gc
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamshard import MDSWriter, StreamingDataLoader, StreamingDataset
from streamshard.dataset import feed
from streamshard.errors import BlobNotFoundError, FormatError
from streamshard.read import raw_file, shard_reader
from streamshard.read.raw_file import RawFile
from streamshard.read.shard_reader import ShardReader

NBYTES = 9_000
COUNT = 300


def blob(number: int) -> bytes:
    return number.to_bytes(2, "little") * (NBYTES // 2 + number)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("large") / "set"
    with MDSWriter(out=out, columns={"blob": "bytes", "number": "int"}, size_limit=400_000) as writer:
        for number in range(COUNT):
            writer.write({"blob": blob(number), "number": number})
    assert len(list(out.glob("*.mds"))) > 5
    return out


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each shard was opened."""
    counts: Counter[str] = Counter()
    make = ShardReader.__init__

    def counted(self: ShardReader, path: Any, *arguments: Any, **options: Any) -> None:
        counts[Path(path).name] += 1
        make(self, path, *arguments, **options)

    monkeypatch.setattr(ShardReader, "__init__", counted)
    return counts


def numbers_of(samples: Any) -> list[int]:
    """The samples' numbers, their blobs checked."""
    found = []
    for sample in samples:
        assert sample["blob"] == blob(sample["number"])
        found.append(sample["number"])
    return found


def write_texts(out: Path) -> None:
    with MDSWriter(out=out, columns={"text": "str", "number": "int"}, size_limit=400_000) as writer:
        for number in range(COUNT):
            writer.write({"text": "a" * NBYTES, "number": number})


def open_shards() -> int:
    """Descriptors of shards that this process has, without those that are garbage, as of other tests."""
    gc.collect()
    links = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
    return sum(".mds" in link for link in links)


@pytest.mark.parametrize("batch_size", [1, 7, 128])
@pytest.mark.parametrize("remainder", ["pad", "exact", "drop"])
def test_they_come_in_the_order_in_which_small_ones_come(
    written: Path, batch_size: int, remainder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "_CHUNK_NBYTES_OF_LARGE", 12 * NBYTES)
    options: dict[str, Any] = {"shuffle": True, "batch_size": batch_size, "remainder": remainder}
    dataset = StreamingDataset(local=written, **options)
    monkeypatch.setattr(feed, "_CHUNK_SAMPLES_IN_TURN", 3 * batch_size)
    in_turn = numbers_of(dataset)
    whole = [
        numbers_of(batch)
        for batch in StreamingDataLoader(StreamingDataset(local=written, **options), collate_fn=list)
    ]
    monkeypatch.setattr(feed, "_LARGE_SAMPLE_NBYTES", 1 << 30)
    together = numbers_of(StreamingDataset(local=written, **options))
    assert in_turn == together == [number for batch in whole for number in batch]
    assert {len(batch) for batch in whole[:-1]} == {batch_size}


def test_pieces_of_a_batch_come_and_go_one_after_another(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    read = feed.ShardPool.samples_at

    def counted(self: Any, shards: Any, rows: list[int], samples: Any) -> Any:
        sizes.append(len(rows))
        return read(self, shards, rows, samples)

    monkeypatch.setattr(feed.ShardPool, "samples_at", counted)
    monkeypatch.setattr(feed, "_CHUNK_NBYTES_OF_LARGE", 20 * NBYTES)
    dataset = StreamingDataset(local=written, batch_size=150)
    samples = iter(dataset)
    next(samples)
    assert len(sizes) == 1
    assert 10 < sizes[0] <= 20
    seen = 1 + sum(1 for _ in zip(range(sizes[0] + 3), samples, strict=False))
    state = dataset.state_dict()
    going_on = StreamingDataset(local=written, batch_size=150)
    going_on.load_state_dict(state)
    assert numbers_of(going_on) == numbers_of(samples) == list(range(seen, COUNT))
    sizes.clear()
    assert (
        len(list(StreamingDataLoader(StreamingDataset(local=written, batch_size=150), collate_fn=list))) == 2
    )
    assert sizes == [150, 150]


def test_no_more_is_fetched_ahead_than_was_asked_for(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = 0
    want = feed.Ahead.want

    def counted(self: Any, samples: Any) -> None:
        nonlocal wanted
        wanted += len(samples)
        want(self, samples)

    monkeypatch.setattr(feed.Ahead, "want", counted)
    dataset = StreamingDataset(
        remote=written.as_uri(), local=tmp_path / "cache", batch_size=4, predownload=12
    )
    ahead = [wanted - number for number, _ in enumerate(dataset)]
    assert 12 <= max(ahead) <= 12 + 12


def test_what_comes_before_a_damaged_sample_is_given(written: Path, tmp_path: Path) -> None:
    write_texts(tmp_path / "set")
    order = numbers = [
        sample["number"] for sample in StreamingDataset(local=tmp_path / "set", shuffle=True, batch_size=8)
    ]
    bad = order[150]
    dataset = StreamingDataset(local=tmp_path / "set", shuffle=True, batch_size=8)
    shard, row = (int(each[0]) for each in dataset._source.locate(np.array([bad])))
    info = dataset._source.info(shard)
    file = tmp_path / "set" / info.raw.basename
    content = bytearray(file.read_bytes())
    at = content.find(b"a" * NBYTES)
    for _ in range(row):
        at = content.find(b"a" * NBYTES, at + NBYTES)
    content[at : at + 2] = b"\xff\xff"
    file.write_bytes(content)
    given: list[dict[str, Any]] = []
    with pytest.raises(FormatError, match=rf"{info.raw.basename}.*, row {row}, sample {bad} of the dataset"):
        given.extend(dataset)
    assert [sample["number"] for sample in given] == numbers[: len(given)]
    assert 144 <= len(given) <= 150


# Shards that stay open


def test_the_next_epoch_finds_its_shards_open(written: Path, opened: Counter[str]) -> None:
    dataset = StreamingDataset(local=written, shuffle=True, batch_size=8)
    for _ in range(3):
        assert sorted(numbers_of(dataset)) == list(range(COUNT))
    assert set(opened.values()) == {1}
    assert len(opened) == dataset.num_shards
    next(iter(dataset))  # one that is left in the middle leaves nothing open: it may be garbage
    assert dataset._pool._spare is not None
    assert not dataset._pool._spare[1]._open
    assert len(numbers_of(dataset)) == COUNT
    assert set(opened.values()) <= {1, 2}


def test_only_the_dataset_that_was_read_last_keeps_shards_open(written: Path) -> None:
    first, second = (StreamingDataset(local=written, batch_size=8) for _ in range(2))
    before = open_shards()
    for dataset in (first, second, first):
        assert numbers_of(dataset) == list(range(COUNT))
    kept = open_shards() - before
    assert kept <= 2 * first.num_shards
    assert first._pool._spare is not None
    assert second._pool._spare is None
    del first, dataset
    assert open_shards() == before


@pytest.mark.parametrize("singly", [False, True])
def test_shards_of_an_epoch_are_closed_before_others_are_opened(written: Path, singly: bool) -> None:
    first, second = (StreamingDataset(local=written, batch_size=8) for _ in range(2))
    before = open_shards()
    assert len(numbers_of(first)) == COUNT
    assert open_shards() > before + 3
    if singly:
        assert first[7]["number"] == 7
    else:
        samples = iter(second)
        next(samples)
    assert open_shards() <= before + 2


def test_a_file_that_was_replaced_or_removed_is_not_read_in_the_next_epoch(tmp_path: Path) -> None:
    place = tmp_path / "set"
    write_texts(place)
    dataset = StreamingDataset(local=place, shuffle=True, batch_size=8)
    assert {sample["text"][0] for sample in dataset} == {"a"}
    shard = sorted(place.glob("*.mds"))[1]
    new = shard.with_suffix(".new")
    new.write_bytes(shard.read_bytes().replace(b"a" * NBYTES, b"b" * NBYTES))
    new.replace(shard)
    assert Counter(sample["text"][0] for sample in dataset)["b"] > 20
    shard.write_bytes(shard.read_bytes().replace(b"b" * NBYTES, b"c" * NBYTES))
    assert {sample["text"][0] for sample in dataset} == {"a", "c"}
    shard.unlink()
    with pytest.raises(BlobNotFoundError, match=shard.name):
        list(dataset)


def test_an_epoch_that_fails_leaves_nothing_open(written: Path, tmp_path: Path) -> None:
    before = open_shards()
    dataset = StreamingDataset(
        local=written, batch_size=8, transform=lambda sample: 1 // (200 - sample["number"])
    )
    with pytest.raises(ZeroDivisionError):
        list(dataset)
    assert open_shards() == before


@pytest.mark.parametrize("where", ["transform", "filter", "get"])
@pytest.mark.parametrize("is_in_piece", [True, False])
def test_who_keeps_an_error_of_a_bad_sample_keeps_no_shard_open(
    written: Path, where: str, is_in_piece: bool
) -> None:
    kept = ValueError("no")

    def raises(sample: dict[str, Any]) -> Any:
        if sample["number"] in (7, 150):
            raise kept
        return sample

    class Getting(StreamingDataset):
        def __getitem__(self, sample: int) -> Any:
            return raises(super().__getitem__(sample))

    before = open_shards()
    kind = Getting if where == "get" else StreamingDataset
    options: dict[str, Any] = {} if where == "get" else {where: raises}
    dataset = kind(local=written, shuffle=True, batch_size=8, on_error="skip", error_limit=2, **options)
    if is_in_piece:
        assert len(list(dataset)) == COUNT - 2
    else:
        assert sum(len(batch["number"]) for batch in StreamingDataLoader(dataset)) == COUNT - 2
    assert open_shards() > before
    del dataset
    assert open_shards() <= before


class Loop:
    """A training loop that knows itself and its iterator, as those of frameworks do."""

    def __init__(self, dataset: StreamingDataset, steps: int) -> None:
        self.itself = self
        self.samples = iter(dataset)
        for _ in range(steps):
            next(self.samples)


@pytest.mark.parametrize("nbytes", [20, NBYTES])
@pytest.mark.parametrize("is_remote", [False, True])
@pytest.mark.parametrize("loops", [1, 3])
def test_iterations_that_are_garbage_leave_nothing_that_cannot_be_read(
    tmp_path: Path, nbytes: int, is_remote: bool, loops: int
) -> None:
    place = tmp_path / "set"
    with MDSWriter(
        out=place, columns={"blob": "bytes", "number": "int"}, size_limit=20 * nbytes + 400
    ) as writer:
        for number in range(COUNT):
            writer.write({"blob": number.to_bytes(2, "little") * (nbytes // 2), "number": number})
    options: dict[str, Any] = {"local": place, "shuffle": True, "batch_size": 8}
    if is_remote:
        options |= {"local": tmp_path / "cache", "remote": place.as_uri()}
    before = open_shards()
    dataset, other = StreamingDataset(**options), StreamingDataset(**options)

    def whole(samples: Any) -> bool:
        found = [(sample["number"], int.from_bytes(sample["blob"][:2], "little")) for sample in samples]
        return sorted(found) == [(number, number) for number in range(COUNT)]

    for steps in (1, 70, 150):
        for _ in range(loops):
            Loop(dataset, steps)  # each replaces the one before, though that has not been collected
        gc.collect()
        # They get the numbers of what was closed.
        others = [os.open(os.devnull, os.O_RDONLY) for _ in range(50)]
        assert whole(dataset)
        Loop(other, steps)
        samples = iter(dataset)
        first = next(samples)
        gc.collect()  # amid an epoch
        assert whole([first, *samples])
        for each in others:
            os.close(each)  # and nobody else has closed one
    del dataset, other, samples
    assert open_shards() <= before


def test_what_lies_in_a_cache_may_be_evicted_after_an_epoch(written: Path, tmp_path: Path) -> None:
    dataset = StreamingDataset(remote=written.as_uri(), local=tmp_path / "cache", batch_size=8)
    before = open_shards()
    assert numbers_of(dataset) == list(range(COUNT))
    assert open_shards() == before


@pytest.mark.parametrize(("memory", "read_through"), [(1 << 40, True), (4 << 20, False)])
def test_files_are_read_through_where_memory_can_keep_what_is_live(
    written: Path, memory: int, read_through: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "memory_nbytes", lambda: memory)
    monkeypatch.setattr(RawFile, "is_cached", lambda _: False)
    monkeypatch.setattr(shard_reader, "_ADVISED_ROW_NBYTES", NBYTES)
    monkeypatch.setattr(raw_file, "is_local_device", lambda _: True)
    given: list[bool] = []
    make = RawFile.__init__

    def noted(self: RawFile, *arguments: Any, **options: Any) -> None:
        given.append(options["read_through"])
        make(self, *arguments, **options)

    monkeypatch.setattr(RawFile, "__init__", noted)
    before = open_shards()
    dataset = StreamingDataset(local=written, shuffle=True, batch_size=8)
    for epoch in (1, 2):  # opened anew, as what was not in the page cache may be there now
        assert sorted(numbers_of(dataset)) == list(range(COUNT))
        assert given == [read_through] * dataset.num_shards * epoch
    assert open_shards() <= before
    assert dataset[7]["number"] == 7
    assert given[-1] is False


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_opens_its_own(written: Path) -> None:
    dataset = StreamingDataset(local=written, batch_size=8)
    assert len(numbers_of(dataset)) == COUNT
    spare = dataset._pool._spare
    assert spare is not None
    child = os.fork()
    if not child:
        os._exit(int(dataset._pool.take(*spare[0][1:2], read_through=spare[0][2]) is spare[1]))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert dataset._pool.take(*spare[0][1:2], read_through=spare[0][2]) is spare[1]

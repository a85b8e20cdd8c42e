"""``on_error``, ``filter``, ``error_limit``: fewer samples or other ones, but never another number of batches."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from streamshard import Stream, StreamingDataLoader, StreamingDataset, World
from streamshard.dataset.tolerance import Tolerance
from streamshard.errors import (
    AccessDeniedError,
    BadSamplesError,
    BlobNotFoundError,
    FormatError,
    StateError,
    StorageError,
)
from streamshard.read import raw_file
from streamshard.storage.cache import NodeCache
from streamshard.testing import assert_resumes_exactly
from tests.support import damage
from tests.support.loading import make_loader, text_dataset
from tests.support.ranks import Job, lines_of
from tests.support.small_datasets import write_dataset
from tests.support.spoiled import (
    BAD,
    CUT,
    GOOD,
    MISSING,
    PER_SHARD,
    SAMPLES,
    Read,
    Twins,
    is_wanted,
    loader_of,
    numbers,
    read,
    real,
    write_twins,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata 0.11 with torch 2.13
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]

WANTED = frozenset(number for number in range(SAMPLES) if is_wanted({"number": number}))


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Twins:
    return write_twins(tmp_path_factory.mktemp("twins"))


def world_of(directory: Path, ranks: int, **arguments: Any) -> list[Read]:
    return [read(loader_of(directory, rank, ranks, **arguments)) for rank in range(ranks)]


RULES: list[tuple[dict[str, Any], frozenset[int]]] = [
    ({"on_error": "skip"}, GOOD),
    ({"on_error": "replace"}, GOOD),
    ({"on_error": "skip", "filter": is_wanted}, GOOD & WANTED),
    ({"on_error": "replace", "filter": is_wanted}, GOOD & WANTED),
]
WORLDS = [
    pytest.param(
        ranks,
        workers,
        id=f"{ranks}x{workers}",
        marks=[pytest.mark.slow] if workers and ranks != 2 else [],
    )
    for ranks in (1, 2, 3, 4)
    for workers in (0, 2)
]


@pytest.mark.parametrize(("rules", "given"), RULES, ids=["skip", "replace", "skip+filter", "replace+filter"])
@pytest.mark.parametrize(("ranks", "workers"), WORLDS)
def test_every_batch_is_what_the_rule_makes_of_the_sound_one(
    twins: Twins, ranks: int, workers: int, rules: dict[str, Any], given: frozenset[int]
) -> None:
    sound = world_of(twins.sound, ranks)
    spoiled = world_of(twins.spoiled, ranks, workers=workers, **rules)
    assert {len(each.batches) for each in spoiled} == {len(sound[0].batches)}
    for before, after in zip(sound, spoiled, strict=True):
        for whole, batch in zip(before.batches, after.batches, strict=True):
            assert batch
            assert set(batch) <= given
            kept = [number for number in whole if number in given]
            if rules["on_error"] == "replace":
                assert len(batch) == len(whole)
                assert [new for old, new in zip(whole, batch, strict=True) if old in given] == kept
            elif kept:
                assert batch == kept
            else:
                assert len(batch) == 1
    everything = [number for step in real(spoiled) for number in step]
    assert set(everything) == given
    # All ranks together have counted each bad sample once, and each pad once more.
    padding = sum(each.padding[-1] for each in sound)
    bad, filtered = (sum(each.left_out[kind] for each in spoiled) for kind in (0, 1))
    assert len(BAD) <= bad <= len(BAD) + padding
    if "filter" in rules:
        assert len(GOOD - WANTED) <= filtered <= len(GOOD - WANTED) + padding


@pytest.mark.parametrize("filtering", [False, True])
def test_replace_gives_every_world_the_same_global_batches(twins: Twins, filtering: bool) -> None:
    rules: dict[str, Any] = {"on_error": "replace", "filter": is_wanted if filtering else None}
    alone = real(world_of(twins.spoiled, 1, **rules))
    assert Counter(number for batch in alone for number in batch).total() == SAMPLES
    for ranks in (2, 3, 4):
        assert real(world_of(twins.spoiled, ranks, **rules)) == alone


def test_replace_spreads_the_replacements_over_many_samples(twins: Twins) -> None:
    (whole,) = world_of(twins.spoiled, 1, on_error="replace")
    often = Counter(number for batch in whole.batches for number in batch)
    assert sum(count - 1 for count in often.values()) == len(BAD)
    assert max(often.values()) <= 3


@pytest.mark.parametrize("mode", ["skip", "replace"])
@pytest.mark.parametrize(("first", "second", "workers"), [(2, 3, 0), (4, 1, 0), (1, 2, 2)])
def test_another_world_goes_on_amid_the_epoch(
    twins: Twins, mode: str, first: int, second: int, workers: int
) -> None:
    arguments: dict[str, Any] = {"on_error": mode, "filter": is_wanted}
    begun = [loader_of(twins.spoiled, rank, first, workers=workers, **arguments) for rank in range(first)]
    head = [read(loader, steps=4) for loader in begun]
    state = json.loads(json.dumps(begun[0].state_dict()))
    assert state["left_out"] == {"bad": head[0].left_out[0], "filtered": head[0].left_out[1]}
    positions = {loader.state_dict()["position"] for loader in begun}
    assert positions == {4 * 24}
    goes_on = [loader_of(twins.spoiled, rank, second, workers=workers, **arguments) for rank in range(second)]
    for loader in goes_on:
        loader.load_state_dict(state)
        assert tuple(loader.left_out) == head[0].left_out
        assert loader.state_dict() == state
    tail = [read(loader) for loader in goes_on]
    joined = [number for step in real(head) + real(tail) for number in step]
    assert set(joined) == GOOD & WANTED
    if mode == "replace":
        assert real(head) + real(tail) == real(world_of(twins.spoiled, 1, **arguments))
    assert all(after.left_out >= head[0].left_out for after in tail)
    # The next epoch counts from 0, and the end of an epoch is the next one's start.
    assert "left_out" not in goes_on[0].state_dict()
    iterator = iter(goes_on[0])
    next(iterator)
    assert sum(goes_on[0].left_out) <= 24 // second


def test_the_count_is_of_what_was_received_not_of_what_was_read_ahead(twins: Twins) -> None:
    ahead = loader_of(twins.spoiled, on_error="skip", workers=2, prefetch_factor=4)
    here = loader_of(twins.spoiled, on_error="skip")
    one, other = iter(ahead), iter(here)
    total = 0
    for _ in range(len(here)):
        batch = next(one)
        assert batch == next(other)
        total += 24 - len(batch)
        assert ahead.left_out == here.left_out == (total, 0)
        assert ahead.state_dict() == here.state_dict()
    assert total == len(BAD)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["skip", "replace"])
def test_loaders_resume_exactly_everywhere(twins: Twins, mode: str) -> None:
    def make(world: World) -> StreamingDataLoader:
        return loader_of(
            twins.spoiled, world.rank, world.world_size, on_error=mode, filter=is_wanted, global_batch_size=40
        )

    assert_resumes_exactly(lambda: make(World(0, 1)))
    assert_resumes_exactly(lambda world: make(world), epochs=1)


@pytest.mark.parametrize("kind", ["error_limit", "report", "on_error", "filter"])
def test_wrong_arguments_are_refused(twins: Twins, kind: str) -> None:
    wrong: dict[str, list[Any]] = {
        "error_limit": [-1, 1.5, float("nan"), float("inf"), True, "1%"],
        "report": ["s3://bucket/report"],
        "on_error": ["ignore", None],
        "filter": [3],
    }
    for value in wrong[kind]:
        with pytest.raises((ValueError, TypeError), match=kind):
            StreamingDataset(local=twins.sound, **{"on_error": "skip", kind: value})
    with pytest.raises(ValueError, match="report="):
        StreamingDataset(local=twins.sound, report="reports")


# What is a bad sample, and what never is


class Chooses:
    """A function of the user that raises an error on sample 7."""

    def __init__(self, error: BaseException | None) -> None:
        self._error = error

    def __call__(self, sample: dict[str, Any]) -> Any:
        if self._error is not None and sample["number"] == 7:
            raise self._error
        return sample


@pytest.mark.parametrize("where", ["transform", "filter"])
@pytest.mark.parametrize(
    "error", [ValueError("no"), KeyError("x"), OSError("cannot identify image file"), StopIteration()]
)
def test_what_a_users_function_raises_is_a_bad_sample(twins: Twins, where: str, error: Exception) -> None:
    for mode in ("skip", "replace"):
        got = read(loader_of(twins.sound, on_error=mode, error_limit=1, **{where: Chooses(error)}))
        assert {number for batch in got.batches for number in batch} == set(range(SAMPLES)) - {7}
        assert got.left_out == (1, 0)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        TimeoutError("slow"),
        ConnectionResetError("gone"),
        PermissionError("not yours"),
        OSError(28, "No space left on device"),
        StorageError("503 after 6 attempts"),
        AccessDeniedError("403"),
        StateError("of another run"),
        KeyboardInterrupt(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_says_nothing_about_the_sample_is_always_raised(twins: Twins, error: BaseException) -> None:
    for where in ("transform", "filter"):
        loader = loader_of(twins.sound, on_error="skip", error_limit=100, **{where: Chooses(error)})
        with pytest.raises(type(error)):
            read(loader)


def test_an_outage_is_not_skipped(twins: Twins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def down(self: NodeCache, directory: Any, blob: Any, heart: Any) -> int:
        raise StorageError(f"{blob.name}: 503 after 6 attempts")

    monkeypatch.setattr(NodeCache, "_fetch", down)
    place = {"remote": twins.sound.as_uri(), "local": tmp_path / "cache"}
    for mode in ("skip", "replace"):
        with pytest.raises(StorageError, match="503"):
            read(loader_of(twins.sound, **place, on_error=mode, error_limit=SAMPLES))


def test_a_shard_that_may_not_be_read_is_not_skipped(twins: Twins, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = raw_file._opened

    def denied(path: Path | str, shard: str) -> int:
        if shard == "shard.00002.mds":
            raise AccessDeniedError(f"shard {shard!r}: no permission to read {path}")
        return opened(path, shard)

    monkeypatch.setattr(raw_file, "_opened", denied)
    with pytest.raises(AccessDeniedError, match="no permission"):
        read(loader_of(twins.sound, on_error="skip", error_limit=SAMPLES))


@pytest.mark.parametrize("mode", ["skip", "replace"])
def test_a_picture_that_does_not_decode(tmp_path: Path, mode: str) -> None:
    from PIL import Image

    pictures = [{"number": number, "image": Image.new("RGB", (4, 4), (number, 0, 0))} for number in range(40)]
    write_dataset(tmp_path, pictures, {"number": "int", "image": "png"}, samples_per_shard=20)
    path = damage.shard_path(tmp_path, 1)
    before, mark, after = path.read_bytes().partition(b"\x89PNG")
    path.write_bytes(before + b"\0" * len(mark) + after)
    report = tmp_path / "report"
    got = read(loader_of(tmp_path, on_error=mode, global_batch_size=8, report=report))
    assert {number for batch in got.batches for number in batch} == set(range(40)) - {20}
    assert got.left_out == (1, 0)
    (line,) = (report / "bad-samples.rank00000.jsonl").read_text().splitlines()
    assert "'image'" in json.loads(line)["cause"]["message"]


@pytest.mark.parametrize("mode", ["skip", "replace"])
def test_compressed_shards_that_do_not_unpack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setenv("STREAMSHARD_CACHE", str(tmp_path / "cache"))
    directory = text_dataset(tmp_path / "set", 60, compression="zstd", hashes=())
    packed = directory / "shard.00003.mds.zstd"
    packed.write_bytes(b"\0" * packed.stat().st_size)
    got = read(loader_of(directory, on_error=mode, download_retry=0))
    assert {number for batch in got.batches for number in batch} == set(range(60)) - set(range(30, 40))
    assert got.left_out == (10, 0)


# Through a cache


@pytest.mark.parametrize(("mode", "workers"), [("skip", 0), ("replace", 2)])
@pytest.mark.parametrize(
    ("harm", "limit"),
    [(damage.remove, None), (damage.truncate, None), (damage.flip_bit, None), (damage.remove, "4kb")],
    ids=["missing", "cut", "damaged", "missing, in a cache with a limit"],
)
def test_a_shard_that_cannot_be_fetched_is_asked_for_once_an_epoch(
    twins: Twins,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    harm: Any,
    mode: str,
    workers: int,
    limit: str | None,
) -> None:
    directory = Path(shutil.copytree(twins.sound, tmp_path / "set"))
    harm(directory, 4)
    harm(directory, 9)
    asked = tmp_path / "asked"
    fetch = NodeCache._fetch

    def noting(self: NodeCache, directory: Any, blob: Any, heart: Any) -> int:
        with asked.open("a") as log:
            log.write(f"{os.getpid()} {blob.name}\n")
        return fetch(self, directory, blob, heart)

    monkeypatch.setattr(NodeCache, "_fetch", noting)
    place = {"remote": directory.as_uri(), "local": tmp_path / "cache", "download_retry": 0}
    loader = loader_of(directory, **place, on_error=mode, workers=workers, cache_limit=limit)
    lost = {number for number in range(SAMPLES) if number // PER_SHARD in (4, 9)}
    for _ in range(2):
        asked.write_text("")
        got = read(loader)
        assert {number for batch in got.batches for number in batch} == set(range(SAMPLES)) - lost
        assert got.left_out == (len(lost), 0)
        # Where there is a limit, good shards are evicted and fetched again.
        lines = [line for line in asked.read_text().splitlines() if limit is None or "shard.00004" in line]
        assert any("shard.00004" in line for line in lines)
        assert len(lines) == len(set(lines))


def test_two_streams_are_replaced_from_their_own(twins: Twins, tmp_path: Path) -> None:
    other = text_dataset(tmp_path / "other", 120)
    streams = [Stream(local=twins.spoiled, name="first"), Stream(local=other)]
    rules: dict[str, Any] = {"streams": streams, "on_error": "replace"}
    dataset = StreamingDataset(
        streams=streams, shuffle=True, batch_size=24, on_error="replace", error_limit=99
    )
    loader = StreamingDataLoader(dataset, collate_fn=texts)
    seen = Counter(text for batch in loader for text in batch)
    assert seen.total() == SAMPLES + 120
    sizes = [real([read(loader_of(twins.spoiled, rank, 3, **rules)) for rank in range(3)])]
    assert sizes[0] == real([read(loader_of(twins.spoiled, **rules))])


def texts(samples: list[dict[str, Any]]) -> list[str]:
    return [sample["id"] for sample in samples]


# Kinds of reading


def doubled(columns: dict[str, Any]) -> list[int]:
    return (columns["number"] * 2).tolist()


def columns_wanted(row: dict[str, Any]) -> bool:
    assert type(row["number"]) is int
    assert row["id"] == f"a{row['number']}"
    return is_wanted(row)


@pytest.mark.parametrize("mode", ["skip", "replace"])
@pytest.mark.parametrize("wanted", [None, columns_wanted])
@pytest.mark.parametrize("kind", ["streaming", "plain"])
@pytest.mark.parametrize("twin", ["sound", "spoiled"])
def test_columns_of_a_batch_are_those_of_its_samples(
    twins: Twins, twin: str, mode: str, wanted: Any, kind: str
) -> None:
    rules: dict[str, Any] = {"on_error": mode, "filter": wanted, "error_limit": 0.5}
    directory = getattr(twins, twin)
    expected = read(loader_of(directory, **rules)).batches
    dataset = StreamingDataset(local=directory, shuffle=True, batch_size=24, batch_transform=doubled, **rules)
    loader = StreamingDataLoader(dataset) if kind == "streaming" else DataLoader(dataset, batch_size=None)
    got = [[number // 2 for number in batch] for batch in map(list, loader)]
    assert [[int(number) for number in batch] for batch in got] == expected


def fails(columns: dict[str, Any]) -> Any:
    raise ValueError("no batch is good enough")


def test_a_batch_transform_that_raises_ends_the_run(twins: Twins) -> None:
    dataset = StreamingDataset(
        local=twins.sound, batch_size=24, batch_transform=fails, on_error="skip", error_limit=0.9
    )
    with pytest.raises(ValueError, match="good enough"):
        list(StreamingDataLoader(dataset))


class Counting(StreamingDataset):
    """A dataset of the user's own class that cannot make sample 11."""

    def get_item(self, sample_id: int) -> Any:
        if sample_id == 11:
            raise ArithmeticError("eleven")
        return super().get_item(sample_id)


class Indexing(StreamingDataset):
    """The same by the other method."""

    def __getitem__(self, at: Any) -> Any:
        if at == 11:
            raise ArithmeticError("eleven")
        return super().__getitem__(at)


@pytest.mark.parametrize("own", [Counting, Indexing])
@pytest.mark.parametrize(("mode", "workers"), [("skip", 0), ("replace", 2)])
def test_a_class_with_its_own_samples(
    twins: Twins, own: type[StreamingDataset], mode: str, workers: int
) -> None:
    dataset = own(
        local=twins.spoiled, shuffle=True, batch_size=24, on_error=mode, filter=is_wanted, error_limit=0.5
    )
    got = read(StreamingDataLoader(dataset, num_workers=workers, collate_fn=numbers))
    assert {number for batch in got.batches for number in batch} == (GOOD & WANTED) - {11}
    assert got.left_out == (len(BAD) + 1, len(GOOD - WANTED - {11}))


@pytest.mark.slow
def test_spawned_workers_do_the_same(twins: Twins) -> None:
    rules: dict[str, Any] = {"on_error": "replace", "filter": is_wanted}
    spawned = loader_of(twins.spoiled, workers=1, multiprocessing_context="spawn", **rules)
    assert read(spawned) == read(loader_of(twins.spoiled, **rules))


def test_workers_that_are_kept_count_each_epoch_anew(twins: Twins) -> None:
    loader = loader_of(twins.spoiled, on_error="skip", workers=2, persistent_workers=True)
    for _ in range(2):
        got = read(loader)
        assert got.left_out == (len(BAD), 0)
        assert {number for batch in got.batches for number in batch} == GOOD


def test_random_access_is_not_sifted(twins: Twins) -> None:
    dataset = StreamingDataset(local=twins.spoiled, on_error="skip", filter=is_wanted)
    assert dataset[0]["number"] == 0  # not wanted, and given
    with pytest.raises(FormatError, match="row 3"):
        dataset[3]
    with pytest.raises(BlobNotFoundError):
        dataset[MISSING * PER_SHARD]


# Filters alone


@pytest.mark.parametrize("workers", [0, 2])
def test_a_filter_alone_leaves_out_and_still_raises(twins: Twins, workers: int) -> None:
    got = read(loader_of(twins.sound, filter=is_wanted, workers=workers))
    assert sorted(number for batch in got.batches for number in batch) == sorted(WANTED)
    assert got.left_out == (0, SAMPLES - len(WANTED))
    with pytest.raises(FormatError, match="row 3"):
        read(loader_of(twins.spoiled, shuffle=False, filter=is_wanted, workers=workers))


def test_a_filter_alone_gives_the_batches_before_the_bad_one(twins: Twins, tmp_path: Path) -> None:
    directory = text_dataset(tmp_path / "set", 100)
    damage.spoil_row(directory, 5, 5)
    seen = []
    with pytest.raises(FormatError, match=r"shard\.00005\.mds', row 5"):  # noqa: PT012 the loop is what is tested
        for batch in loader_of(directory, shuffle=False, filter=is_wanted, global_batch_size=10):
            seen.append(batch)
    assert [len(batch) for batch in seen] == [7] * 5


def only_first(sample: dict[str, Any]) -> bool:
    return sample["number"] == 0


def test_a_strict_filter_still_fills_each_batch(twins: Twins) -> None:
    got = read(loader_of(twins.sound, filter=only_first))
    assert got.batches == [[0]] * len(got.batches)


def nothing(sample: Any) -> bool:
    return False


@pytest.mark.parametrize("mode", ["raise", "skip", "replace"])
def test_a_filter_that_keeps_nothing_is_an_error(twins: Twins, mode: str) -> None:
    with pytest.raises(BadSamplesError, match="what does filter= keep"):
        read(loader_of(twins.sound, filter=nothing, on_error=mode))


# Too many


def always_fails(sample: Any) -> Any:
    raise ValueError("rotten")


@pytest.mark.parametrize("mode", ["skip", "replace"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_with_nothing_good_ends_at_once(twins: Twins, mode: str, workers: int) -> None:
    loader = loader_of(twins.sound, on_error=mode, transform=always_fails, error_limit=10**9, workers=workers)
    with pytest.raises(BadSamplesError, match=r"nothing can take the place of.*rotten"):
        read(loader)
    loader = loader_of(twins.sound, on_error=mode, transform=always_fails, error_limit=0.05, workers=workers)
    words = r"error_limit=0\.05 tolerates 12 in the whole epoch.*rotten" if mode == "skip" else "rotten"
    with pytest.raises(BadSamplesError, match=words):
        read(loader)


def test_a_dataset_without_any_shard_ends_at_once(tmp_path: Path) -> None:
    directory = text_dataset(tmp_path / "set", 60)
    for shard in range(6):
        damage.remove(directory, shard)
    with pytest.raises(BadSamplesError, match=r"6 shards cannot be had.*no file"):
        read(loader_of(directory, on_error="replace", error_limit=100))


@pytest.mark.parametrize("workers", [0, 2])
def test_the_run_stops_at_the_batch_that_passes_the_limit(twins: Twins, workers: int) -> None:
    whole = read(loader_of(twins.spoiled, on_error="skip"))
    bad_in = [24 - len(batch) for batch in whole.batches]
    for limit in (0, bad_in[0], len(BAD) - 1):
        stops = next(step for step in range(len(bad_in)) if sum(bad_in[: step + 1]) > limit)
        loader = loader_of(twins.spoiled, on_error="skip", error_limit=limit, workers=workers)
        seen = []
        with pytest.raises(BadSamplesError, match=f"tolerates {limit} "):  # noqa: PT012 the loop is tested
            for batch in loader:
                seen.append(batch)
        assert seen == whole.batches[:stops]
        state = loader.state_dict()
        assert state["position"] == 24 * stops
        # A run that goes on from there remembers the count.
        again = loader_of(twins.spoiled, on_error="skip", error_limit=limit)
        again.load_state_dict(state)
        assert tuple(again.left_out) == (sum(bad_in[:stops]), 0)
        with pytest.raises(BadSamplesError):
            next(iter(again))
    enough = loader_of(twins.spoiled, on_error="skip", error_limit=len(BAD), workers=workers)
    assert read(enough) == whole


def test_the_limit_is_one_in_a_hundred_unless_told_otherwise(tmp_path: Path) -> None:
    directory = text_dataset(tmp_path / "set", 200)
    damage.spoil_row(directory, 3, 3)
    damage.spoil_row(directory, 9, 3)
    dataset = StreamingDataset(local=directory, on_error="skip", batch_size=10)
    assert sum(len(batch) for batch in StreamingDataLoader(dataset, collate_fn=numbers)) == 198
    damage.spoil_row(directory, 15, 3)
    with pytest.raises(BadSamplesError, match=r"3 bad samples here.*error_limit=0\.01 tolerates 2"):
        list(StreamingDataLoader(dataset, collate_fn=numbers))


@pytest.mark.parametrize(
    ("limit", "samples", "most"), [(0.07, 100, 7), (0.07, 101, 8), (0.29, 100, 29), (1e-9, 100, 1), (7, 5, 7)]
)
def test_a_share_of_the_epoch_is_rounded_up_but_not_beyond_what_it_says(
    limit: float, samples: int, most: int
) -> None:
    assert Tolerance(error_limit=limit).most_bad(samples) == most


def test_bad_samples_within_the_limit_stop_no_rank_that_has_them_all(tmp_path: Path) -> None:
    # Without a shuffle, rank 3 of 8 reads the shards 3, 11, 19, 27 and 35.
    arguments: dict[str, Any] = {"on_error": "skip", "error_limit": 0.025, "global_batch_size": 80}
    one_shard = text_dataset(tmp_path / "one", 400)
    damage.remove(one_shard, 19)
    some_rows = text_dataset(tmp_path / "some", 400)
    for shard in (3, 11, 19, 27):
        damage.spoil_row(some_rows, shard, 5)
    for directory, bad in ((one_shard, 10), (some_rows, 4)):
        reads = world_of(directory, 8, shuffle=False, **arguments)
        assert [each.left_out[0] for each in reads] == [0, 0, 0, bad, 0, 0, 0, 0]
        assert [len(each.batches) for each in reads] == [5] * 8


def one_in_five_fails(sample: dict[str, Any]) -> Any:
    if sample["number"] % 5 == 0:
        raise ValueError("rotten")
    return sample


def test_many_ranks_see_a_rotten_dataset_although_none_has_all_bad_samples(tmp_path: Path) -> None:
    directory = text_dataset(tmp_path / "set", 800)
    arguments: dict[str, Any] = {"on_error": "skip", "global_batch_size": 80, "transform": one_in_five_fails}
    for rank in range(16):
        with pytest.raises(BadSamplesError, match="one of 16 readers"):
            read(loader_of(directory, rank, 16, error_limit=0.03, **arguments))
        assert len(read(loader_of(directory, rank, 16, error_limit=0.3, **arguments)).batches) == 10


# States


def test_damaged_counts_in_a_state_are_refused(twins: Twins) -> None:
    loader = loader_of(twins.spoiled, on_error="skip")
    read(loader, steps=3)
    state = loader.state_dict()
    assert set(state["left_out"]) == {"bad", "filtered"}
    fresh = loader_of(twins.spoiled, on_error="skip")
    for wrong in (
        3, None, {}, {"bad": 1}, {"bad": -1, "filtered": 0}, {"bad": True, "filtered": 0},
        {"bad": 1.0, "filtered": 0}, {"bad": 1 << 60, "filtered": 0}, {"bad": 0, "filtered": 0, "more": 1},
    ):  # fmt: skip
        with pytest.raises(StateError, match="left_out"):
            fresh.load_state_dict({**state, "left_out": wrong})
    # A dataset that is strict now takes the position and drops the count.
    strict = loader_of(twins.sound)
    strict.load_state_dict(state)
    assert "left_out" not in strict.state_dict()
    assert strict.state_dict()["position"] == 72


def test_a_state_of_a_sound_run_is_as_before(twins: Twins) -> None:
    plain, tolerant = loader_of(twins.sound), loader_of(twins.sound, on_error="replace")
    for loader in (plain, tolerant):
        read(loader, steps=2)
    assert plain.state_dict() == tolerant.state_dict()
    assert plain.left_out == tolerant.left_out == (0, 0)


def test_another_place_in_the_epoch_forgets_the_loaded_count(twins: Twins) -> None:
    loader = loader_of(twins.spoiled, on_error="skip")
    read(loader, steps=5)
    state = loader.state_dict()
    loader.load_state_dict(state)
    loader.dataset.set_epoch(0)
    assert loader.left_out == (0, 0)
    assert read(loader).left_out == (len(BAD), 0)


def test_a_pickled_loader_keeps_the_count(twins: Twins) -> None:
    loader = loader_of(twins.spoiled, on_error="skip")
    read(loader, steps=5)
    copy = pickle.loads(pickle.dumps(loader))
    assert copy.left_out == loader.left_out != (0, 0)


# Sample by sample: a plain DataLoader, torchdata's, the dataset itself


@pytest.mark.parametrize("mode", ["skip", "replace"])
@pytest.mark.parametrize("workers", [0, 2])
def test_torchdatas_loader_goes_on_exactly(twins: Twins, mode: str, workers: int) -> None:
    arguments: dict[str, Any] = {
        "local": twins.spoiled, "shuffle": True, "batch_size": 10, "on_error": mode, "filter": is_wanted,
        "error_limit": 0.5,
    }  # fmt: skip
    settings = {"num_workers": workers, "collate_fn": numbers}
    whole = list(make_loader("stateful", StreamingDataset(**arguments), 10, **settings))
    assert {number for batch in whole for number in batch} == GOOD & WANTED
    for steps in (1, 5, len(whole) - 1):
        first = make_loader("stateful", StreamingDataset(**arguments), 10, **settings)
        iterator = iter(first)
        head = [next(iterator) for _ in range(steps)]
        state = first.state_dict()
        del iterator
        second = make_loader("stateful", StreamingDataset(**arguments), 10, **settings)
        second.load_state_dict(state)
        assert head + list(second) == whole


@pytest.mark.parametrize("mode", ["skip", "replace"])
def test_the_dataset_itself_goes_on_exactly_after_each_sample(twins: Twins, mode: str) -> None:
    def fresh() -> StreamingDataset:
        return StreamingDataset(
            local=twins.spoiled, shuffle=True, batch_size=24, on_error=mode, filter=is_wanted, error_limit=0.5
        )

    whole = [sample["number"] for sample in fresh()]
    assert set(whole) == GOOD & WANTED
    for taken in (0, 1, 9, 23, 24, 50, 111, len(whole) - 1):
        dataset = fresh()
        iterator = iter(dataset)
        head = [next(iterator)["number"] for _ in range(taken)]
        state = json.loads(json.dumps(dataset.state_dict()))
        del iterator
        again = fresh()
        again.load_state_dict(state)
        assert head + [sample["number"] for sample in again] == whole
    dataset = fresh()
    list(dataset)
    assert dataset.state_dict()["epoch"] == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_a_plain_loader_gives_the_same_number_of_batches_with_replace(twins: Twins, workers: int) -> None:
    lengths, seen = set(), set()
    for rank in range(3):
        dataset = StreamingDataset(
            local=twins.spoiled, world=World(rank, 3), batch_size=8, on_error="replace", error_limit=0.5
        )
        batches = list(DataLoader(dataset, 8, num_workers=workers, collate_fn=numbers))
        lengths.add(len(batches))
        seen |= {number for batch in batches for number in batch}
        assert all(len(batch) == 8 for batch in batches)
        state = dataset.state_dict(num_samples=2 * 24, from_beginning=True)
        assert state["position"] == 48
    assert lengths == {10}
    assert seen == GOOD


def test_a_plain_loader_on_several_ranks_is_warned_of_skip(twins: Twins) -> None:
    dataset = StreamingDataset(
        local=twins.spoiled, world=World(0, 2), batch_size=8, on_error="skip", error_limit=0.5
    )
    with pytest.warns(UserWarning, match="use StreamingDataLoader"):
        iter(dataset)


# The report of the field


def raises_on_seven(sample: dict[str, Any]) -> Any:
    if sample["number"] == 7:
        raise ValueError("cannot be decoded")
    return sample


@pytest.mark.parametrize("mode", ["skip", "replace"])
@pytest.mark.parametrize("workers", [0, 2])
def test_b048_a_broken_sample_leaves_all_ranks_with_equal_batches(
    twins: Twins, mode: str, workers: int
) -> None:
    arguments: dict[str, Any] = {"transform": raises_on_seven, "workers": workers, "on_error": mode}
    reads = [read(loader_of(twins.sound, rank, 2, error_limit=0.01, **arguments)) for rank in range(2)]
    assert [len(each.batches) for each in reads] == [10, 10]
    seen = Counter(number for each in reads for batch in each.batches for number in batch)
    assert set(seen) == set(range(SAMPLES)) - {7}
    assert seen.total() == (SAMPLES - 1 if mode == "skip" else SAMPLES)
    assert [each.left_out for each in reads].count((1, 0)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["skip", "replace"])
def test_b048_ranks_that_wait_for_each_other_at_every_step_end_their_epochs(
    twins: Twins, tmp_path: Path, mode: str
) -> None:
    dataset = {"local": str(twins.spoiled), "shuffle": True, "on_error": mode, "error_limit": 0.5}
    options = {
        "dataset": dataset,
        "loader": {"kind": "streaming", "batch_size": 8, "num_workers": 1},
        "log": str(tmp_path / "log"),
        "epochs": 2,
        "collective": True,
    }
    with Job("train", 3, options) as job:
        job.wait()
    lines = [lines_of(tmp_path / f"log.{rank}") for rank in range(3)]
    assert [len(each) for each in lines] == [20, 20, 20]
    for epoch in range(2):
        seen = [
            number for each in lines for line in each if line["epoch"] == epoch for number in line["numbers"]
        ]
        assert set(seen) == GOOD


def test_the_cut_shard_is_cut(twins: Twins) -> None:
    with pytest.raises(FormatError, match=f"shard.{CUT:05d}.mds"):
        StreamingDataset(local=twins.spoiled)[CUT * PER_SHARD]


def test_the_example_of_the_page_runs(
    twins: Twins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "bad-samples.md").read_text()
    (example,) = page.split("```python\n")[1:]
    shutil.copytree(twins.sound, tmp_path / "data")
    damage.spoil_row(tmp_path / "data", 3, 3)
    monkeypatch.chdir(tmp_path)
    exec(compile(example.partition("```")[0], "bad-samples.md", "exec"), {})
    assert capsys.readouterr().out == "LeftOut(bad=1, filtered=0)\n"
    assert [path.name for path in (tmp_path / "reports").iterdir()] == ["bad-samples.rank00000.jsonl"]


def tripled(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "number": sample["number"] * 3, "done": True}


def is_wanted_and_not_done(sample: dict[str, Any]) -> bool:
    assert "done" not in sample
    return is_wanted(sample)


def test_the_filter_sees_samples_before_the_transform(twins: Twins) -> None:
    for mode in ("raise", "replace"):
        got = read(
            loader_of(
                twins.sound, filter=is_wanted_and_not_done, transform=tripled, on_error=mode, error_limit=0
            )
        )
        assert {number for batch in got.batches for number in batch} == {3 * number for number in WANTED}

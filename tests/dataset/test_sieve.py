"""Random damage and random filters against a plain list: what each feed of each worker of each world gives."""

from __future__ import annotations

import functools
import itertools
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data._utils.pin_memory import pin_memory

from streamshard import StreamingDataset, World
from streamshard.dataset.feed import Feed, Share
from streamshard.dataset.iteration import Iteration, go_on
from streamshard.dataset.left_out import CollateInside, Handed, Sifted
from streamshard.dataset.reading import read_columns, read_samples, read_singly
from streamshard.dataset.sieve import Sieve
from streamshard.dataset.tolerance import Tolerance
from tests.support import damage
from tests.support.loading import text_dataset

SAMPLES, PER_SHARD, SHARDS = 60, 5, 12


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return text_dataset(tmp_path_factory.mktemp("sound") / "set", SAMPLES, samples_per_shard=PER_SHARD)


class Case(NamedTuple):
    """One dataset and how it is read."""

    lost: frozenset[int]
    rows: frozenset[int]
    unwanted: frozenset[int]
    on_error: str
    batch: int
    start: int
    epoch: int
    shuffle: bool
    kind: str

    @property
    def bad(self) -> frozenset[int]:
        return self.rows | {number for number in range(SAMPLES) if number // PER_SHARD in self.lost}

    @property
    def given(self) -> frozenset[int]:
        return frozenset(range(SAMPLES)) - self.bad - self.unwanted

    def is_wanted(self, sample: dict[str, Any]) -> bool:
        return sample["number"] not in self.unwanted

    def dataset(self, directory: Path) -> StreamingDataset:
        return StreamingDataset(
            local=directory,
            shuffle=self.shuffle,
            global_batch_size=self.batch,
            on_error=self.on_error,
            filter=self.is_wanted,
        )


numbers_below = st.integers(0, SAMPLES - 1)
cases = st.builds(
    Case,
    lost=st.frozensets(st.integers(0, SHARDS - 1), max_size=3),
    rows=st.frozensets(numbers_below, max_size=12),
    unwanted=st.one_of(st.just(frozenset()), st.frozensets(numbers_below, max_size=25)),
    on_error=st.sampled_from(["skip", "replace"]),
    batch=st.integers(4, 20),
    start=st.integers(0, SAMPLES - 1),
    epoch=st.integers(0, 3),
    shuffle=st.booleans(),
    kind=st.sampled_from(["samples", "columns", "singly"]),
)


@functools.cache
def copied(sound: Path, lost: frozenset[int], rows: frozenset[int], into: str) -> Path:
    directory = Path(tempfile.mkdtemp(dir=into)) / "set"
    shutil.copytree(sound, directory)
    for row in rows:
        damage.spoil_row(directory, *divmod(row, PER_SHARD))
    for shard in lost:
        damage.remove(directory, shard)
    return directory


def numbers_in(columns: dict[str, Any]) -> list[int]:
    return list(columns["number"].tolist())


def number_in(sample: dict[str, Any]) -> int:
    return int(sample["number"])


class Readers:
    """The feeds of all workers of all ranks of one world, read one after another in this process."""

    def __init__(self, case: Case, dataset: StreamingDataset, ranks: int, workers: int) -> None:
        self.case = case
        self.dataset = dataset
        self.ranks = ranks
        self.workers = workers
        dataset._topology.given = World(0, ranks)
        self.plan, _ = dataset.plan(case.epoch, case.start)

    def share(self, rank: int, worker: int) -> Share:
        return Share(self.dataset._states.order, self.plan, self.case.epoch, rank, worker, self.workers)

    def feed(self, share: Share, shape: Any) -> Feed:
        case = self.case
        readings: dict[str, Callable[[], Any]] = {
            "samples": lambda: read_samples(number_in, one_by_one=False),
            "columns": lambda: read_columns(numbers_in, one_by_one=False),
            "singly": lambda: read_singly(self.dataset.__getitem__),
        }
        reading = readings[case.kind]()
        tolerance = Tolerance(case.on_error, case.is_wanted, error_limit=SAMPLES)
        sieve = Sieve(self.dataset._source, share, reading, tolerance, shape=shape, rank=share.rank)
        return Feed(self.dataset._source, share, reading, is_over=lambda: False, sieve=sieve)

    def handed(self, rank: int) -> Iterator[Handed]:
        """A rank's batches, its workers' in turn."""
        feeds = [iter(self.feed(self.share(rank, worker), "handed")) for worker in range(self.workers)]
        for feed in itertools.cycle(feeds):
            item = next(feed, None)
            if item is None:
                return
            handed, _ = item
            batch = [number if isinstance(number, int) else number["number"] for number in handed.batch]
            yield handed._replace(batch=batch)

    def sound(self, rank: int) -> list[tuple[list[int], int]]:
        """The batches that a dataset without a fault would give, and the padding of each."""
        plan = self.plan
        last = plan.rank_num_batches(rank)
        found = self.dataset._states.order.rank_batches(plan, self.case.epoch, 0, last, rank=rank)
        cuts = itertools.pairwise(found.bounds.tolist())
        return [
            (found.samples[begin:end].tolist(), int(padding))
            for (begin, end), padding in zip(cuts, found.padding.tolist(), strict=True)
        ]


def check_rank(case: Case, sound: list[tuple[list[int], int]], got: list[Handed]) -> None:
    assert len(got) == len(sound)
    for (whole, padding), handed in zip(sound, got, strict=True):
        bad = [number in case.bad for number in whole]
        unwanted = [number in case.unwanted - case.bad for number in whole]
        assert (handed.bad, handed.filtered) == (sum(bad), sum(unwanted))
        assert (handed.cause != "") == any(bad)
        stays = [number in case.given for number in whole]
        pads = [place >= len(whole) - padding for place in range(len(whole))]
        if case.on_error == "replace":
            assert len(handed.batch) == len(whole)
            assert handed.padding == padding
            assert all(
                new == old or not stay for new, old, stay in zip(handed.batch, whole, stays, strict=True)
            )
        elif any(stays):
            assert handed.batch == [number for number, stay in zip(whole, stays, strict=True) if stay]
            assert handed.padding == sum(map(all, zip(stays, pads, strict=True)))
        else:
            assert len(handed.batch) == 1
            assert handed.padding == pads[-1]
        assert set(handed.batch) <= case.given


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases, worlds=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=2, max_size=2))
def test_any_damage_in_any_world(
    sound: Path, tmp_path: Path, case: Case, worlds: list[tuple[int, int]]
) -> None:
    dataset = case.dataset(copied(sound, case.lost, case.rows, str(tmp_path)))
    steps_of_worlds = []
    for ranks, workers in worlds:
        readers = Readers(case, dataset, ranks, workers)
        reads = [list(readers.handed(rank)) for rank in range(ranks)]
        for rank in range(ranks):
            check_rank(case, readers.sound(rank), reads[rank])
        lengths = {len(batches) for batches in reads}
        assert lengths == {readers.plan.num_batches}
        steps_of_worlds.append(
            [
                Counter(
                    number
                    for batches in reads
                    for number in batches[step].batch[: len(batches[step].batch) - batches[step].padding]
                )
                for step in range(readers.plan.num_batches)
            ]
        )
    if case.on_error == "replace":
        assert steps_of_worlds[0] == steps_of_worlds[1]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases.filter(lambda case: case.kind != "columns"), taken=st.integers(0, SAMPLES), at=st.data())
def test_a_worker_goes_on_after_any_sample(
    sound: Path, tmp_path: Path, case: Case, taken: int, at: st.DataObject
) -> None:
    dataset = case.dataset(copied(sound, case.lost, case.rows, str(tmp_path)))
    ranks, workers = at.draw(st.tuples(st.integers(1, 3), st.integers(1, 2)))
    readers = Readers(case, dataset, ranks, workers)
    share = readers.share(at.draw(st.integers(0, ranks - 1)), at.draw(st.integers(0, workers - 1)))

    def deliver(share: Share, before: int = 0, drop: int = 0) -> tuple[Iteration, Iterator[Any]]:
        iteration = Iteration(dataset._turns.begin_here("test", handed_over=False), share, before)
        feed = readers.feed(share, "samples")
        return iteration, iteration.deliver(feed, whole=False, drop=drop, at_end=lambda: None)

    whole = list(deliver(share)[1])
    iteration, samples = deliver(share)
    head = list(itertools.islice(samples, taken))
    rest, before, drop = go_on(share, iteration.progress())
    goes_on, tail = deliver(rest, before, drop)
    assert head + list(tail) == whole
    assert goes_on.is_finished or not share.num_samples
    assert iteration.is_finished == (len(head) >= len(whole))


@given(st.data())
def test_places_to_come_count_what_was_left_out_with_the_sample_before(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 12))
    places = sorted(data.draw(st.sets(st.integers(0, size - 1), min_size=1)))
    to_come = Sifted(list(places), places, size).to_come()
    assert len(to_come) == len(places) + 1
    for taken in range(len(places) + 1):
        left = to_come[len(places) - taken]
        if taken == 0:
            assert left == size
        elif taken == len(places):
            assert left == 0
        else:
            assert left == size - (places[taken - 1] + 1)


class Pinnable:
    def __init__(self) -> None:
        self.pinned = False

    def pin_memory(self) -> Pinnable:
        self.pinned = True
        return self


def test_torch_pins_and_collates_what_a_worker_hands_over() -> None:
    handed = Handed(Pinnable(), 1, 2, 3, "cause")
    pinned = pin_memory(handed)
    assert isinstance(pinned, Handed)
    assert pinned[1:] == handed[1:]
    assert pinned.batch.pinned
    for collate in (CollateInside(sum), CollateInside(CollateInside(sum))):
        assert collate(Handed([1, 2], 0, 0, 0, "")) == Handed(3, 0, 0, 0, "")

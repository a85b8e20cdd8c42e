"""Which epoch comes next, in whatever process it is read; one iteration at a time."""

from __future__ import annotations

import copy
import gc
import itertools
import pickle
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from streamshard import StreamingDataLoader, StreamingDataset, World
from streamshard.dataset import handover
from streamshard.dataset.handover import MAX_WORKERS, Beginning, Handover
from streamshard.errors import StateError
from tests.support.pretended_ranks import SEED, loader_of, numbers, write_numbers

SAMPLES = 61


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_numbers(tmp_path_factory.mktemp("handover") / "set", [10] * 6 + [1])


@pytest.fixture(scope="module")
def epochs(directory: Path) -> list[list[list[int]]]:
    """Batches of the first ten epochs."""
    loader = loader_of(directory, batch_size=8)
    return [list(loader) for _ in range(10)]


def dataset_of(directory: Path, **arguments: Any) -> StreamingDataset:
    return StreamingDataset(
        **{"local": directory, "shuffle": True, "shuffle_seed": SEED, "batch_size": 8, **arguments}
    )


def plain(dataset: StreamingDataset, **arguments: Any) -> DataLoader[Any]:
    return DataLoader(dataset, 8, collate_fn=numbers, **arguments)


def streaming(dataset: StreamingDataset, **arguments: Any) -> StreamingDataLoader:
    return StreamingDataLoader(dataset, collate_fn=numbers, **arguments)


HOW: list[dict[str, Any]] = [
    {},
    {"num_workers": 2},
    {"num_workers": 2, "persistent_workers": True},
]


@pytest.mark.parametrize("how", HOW, ids=["here", "fresh", "persistent"])
@pytest.mark.parametrize("make", [plain, streaming])
def test_epochs_follow_each_other_and_set_epoch_reaches_the_workers(
    directory: Path, epochs: Any, make: Any, how: dict[str, Any]
) -> None:
    dataset = dataset_of(directory)
    loader = make(dataset, **how)
    assert (dataset.epoch, dataset.next_epoch) == (0, 0)
    assert list(loader) == epochs[0]
    assert (dataset.epoch, dataset.next_epoch) == (0, 1)
    assert list(loader) == epochs[1]
    dataset.set_epoch(5)
    assert (dataset.epoch, dataset.next_epoch) == (5, 5)
    assert list(loader) == epochs[5]
    assert list(loader) == epochs[6]
    dataset.set_epoch(2)
    assert list(loader) == epochs[2]
    dataset.load_state_dict({**dataset.state_at(4, 16)})
    assert list(loader) == epochs[4][2:]
    assert (dataset.epoch, dataset.next_epoch) == (4, 5)
    assert list(loader) == epochs[5]


def test_b113_persistent_workers_give_a_new_order_each_epoch_and_the_same_in_each_run(
    directory: Path, epochs: Any
) -> None:
    runs = []
    for persistent in (True, True, False):
        loader = streaming(dataset_of(directory), num_workers=2, persistent_workers=persistent)
        runs.append([list(loader) for _ in range(3)])
    assert runs[0] == runs[1] == runs[2] == epochs[:3]
    assert len({str(epoch) for epoch in runs[0]}) == 3


def test_loaders_and_loops_over_one_dataset_take_turns(directory: Path, epochs: Any) -> None:
    dataset = dataset_of(directory)
    here, workers, torchs = (
        streaming(dataset),
        streaming(dataset, num_workers=2),
        plain(dataset, num_workers=1),
    )
    assert list(here) == epochs[0]
    assert list(workers) == epochs[1]
    assert [sample["number"] for sample in dataset] == [number for batch in epochs[2] for number in batch]
    assert list(torchs) == epochs[3]
    assert list(workers) == epochs[4]
    assert list(torchs) == epochs[5]
    assert list(here) == epochs[6]
    assert dataset.next_epoch == 7


def test_loaders_of_one_dataset_keep_their_own_batch_sizes(directory: Path) -> None:
    dataset = StreamingDataset(local=directory)
    small, large = streaming(dataset, batch_size=4), streaming(dataset, batch_size=30, drop_last=True)
    for _ in range(2):
        assert len(small) == 16
        assert [len(batch) for batch in small] == [4] * 15 + [1]
        assert len(large) == 2
        assert [len(batch) for batch in large] == [30, 30]
    assert (small.batch_size, large.batch_size) == (4, 30)
    assert (small.drop_last, large.drop_last) == (False, True)


@pytest.mark.parametrize("how", HOW, ids=["here", "fresh", "persistent"])
def test_a_second_live_iterator_is_refused_by_name(directory: Path, epochs: Any, how: dict[str, Any]) -> None:
    dataset = dataset_of(directory)
    loader = streaming(dataset, **how)
    first = iter(loader)
    assert next(first) == epochs[0][0]
    with pytest.raises(StateError, match=r"second iterator of StreamingDataset\(.*61 samples in 7 shards\)"):
        iter(loader)
    with pytest.raises(StateError, match="second iterator"):
        iter(dataset)
    with pytest.raises(StateError, match="second iterator"):
        iter(streaming(dataset))
    assert next(first) == epochs[0][1]  # the first one is unharmed
    dataset.stop()
    assert next(first, None) is None
    assert list(loader) == epochs[1]


def test_zip_of_a_dataset_with_itself_is_refused(directory: Path) -> None:
    dataset = dataset_of(directory)
    with pytest.raises(StateError, match="two loops at once need two datasets"):
        list(zip(dataset, dataset, strict=True))


def test_an_iterator_that_is_finished_or_gone_stands_in_nobodys_way(directory: Path, epochs: Any) -> None:
    dataset = dataset_of(directory)
    loader = streaming(dataset, num_workers=1)
    kept = iter(loader)
    assert list(kept) == epochs[0]
    again = iter(loader)
    next(again)
    del again
    gc.collect()
    assert list(iter(loader)) == epochs[2]
    last = iter(loader)
    for _ in epochs[3]:
        next(last)  # all batches taken, the end not seen
    assert list(loader) == epochs[4]


@pytest.mark.parametrize("how", HOW, ids=["here", "fresh", "persistent"])
def test_an_iteration_that_failed_stands_in_nobodys_way(tmp_path: Path, how: dict[str, Any]) -> None:
    write_numbers(tmp_path, [10] * 4)
    broken = tmp_path / "shard.00002.mds"
    whole = broken.read_bytes()
    broken.write_bytes(whole[:40])
    dataset = StreamingDataset(local=tmp_path, batch_size=10)
    loader = streaming(dataset, **how)
    iterator = iter(loader)
    assert [next(iterator), next(iterator)] == [list(range(10)), list(range(10, 20))]
    with pytest.raises(ValueError, match=r"shard\.00002"):
        next(iterator)
    with pytest.raises(StateError, match="ended with an error"):
        next(iterator)
    broken.write_bytes(whole)
    assert [number for batch in loader for number in batch] == list(range(40))


@pytest.mark.parametrize(
    ("make", "how"),
    [
        (plain, HOW[0]),
        (streaming, HOW[0]),
        (streaming, HOW[1]),
        pytest.param(plain, HOW[1], marks=pytest.mark.slow),  # torch waits 5 s for a worker that has failed
    ],
)
def test_an_iterator_made_before_set_epoch_raises(directory: Path, epochs: Any, make: Any, how: Any) -> None:
    dataset = dataset_of(directory)
    iterator = iter(make(dataset, **how))
    assert next(iterator) == epochs[0][0]
    dataset.set_epoch(3)
    with pytest.raises(StateError, match="before set_epoch"):
        list(iterator)
    del iterator
    assert list(make(dataset, **how)) == epochs[3]


def test_an_iterator_made_before_load_state_dict_raises(directory: Path, epochs: Any) -> None:
    loader = loader_of(directory, batch_size=8)
    iterator = iter(loader)
    next(iterator)
    loader.load_state_dict(loader.state_dict())
    with pytest.raises(StateError, match="load_state_dict"):
        next(iterator)
    assert list(loader) == epochs[0][1:]


def test_breaking_out_of_persistent_workers_begins_the_next_epoch_whole(directory: Path, epochs: Any) -> None:
    loader = streaming(dataset_of(directory), num_workers=2, persistent_workers=True)
    for epoch in range(4):
        assert list(itertools.islice(loader, 2)) == epochs[epoch][:2]
    assert list(loader) == epochs[4]


@pytest.mark.parametrize("epoch", [-1, 1.0, True, "1", None, 1 << 53])
def test_set_epoch_refuses_what_is_no_epoch(directory: Path, epoch: Any) -> None:
    with pytest.raises(ValueError, match="epoch="):
        dataset_of(directory).set_epoch(epoch)


@pytest.mark.parametrize("epoch", [(1 << 24) - 1, 1 << 24, 1 << 40, (1 << 53) - 2])
@pytest.mark.parametrize("make", [plain, streaming])
def test_epochs_may_have_any_number(directory: Path, make: Any, epoch: int) -> None:
    dataset = dataset_of(directory)
    dataset.set_epoch(epoch)
    loader = make(dataset)
    first = list(loader)
    assert dataset.epoch == epoch
    assert dataset.next_epoch == epoch + 1
    assert sorted(number for batch in first for number in batch) == list(range(SAMPLES))
    assert list(loader) != first
    state = dataset.state_at(epoch, 8)
    again = dataset_of(directory)
    again.load_state_dict(state)
    assert list(make(again)) == first[1:]


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_b139_a_copy_starts_where_the_original_stood_and_goes_its_own_way(
    directory: Path, epochs: Any, how: str
) -> None:
    dataset = dataset_of(directory)
    iterator = iter(dataset)  # a partial iteration, with files open
    next(iterator)
    dataset[3]
    copied = copy.deepcopy(dataset) if how == "deepcopy" else pickle.loads(pickle.dumps(dataset))
    assert copied.next_epoch == 1
    assert list(streaming(copied)) == epochs[1]
    assert dataset.next_epoch == 1
    del iterator
    assert list(streaming(dataset)) == epochs[1]
    copied.set_epoch(7)
    assert dataset.next_epoch == 2


# The page itself


def test_workers_of_one_iteration_agree_and_the_next_iteration_is_the_next_epoch() -> None:
    page = Handover()
    for iteration in range(3):
        for worker in range(4):
            assert page.begin_in_worker(worker, token=100 + iteration) == Beginning(0, iteration, 0)
    assert page.next() == (3, 0)
    assert page.running() == (2, 0)


def test_persistent_workers_have_one_token_and_count_by_themselves() -> None:
    page = Handover()
    page.set_next(6, 40)
    for iteration in range(3):
        for worker in (2, 0, 1):
            beginning = page.begin_in_worker(worker, token=5)
            assert beginning == Beginning(1, 6 + iteration, 40 if iteration == 0 else 0)


def test_a_slow_worker_of_an_iteration_that_was_left_does_not_fall_behind() -> None:
    page = Handover()
    page.begin_in_worker(0, token=1)  # worker 1 was ended before it began
    assert page.begin_in_worker(1, token=2).epoch == 1
    assert page.begin_in_worker(0, token=2).epoch == 1


def test_a_generation_hides_the_slots_of_those_before() -> None:
    page = Handover()
    page.begin_in_worker(0, token=1)
    page.begin_in_worker(0, token=1)
    page.set_next(0)
    assert page.running() is None
    assert page.begin_in_worker(0, token=1).epoch == 0


def test_a_worker_that_begins_after_the_trainer_has_moved_on_is_too_late() -> None:
    page = Handover()
    page.set_next(1)
    worker = Handover.__new__(Handover)
    worker.__dict__.update(page.__dict__)  # as a fork does: the same page, attributes of its own
    page.set_next(5)
    beginning = worker.begin_in_worker(0, token=1)
    assert worker.is_over(beginning)
    assert page.running() is None  # it has not taken the new epoch from those that come
    assert worker.begin_in_worker(0, token=1).epoch == 5  # a persistent worker is told to go on


def test_generations_count_on_when_their_tags_start_again() -> None:
    page = Handover()
    page.begin_in_worker(5, token=1)  # a slot that is left behind
    for epoch in range(1, 4200):
        assert page.begin_in_trainer(hand_over=epoch % 2 == 0) == Beginning(epoch, epoch, 0)


def test_a_handed_over_beginning_counts_though_no_worker_has_begun() -> None:
    page = Handover()
    beginning = page.begin_in_trainer(hand_over=True)
    assert beginning == Beginning(0, 0, 0)
    assert page.running() == (0, 0)
    assert page.next() == (1, 0)
    assert page.begin_in_trainer(hand_over=True) == Beginning(1, 1, 0)
    assert page.is_over(beginning)


def test_stop_ends_what_is_under_way_and_not_what_comes() -> None:
    page = Handover()
    beginning = page.begin_in_trainer(hand_over=False)
    assert not page.is_over(beginning)
    page.stop()
    assert page.was_stopped(beginning)
    later = page.begin_in_trainer(hand_over=False)
    assert not page.is_over(later)
    assert not page.was_stopped(later)


def test_the_world_is_handed_over() -> None:
    page = Handover()
    assert page.world is None
    page.world = World(3, 8, 4)
    assert page.world == World(3, 8, 4)
    assert pickle.loads(pickle.dumps(page)).world == World(3, 8, 4)


def test_a_worker_may_go_on_with_an_earlier_epoch() -> None:
    page = Handover()
    page.set_next(9)
    assert page.restore_in_worker(0, token=1, epoch=2).epoch == 2
    assert page.begin_in_worker(0, token=1).epoch == 3


def test_numbers_that_no_page_can_hold_are_refused() -> None:
    page = Handover()
    with pytest.raises(ValueError, match=f"at most {MAX_WORKERS} workers"):
        page.begin_in_worker(MAX_WORKERS, token=1)
    with pytest.raises(StateError, match="load the state into a new one"):
        page.restore_in_worker(0, token=1, epoch=1 << 30)


@pytest.mark.parametrize("token", [0, -1, 1 << 27, (1 << 62) + 5, 1 << 64])
def test_no_token_passes_for_the_trainers(token: int) -> None:
    assert 0 < handover._shorten(token) < 1 << 27


def test_a_kept_worker_that_is_late_leaves_no_trace_in_what_was_loaded_since() -> None:
    page = Handover()
    page.begin_in_trainer(hand_over=True)
    page.begin_in_worker(0, token=1, handed_over=True)
    page.set_next(4, 7)
    page.begin_in_worker(1, token=1, handed_over=True)  # for the iteration before
    assert page.begin_in_trainer(hand_over=True)[1:] == (4, 7)
    page.begin_in_worker(1, token=1, handed_over=True)  # for the iteration before, later still
    for worker in range(2):
        assert page.begin_in_worker(worker, token=1, handed_over=True)[1:] == (4, 7)


@pytest.mark.parametrize("handed_over", [False, True])
def test_a_worker_that_is_overtaken_while_it_begins_leaves_no_trace(
    monkeypatch: pytest.MonkeyPatch, handed_over: bool
) -> None:
    page = Handover()
    page.begin_in_trainer(hand_over=True)
    write = page._write_slot

    def overtaken(number: int, *rest: int) -> None:
        page.set_next(5, 3)
        write(number, *rest)

    monkeypatch.setattr(page, "_write_slot", overtaken)
    beginning = page.begin_in_worker(0, token=1, handed_over=handed_over)
    assert page.is_over(beginning)
    assert page.running() is None
    assert page.next() == (5, 3)

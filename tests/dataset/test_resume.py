"""States of the loader: any position, any chain of worlds, and what comes after."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from streamshard import StreamingDataLoader
from tests.support.pretended_ranks import Part, loader_of, read_part, world_of, write_numbers

SAMPLES = 203
SIZES = [10] * 20 + [3]
pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_numbers(tmp_path_factory.mktemp("resume") / "set", SIZES)


def steps_of_epochs(directory: Path, epochs: int, batch_size: int = 8) -> list[list[list[int]]]:
    loaders = [loader_of(directory, batch_size=batch_size)]
    return [read_part(loaders).steps for _ in range(epochs)]


# ranks, workers, global batch, steps
CHAINS = [
    [(4, 2, 8, 9), (3, 0, 12, 5), (5, 1, 5, 7), (1, 0, 16, None)],
    [(1, 0, 1, 3), (8, 0, 8, 1), (2, 2, 30, 2), (3, 0, 7, 4), (4, 0, 64, None)],
    [(2, 0, 2, 100), (3, 0, 3, None)],
    [(1, 3, 203, None)],
]


@pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: "-".join(str(link[0]) for link in chain))
def test_a_chain_of_worlds_sees_each_sample_once(
    directory: Path, chain: list[tuple[int, int, int, int | None]]
) -> None:
    seen: list[int] = []
    state = None
    for ranks, workers, batch, steps in chain:
        loaders = world_of(directory, ranks, workers=workers, global_batch_size=batch)
        part = read_part(loaders, state=state, steps=steps)
        seen += part.sequence
        state = part.state
    assert sorted(seen) == list(range(SAMPLES))
    assert state is not None
    assert json.loads(state)["epoch"] == 1
    assert json.loads(state)["position"] == 0
    # What follows is an epoch like any other, in the order of a run that never stopped.
    assert (
        read_part([loader_of(directory, batch_size=8)], state=state).steps == steps_of_epochs(directory, 2)[1]
    )


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_with_one_global_batch_a_chain_gives_the_uninterrupted_sequence(directory: Path, ranks: int) -> None:
    expected = steps_of_epochs(directory, 3)
    first = read_part(world_of(directory, ranks, global_batch_size=8), steps=7)
    loaders = world_of(directory, 8 // ranks, global_batch_size=8)
    second = read_part(loaders, state=first.state, steps=11)
    loaders = world_of(directory, 3, global_batch_size=8)
    third = read_part(loaders, state=second.state)
    assert first.steps + second.steps + third.steps == expected[0]
    assert [read_part(loaders).steps for _ in range(2)] == expected[1:]


def test_b131_every_position_of_an_epoch_can_be_resumed(tmp_path: Path) -> None:
    write_numbers(tmp_path, [5, 5, 5, 5, 5, 2])
    window = {"num_canonical_nodes": 1, "shuffle_block_size": 10}  # 2 of the 6 shards
    whole = read_part([loader_of(tmp_path, batch_size=1, **window)]).sequence
    for taken in range(1, 28):
        before = read_part([loader_of(tmp_path, batch_size=1, **window)], steps=taken)
        after = read_part([loader_of(tmp_path, batch_size=4, **window)], state=before.state)
        assert before.sequence == whole[:taken]
        if taken < 27:
            assert sorted(after.sequence) == sorted(whole[taken:])
        else:
            assert sorted(after.sequence) == list(range(27))  # the next epoch


@pytest.mark.parametrize("workers", [0, 2])
def test_b122_the_rest_comes_in_the_original_order(directory: Path, workers: int) -> None:
    first = read_part([loader_of(directory, batch_size=8, workers=workers)], steps=5)
    rest = read_part([loader_of(directory, batch_size=8, workers=workers)], state=first.state)
    assert first.steps + rest.steps == steps_of_epochs(directory, 1)[0]


def test_b123_without_workers_a_state_is_saved_and_loaded(directory: Path) -> None:
    first = read_part([loader_of(directory, batch_size=8)], steps=1)
    rest = read_part([loader_of(directory, batch_size=8)], state=first.state)
    assert sorted(first.sequence + rest.sequence) == list(range(SAMPLES))


@pytest.mark.parametrize("workers", [0, 2])
def test_b124_epochs_after_a_resumed_one_are_whole(directory: Path, workers: int) -> None:
    first = read_part([loader_of(directory, batch_size=8, workers=workers)], steps=22)
    loader = loader_of(directory, batch_size=8, workers=workers)
    parts = [read_part([loader], state=first.state), read_part([loader]), read_part([loader])]
    assert [len(part.steps) for part in parts] == [4, 26, 26]
    expected = steps_of_epochs(directory, 3)
    assert [parts[0].steps, parts[1].steps, parts[2].steps] == [expected[0][22:], *expected[1:]]


@pytest.mark.parametrize("workers", [0, 2])
def test_s04_the_epoch_after_a_resumed_one_is_that_of_an_uninterrupted_run(
    directory: Path, workers: int
) -> None:
    """mosaicml-streaming falls back to another canonical count there, when workers are fresh each epoch."""
    first = read_part(world_of(directory, 2, batch_size=4, workers=workers), steps=5)
    loaders = world_of(directory, 4, batch_size=2, workers=workers)
    read_part(loaders, state=first.state)
    assert read_part(loaders).steps == steps_of_epochs(directory, 2)[1]


@pytest.mark.parametrize("workers", [0, 2])
def test_s05_a_state_of_an_earlier_epoch_is_honoured(directory: Path, workers: int) -> None:
    loader = loader_of(directory, batch_size=8, workers=workers)
    early = read_part([loader], steps=3)
    read_part([loader])
    read_part([loader])
    assert loader.dataset.epoch == 2
    rest = read_part([loader], state=early.state)
    expected = steps_of_epochs(directory, 2)
    assert rest.steps == expected[0][3:]
    assert read_part([loader]).steps == expected[1]


def test_b127_a_later_epoch_goes_on_in_its_own_order(directory: Path) -> None:
    loader = loader_of(directory, batch_size=8)
    read_part([loader])
    read_part([loader])
    part = read_part([loader], steps=4)
    assert json.loads(part.state)["epoch"] == 2
    rest = read_part([loader_of(directory, batch_size=8)], state=part.state)
    assert part.steps + rest.steps == steps_of_epochs(directory, 3)[2]


def test_b129_a_state_saved_right_after_loading_is_the_same(directory: Path) -> None:
    state = read_part([loader_of(directory, batch_size=8)], steps=5).state
    loader = loader_of(directory, batch_size=3)
    loader.load_state_dict(json.loads(state))
    assert loader.state_dict() == json.loads(state)
    assert loader.state_dict() == json.loads(state)
    iterator = iter(loader)
    assert loader.state_dict() == json.loads(state)
    next(iterator)
    assert loader.state_dict() != json.loads(state)


def test_b130_4_then_2_then_8_ranks_lose_and_repeat_nothing(tmp_path: Path) -> None:
    write_numbers(tmp_path, [37] * 27 + [1])
    runs = [chain_4_2_8(tmp_path) for _ in range(2)]
    sequence = [number for part in runs[0] for number in part.sequence]
    assert sorted(sequence) == list(range(1000))
    assert runs[0] == runs[1]


def chain_4_2_8(directory: Path) -> list[Part]:
    first = read_part(world_of(directory, 4, batch_size=8), steps=10)
    second = read_part(world_of(directory, 2, batch_size=8), state=first.state, steps=10)
    return [first, second, read_part(world_of(directory, 8, batch_size=8), state=second.state)]


def test_b133_a_resumed_epoch_reads_only_the_shards_that_are_left(tmp_path: Path) -> None:
    write_numbers(tmp_path / "remote", [10] * 20)
    arguments = {"shuffle": False, "batch_size": 10}
    state = read_part([loader_of(tmp_path / "remote", **arguments)], steps=18).state
    for shard in range(18):
        (tmp_path / "remote" / f"shard.{shard:05d}.mds").unlink()  # reading one would be an error
    rest = read_part([loader_of(tmp_path / "remote", **arguments)], state=state)
    assert rest.sequence == list(range(180, 200))


def test_b136_an_epoch_left_early_is_not_continued(directory: Path) -> None:
    expected = steps_of_epochs(directory, 6)
    loader = loader_of(directory, batch_size=8)
    assert read_part([loader], steps=3).steps == expected[0][:3]
    state = loader.state_dict()  # still tells where the loop was left
    assert read_part([loader], steps=3).steps == expected[1][:3]
    assert read_part([loader]).steps == expected[2]
    # With a state loaded, the next iteration goes on, and the one after it begins the next epoch.
    assert read_part([loader], state=json.dumps(state), steps=2).steps == expected[0][3:5]
    assert read_part([loader], steps=3).steps == expected[1][:3]
    assert read_part([loader]).steps == expected[2]


def test_b135_a_state_counts_what_was_received_and_not_what_was_read_ahead(directory: Path) -> None:
    loader = loader_of(directory, batch_size=8, workers=2, prefetch_factor=4)
    kept = []
    iterator = iter(loader)
    for step in range(6):
        batch = next(iterator)
        if step % 3 != 2:  # a wrapper that throws batches away
            kept.append(batch)
        assert loader.state_dict()["position"] == 8 * (step + 1)
    del iterator
    rest = read_part([loader_of(directory, batch_size=8)], state=json.dumps(loader.state_dict()))
    assert rest.steps == steps_of_epochs(directory, 1)[0][6:]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_before_the_first_batch_is_the_epochs_start(directory: Path, workers: int) -> None:
    loader = loader_of(directory, batch_size=8, workers=workers)
    state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (0, 0)
    iterator = iter(loader)
    assert loader.state_dict() == state
    del iterator
    assert (
        read_part([loader_of(directory, batch_size=8)], state=json.dumps(state)).steps
        == (steps_of_epochs(directory, 1)[0])
    )


@pytest.mark.parametrize("remainder", ["pad", "drop", "exact"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_with_the_last_batch_is_the_next_epochs_start(
    directory: Path, workers: int, remainder: str
) -> None:
    loader = loader_of(directory, batch_size=8, workers=workers, remainder=remainder)
    states = []
    for _ in loader:
        states.append(loader.state_dict())
    assert [state["epoch"] for state in states] == [0] * (len(states) - 1) + [1]
    assert states[-1] == loader.state_dict()  # in the loop as after it
    assert states[-1]["position"] == 0
    assert read_part(
        [loader_of(directory, batch_size=8, remainder=remainder)], state=json.dumps(states[-1])
    ) == (read_part([loader]))


def test_exact_ranks_agree_about_the_state_at_every_step(tmp_path: Path) -> None:
    write_numbers(tmp_path, [10, 9])  # 19 = 2 x 8 + 3: ranks 3 gets no part in the last batch
    loaders = world_of(tmp_path, 4, global_batch_size=8, remainder="exact")
    states: list[list[str]] = []
    for loader in loaders:
        states.append([])
        for _ in loader:
            states[-1].append(json.dumps(loader.state_dict()))
        states[-1].append(json.dumps(loader.state_dict()))
    assert [len(each) for each in states] == [4, 4, 4, 3]
    assert states[0] == states[1] == states[2]
    assert states[3] == [*states[0][:2], states[0][-1]]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_after_stop_is_where_the_trainer_stood(directory: Path, workers: int) -> None:
    loader = loader_of(directory, batch_size=8, workers=workers)
    iterator = iter(loader)
    batches = [next(iterator) for _ in range(3)]
    loader.dataset.stop()
    assert list(iterator) == []
    state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (0, 24)
    rest = read_part([loader], state=json.dumps(state))
    assert batches + rest.steps == steps_of_epochs(directory, 1)[0]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_after_an_error_is_where_the_trainer_stood(tmp_path: Path, workers: int) -> None:
    write_numbers(tmp_path, [10] * 6)
    expected = steps_of_epochs(tmp_path, 1, batch_size=4)[0]
    broken = tmp_path / "shard.00004.mds"
    whole = broken.read_bytes()
    broken.write_bytes(whole[:-1])
    loader = loader_of(tmp_path, batch_size=4, workers=workers)
    batches: list[list[int]] = []
    with pytest.raises(ValueError, match=r"shard\.00004\.mds"):
        batches.extend(loader)
    state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (0, 4 * len(batches))
    broken.write_bytes(whole)
    assert batches + read_part([loader], state=json.dumps(state)).steps == expected


def test_the_state_follows_set_epoch_and_load_on_the_dataset(directory: Path) -> None:
    loader = loader_of(directory, batch_size=8)
    part = read_part([loader], steps=5)
    loader.dataset.set_epoch(7)
    state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (7, 0)
    loader.dataset.load_state_dict(json.loads(part.state))
    assert loader.state_dict() == json.loads(part.state)
    assert len(loader) == 21


def test_a_state_under_drop_that_leaves_no_batch_ends_its_epoch(directory: Path) -> None:
    state = read_part([loader_of(directory, batch_size=8)], steps=25).state
    loader = loader_of(directory, batch_size=8, drop_last=True)
    with pytest.warns(
        UserWarning, match="leaves nothing of epoch 0: what is left of it after position 200, 3 samples"
    ):
        part = read_part([loader], state=state)
    assert part.batches == [[]]
    assert json.loads(part.state)["epoch"] == 1
    assert read_part([loader]).steps == steps_of_epochs(directory, 2)[1][:25]


def test_a_state_is_small_json(directory: Path) -> None:
    part = read_part([loader_of(directory, batch_size=8)], steps=3)
    assert len(part.state) < 1000
    assert json.loads(part.state)["position"] == 24


@pytest.mark.parametrize("read_before", [0, 3])
def test_an_iteration_whose_workers_cannot_be_started_is_still_to_come(
    tmp_path: Path, read_before: int
) -> None:
    directory = write_numbers(tmp_path / "set", [10] * 8)
    taken: list[int] = []
    state = None
    if read_before:
        reader = loader_of(directory, batch_size=8)
        taken = [number for batch in itertools.islice(reader, read_before) for number in batch]
        state = reader.state_dict()
    loader = loader_of(directory, batch_size=8)
    if state is not None:
        loader.load_state_dict(state)
    before = loader.state_dict()
    # A function that cannot be sent to a worker that is started anew.
    broken = StreamingDataLoader(
        loader.dataset, num_workers=1, multiprocessing_context="spawn", collate_fn=lambda samples: samples
    )
    for _ in range(2):
        with pytest.raises(Exception, match="pickle"):
            iter(broken)
        assert broken.state_dict() == before
    assert loader.state_dict() == before
    rest = [number for batch in loader for number in batch]
    assert sorted(taken + rest) == list(range(80))

"""One global order for every number of ranks and workers; the last batch; batch sizes that cannot work."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from streamshard import StreamingDataLoader, StreamingDataset, World
from streamshard.errors import TopologyError
from tests.support.pretended_ranks import loader_of, read_part, world_of, write_numbers

SAMPLES = 203
SIZES = [10] * 20 + [3]
GLOBAL_BATCH = 24
GOLDEN = [
    [[13, 6, 11, 0], [7, 12, 10, 2], [14, 5, 1, 9], [4, 3, 8]],
    [[4, 14, 1, 11], [13, 5, 9, 0], [12, 7, 8, 2], [6, 10, 3]],
]
GOLDEN_OTHERS = [
    [[5, 14, 10, 11], [13, 7, 8, 0], [6, 12, 1, 9], [4, 3, 2]],
    [[13, 12, 11, 10], [14, 6, 9, 8], [5, 7, 2, 0], [4, 3, 1]],
    [[8, 13, 2, 5], [12, 1, 14, 3], [7, 10, 4, 9], [6, 11, 0]],
]

# torch warns of more workers than CPUs, and newer Pythons of any fork in a process with threads.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]

WORLDS = [(ranks, workers) for ranks in (1, 2, 3, 4, 8) for workers in (0, 1, 3)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_numbers(tmp_path_factory.mktemp("worlds") / "set", SIZES)


@pytest.fixture(scope="module")
def expected(directory: Path) -> list[list[list[int]]]:
    """Global batches of the first two epochs."""
    loaders = world_of(directory, 1, global_batch_size=GLOBAL_BATCH)
    return [read_part(loaders).steps for _ in range(2)]


@pytest.mark.parametrize(("ranks", "workers"), WORLDS)
def test_the_global_sequence_is_the_same_in_every_world(
    directory: Path, expected: list[list[list[int]]], ranks: int, workers: int
) -> None:
    loaders = world_of(directory, ranks, workers=workers, batch_size=GLOBAL_BATCH // ranks)
    assert read_part(loaders).steps == expected[0]
    if ranks * workers < 8:  # starting processes is what takes the time here
        assert read_part(loaders).steps == expected[1]


@pytest.mark.parametrize("ranks", [5, 7, 24])
def test_a_global_batch_need_not_be_divisible_by_the_ranks(
    directory: Path, expected: list[list[list[int]]], ranks: int
) -> None:
    part = read_part(world_of(directory, ranks, global_batch_size=GLOBAL_BATCH))
    assert part.steps == expected[0]
    sizes = {len(batch) for batches in part.batches for batch in batches[:-1]}
    assert sizes <= {GLOBAL_BATCH // ranks, -(-GLOBAL_BATCH // ranks)}
    assert len({len(batches) for batches in part.batches}) == 1


def test_epochs_differ_and_hold_each_sample_once(expected: list[list[list[int]]]) -> None:
    sequences = [[number for step in steps for number in step] for steps in expected]
    assert sequences[0] != sequences[1]
    assert all(sorted(sequence) == list(range(SAMPLES)) for sequence in sequences)
    assert sequences[0] != list(range(SAMPLES))


def test_two_runs_agree_and_two_seeds_do_not(directory: Path) -> None:
    first, again, other = (
        read_part([loader_of(directory, batch_size=8, shuffle_seed=seed)]).sequence for seed in (1, 1, 2)
    )
    assert first == again
    assert sorted(first) == sorted(other)
    assert first != other


def test_without_shuffle_samples_come_in_file_order_in_every_epoch(directory: Path) -> None:
    loaders = world_of(directory, 3, batch_size=8, shuffle=False)
    assert read_part(loaders).sequence == list(range(SAMPLES))
    assert read_part(loaders).sequence == list(range(SAMPLES))


def test_the_order_of_a_small_dataset_is_pinned_for_ever(tmp_path: Path) -> None:
    write_numbers(tmp_path, [4, 4, 4, 3])
    loader = loader_of(tmp_path, batch_size=4)
    assert [list(loader) for _ in range(2)] == GOLDEN
    assert [
        list(loader_of(tmp_path, batch_size=4, shuffle_algo=name)) for name in ("block", "shard", "full")
    ] == (GOLDEN_OTHERS)


@pytest.mark.parametrize("replication", [2, 3, 6])
def test_replicated_ranks_get_the_same_samples(
    directory: Path, expected: list[list[list[int]]], replication: int
) -> None:
    part = read_part(world_of(directory, 6, global_batch_size=GLOBAL_BATCH, replication=replication))
    for first in range(0, 6, replication):
        assert part.batches[first : first + replication] == [part.batches[first]] * replication
    part = part._replace(batches=part.batches[::replication])
    assert part.steps == expected[0]


def test_replication_must_divide_the_ranks(directory: Path) -> None:
    dataset = StreamingDataset(local=directory, world=World(0, 4), replication=3)
    with pytest.raises(TopologyError, match="replication=3 does not divide world_size=4"):
        len(StreamingDataLoader(dataset, 4))


# The last, shorter batch


def cases(*samples: int) -> list[tuple[int, int, int]]:
    """Samples, ranks and workers: each pair without workers, one of them with."""
    pairs = [(each, ranks, 0) for each in samples for ranks in (1, 2, 3, 5)]
    return [*pairs, (samples[1], 3, 3)]


@pytest.mark.parametrize(("samples", "ranks", "workers"), cases(40, 41, 47, 57, 59))
def test_pad_gives_all_ranks_equal_batches_and_marks_the_repeats(
    tmp_path: Path, samples: int, ranks: int, workers: int
) -> None:
    write_numbers(tmp_path, [samples])
    part = read_part(world_of(tmp_path, ranks, workers=workers, global_batch_size=20))
    assert sorted(part.sequence) == list(range(samples))
    sizes = [
        [len(real) + len(pads) for real, pads in zip(*rank, strict=True)]
        for rank in zip(part.batches, part.padding, strict=True)
    ]
    tail = samples % 20
    assert {len(each) for each in sizes} == {-(-samples // 20)}
    if tail:
        assert [each[-1] for each in sizes] == [-(-tail // ranks)] * ranks
    pads = [pad for rank in part.padding for batch in rank for pad in batch]
    assert len(pads) == (-tail % ranks if tail else 0)
    assert all(batch == [] for rank in part.padding for batch in rank[:-1])
    # They repeat what came just before the end, so that their shards are still there.
    assert set(pads) <= set(part.steps[-1]) | set(part.steps[-2])


@pytest.mark.parametrize(("samples", "ranks", "workers"), cases(40, 47, 59))
def test_drop_leaves_out_less_than_a_global_batch(
    tmp_path: Path, samples: int, ranks: int, workers: int
) -> None:
    write_numbers(tmp_path, [samples])
    whole = read_part(world_of(tmp_path, 1, global_batch_size=20)).sequence
    loaders = world_of(tmp_path, ranks, workers=workers, global_batch_size=20, drop_last=True)
    part = read_part(loaders)
    assert part.sequence == whole[: samples // 20 * 20]
    assert [len(batches) for batches in part.batches] == [samples // 20] * ranks
    assert part.padding == [[[]] * (samples // 20)] * ranks
    assert [loader.drop_last for loader in loaders] == [True] * ranks
    assert read_part(loaders).sequence != part.sequence  # the next epoch, whole again


@pytest.mark.parametrize(("samples", "ranks", "workers"), cases(3, 41, 40, 47, 59))
def test_exact_repeats_nothing_and_ranks_differ_by_at_most_one(
    tmp_path: Path, samples: int, ranks: int, workers: int
) -> None:
    write_numbers(tmp_path, [samples])
    loaders = world_of(tmp_path, ranks, workers=workers, global_batch_size=20, remainder="exact")
    part = read_part(loaders)
    assert sorted(part.sequence) == list(range(samples))
    counts = [len(batches) for batches in part.batches]
    assert max(counts) - min(counts) <= 1
    assert not any(pads for rank in part.padding for pads in rank)
    totals = [sum(map(len, batches)) for batches in part.batches]
    tails = [len(batches[-1]) if len(batches) == max(counts) else 0 for batches in part.batches]
    assert max(tails) - min(tails) <= 1
    assert totals == [len(loader.dataset) for loader in loaders]


def test_more_ranks_than_a_global_batch_are_refused(directory: Path) -> None:
    loader = loader_of(directory, 0, 8, global_batch_size=7)
    with pytest.raises(TopologyError, match=r"7 samples cannot be shared by 8 ranks"):
        len(loader)
    with pytest.raises(TopologyError, match=r"7 samples cannot be shared by 8 ranks"):
        iter(loader)
    with pytest.raises(TopologyError, match=r"7 samples cannot be shared by 8 ranks"):
        iter(loader.dataset)


def test_drop_of_everything_is_refused_with_both_numbers(directory: Path) -> None:
    loader = loader_of(directory, batch_size=204, drop_last=True)
    with pytest.raises(TopologyError, match=r"203 samples.*204"):
        iter(loader)
    assert read_part([loader_of(directory, batch_size=203, drop_last=True)]).steps[0]


def test_a_batch_larger_than_the_dataset_is_one_batch(tmp_path: Path) -> None:
    write_numbers(tmp_path, [3])
    assert [sorted(batch) for batch in loader_of(tmp_path, batch_size=8)] == [[0, 1, 2]]


def test_a_huge_batch_size_costs_nothing(tmp_path: Path) -> None:
    write_numbers(tmp_path, [3])
    loader = loader_of(tmp_path, batch_size=1 << 30)
    assert [sorted(batch) for batch in loader] == [[0, 1, 2]]


def test_more_workers_than_batches(tmp_path: Path) -> None:
    write_numbers(tmp_path, [10, 1])
    part = read_part(world_of(tmp_path, 2, workers=3, batch_size=4))
    assert sorted(part.sequence) == list(range(11))


def test_each_sample_is_in_one_rank_only(directory: Path) -> None:
    part = read_part(world_of(directory, 4, batch_size=6))
    counts = Counter(number for rank in part.batches for batch in rank for number in batch)
    assert set(counts.values()) == {1}
    assert len(counts) == SAMPLES

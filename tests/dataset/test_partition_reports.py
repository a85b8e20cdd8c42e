"""What people reported about partition: repeated and lost samples, unequal ranks, wrong lengths, slow starts."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import DataLoader

from streamshard import StreamingDataLoader, StreamingDataset, World
from streamshard.errors import TopologyError
from streamshard.order.batches import BatchPlan
from streamshard.order.epoch import Order
from streamshard.order.walk import Walk
from tests.support.pretended_ranks import loader_of, numbers, read_part, world_of, write_numbers

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]


@pytest.mark.parametrize(
    ("kind", "ranks", "workers"),
    [
        *(("streaming", ranks, workers) for ranks in (1, 2, 4) for workers in (0, 1, 3)),
        *(("plain", ranks, workers) for ranks, workers in ((1, 0), (1, 3), (4, 0), (4, 1))),
    ],
)
def test_b099_nothing_is_repeated_per_worker_or_per_rank(
    tmp_path: Path, kind: str, ranks: int, workers: int
) -> None:
    write_numbers(tmp_path, [30, 30, 30, 10])
    if kind == "streaming":
        assert sorted(read_part(world_of(tmp_path, ranks, workers=workers, batch_size=6)).sequence) == list(
            range(100)
        )
        return
    seen: list[int] = []
    for rank in range(ranks):
        dataset = StreamingDataset(local=tmp_path, shuffle=True, batch_size=5, world=World(rank, ranks))
        for batch in DataLoader(dataset, 5, num_workers=workers, collate_fn=numbers):
            seen += batch
    assert sorted(seen) == list(range(100))


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize(("drop_last", "batches"), [(False, 2), (True, 1)])
def test_b100_all_ranks_get_the_same_number_of_batches(
    tmp_path: Path, workers: int, drop_last: bool, batches: int
) -> None:
    write_numbers(tmp_path, [10])
    loaders = world_of(tmp_path, 4, workers=workers, batch_size=2, drop_last=drop_last)
    part = read_part(loaders)
    assert [len(rank) for rank in part.batches] == [batches] * 4
    # 10 = 8 + 2: the last global batch gives two ranks one sample each, and the others one repeat.
    assert len(part.sequence) == (8 if drop_last else 10)
    assert sum(len(pads) for rank in part.padding for pads in rank) == (0 if drop_last else 2)


@pytest.mark.parametrize("ranks", [4, 5])
def test_b101_one_shard_is_split_by_sample_over_all_ranks_and_workers(tmp_path: Path, ranks: int) -> None:
    write_numbers(tmp_path, [64])
    part = read_part(world_of(tmp_path, ranks, workers=4, global_batch_size=ranks))
    assert sorted(sum(map(len, rank)) for rank in part.batches) == (
        [16] * 4 if ranks == 4 else [12] + [13] * 4
    )
    assert sorted(part.sequence) == list(range(64))


def test_b103_a_dataset_smaller_than_its_workers_is_read(tmp_path: Path) -> None:
    write_numbers(tmp_path, [1])
    part = read_part(world_of(tmp_path, 2, workers=4, batch_size=1))
    assert part.batches == [[[]], [[0]]] or part.batches == [[[0]], [[]]]
    assert sorted(len(pads) for rank in part.padding for pads in rank) == [0, 1]


def test_b105_batches_are_full_whatever_the_number_of_workers(tmp_path: Path) -> None:
    write_numbers(tmp_path, [10] * 10)
    batches = list(loader_of(tmp_path, batch_size=4, workers=4))
    assert [len(batch) for batch in batches] == [4] * 25
    assert sorted(number for batch in batches for number in batch) == list(range(100))


@pytest.mark.parametrize("workers", [0, 4])
@pytest.mark.parametrize("ranks", [1, 3])
def test_b106_drop_last_gives_full_batches_only(tmp_path: Path, ranks: int, workers: int) -> None:
    write_numbers(tmp_path, [20] * 10 + [3])
    part = read_part(world_of(tmp_path, ranks, workers=workers, batch_size=4, drop_last=True))
    assert {len(batch) for rank in part.batches for batch in rank} == {4}
    assert [len(rank) for rank in part.batches] == [203 // (4 * ranks)] * ranks
    assert 0 <= 203 - len(part.sequence) < 4 * ranks


def test_b107_a_batch_larger_than_the_dataset_is_given_or_refused(tmp_path: Path) -> None:
    write_numbers(tmp_path, [3])
    assert (
        read_part([loader_of(tmp_path, batch_size=8)]).steps
        == read_part([loader_of(tmp_path, batch_size=3)]).steps
    )
    with pytest.raises(TopologyError, match=r"3 samples.*8"):
        list(loader_of(tmp_path, batch_size=8, drop_last=True))


@pytest.mark.parametrize("workers", [0, 2])
def test_b115_global_batches_hold_the_same_samples_in_every_world(tmp_path: Path, workers: int) -> None:
    write_numbers(tmp_path, [17] * 12)
    steps = [
        [
            set(step)
            for step in read_part(world_of(tmp_path, ranks, workers=workers, global_batch_size=24)).steps
        ]
        for ranks in (1, 2, 3, 4)
    ]
    assert steps[0] == steps[1] == steps[2] == steps[3]


def test_b118_an_epochs_size_is_kept_without_shuffle_too(tmp_path: Path) -> None:
    write_numbers(tmp_path, [10] * 10)
    for shuffle in (False, True):
        loader = loader_of(tmp_path, batch_size=4, epoch_size=20, shuffle=shuffle)
        assert len(loader) == 5
        assert len(read_part([loader]).sequence) == 20


@pytest.mark.parametrize("workers", [0, 2])
def test_b112_the_second_epoch_begins_at_once(tmp_path: Path, workers: int) -> None:
    write_numbers(tmp_path, [20_000] * 10)
    dataset = StreamingDataset(local=tmp_path, shuffle=True, batch_size=1024, batch_transform=dict)
    loader = StreamingDataLoader(dataset, num_workers=workers, persistent_workers=workers > 0)
    seen = [np.concatenate([batch["number"] for batch in loader])]
    begin = time.monotonic()
    iterator = iter(loader)
    seen.append(np.asarray(next(iterator)["number"]))
    gap = time.monotonic() - begin
    seen += [np.asarray(batch["number"]) for batch in iterator]
    assert np.bincount(np.concatenate(seen)).tolist() == [2] * 200_000
    assert gap < 1


def test_b142_the_order_of_a_hundred_million_samples_is_ready_in_a_second() -> None:
    begin = time.process_time()
    walk = Walk(np.full(20_000, 5000), seed=1)
    order = Order([walk])
    plan = BatchPlan(num_samples=100_000_000, global_batch_size=4096, ranks=64)
    first = order.rank_batches(plan, 3, 0, 2, 1, 5)
    far = order.rank_batches(plan, 3, plan.num_batches - 2, plan.num_batches, 1, 63)
    assert time.process_time() - begin < 3
    assert len(first.samples) == 128
    assert 0 <= min(*first.samples, *far.samples) <= max(*first.samples, *far.samples) < 100_000_000


def test_b142_a_dataset_with_many_shards_is_constructed_quickly(tmp_path: Path) -> None:
    write_numbers(tmp_path, [1])
    index = json.loads((tmp_path / "index.json").read_text())
    (entry,) = index["shards"]
    index["shards"] += [
        {**entry, "raw_data": {**entry["raw_data"], "basename": f"shard.{number:05d}.mds"}}
        for number in range(1, 20_000)
    ]
    (tmp_path / "index.json").write_text(json.dumps(index))
    started = time.process_time()
    dataset = StreamingDataset(local=tmp_path, batch_size=1)
    assert next(iter(dataset)) == {"number": 0}
    assert len(dataset) == 20_000
    assert time.process_time() - started < 5

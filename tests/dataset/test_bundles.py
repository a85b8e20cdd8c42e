"""Batches travel in bundles, and nobody sees it: same batches, same types, same place of an error."""

from __future__ import annotations

import io
import itertools
import os
import pickle
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from streamshard import MDSWriter, StreamingDataLoader, StreamingDataset
from streamshard.dataset import slots
from streamshard.dataset.bundles import Bundle, Bundling, Unbundled, bundle_sizes, most_batches
from streamshard.dataset.collate import collate_samples
from streamshard.dataset.left_out import Handed
from streamshard.dataset.parcels import pack_for_trainer, unpack_from_worker
from streamshard.dataset.slots import Slots
from tests.support.loading import epoch_of, text_dataset

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]

KINDS = {
    "blob": "bytes",
    "flag": "json",
    "free": "ndarray",
    "half": "float16",
    "number": "int",
    "pair": "ndarray:int16:2",
    "text": "str",
    "word": "uint32",
}


def arrived(parcel: Any) -> Bundle:
    bundle: Bundle = pickle.loads(ForkingPickler.dumps(parcel))
    return bundle


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 samples with a column of every kind; blobs of 20 kB, so that batches go through slots."""
    place = tmp_path_factory.mktemp("mixed") / "set"
    with MDSWriter(out=place, columns=KINDS, size_limit="200kb") as writer:
        for i in range(100):
            writer.write(
                {
                    "blob": bytes([i]) * (20_000 + i),
                    "flag": {"even": i % 2 == 0},
                    "free": np.arange(3 if i < 90 else i),
                    "half": np.float16(i / 2),
                    "number": i - 50,
                    "pair": np.array([i, -i], np.int16),
                    "text": "é" * (i % 5) + str(i),
                    "word": i,
                }
            )
    return place


def identical(first: Any, second: Any) -> bool:
    """Whether two batches have the same types, dtypes, shapes and values throughout."""
    if type(first) is not type(second):
        return False
    if isinstance(first, dict):
        return list(first) == list(second) and all(identical(first[key], second[key]) for key in first)
    if isinstance(first, list):
        return len(first) == len(second) and all(map(identical, first, second))
    if isinstance(first, torch.Tensor):
        return first.dtype == second.dtype and torch.equal(first, second)
    if isinstance(first, np.ndarray):
        return first.dtype == second.dtype and np.array_equal(first, second)
    return bool(first == second)


def loaded(place: Path, **arguments: Any) -> list[Any]:
    dataset = StreamingDataset(local=place, shuffle=True, batch_size=7)
    return list(StreamingDataLoader(dataset, **arguments))


@pytest.mark.parametrize("collate", [None, list], ids=["default", "samples"])
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_what_collating_the_samples_gives(mixed: Path, collate: Any, workers: int) -> None:
    samples = iter(StreamingDataset(local=mixed, shuffle=True, batch_size=7))
    make = collate or collate_samples
    expected = [make(chunk) for chunk in iter(lambda: list(itertools.islice(samples, 7)), [])]
    found = loaded(mixed, collate_fn=collate, num_workers=workers)
    assert len(found) == 15
    assert identical(found, expected)


@pytest.mark.slow
def test_workers_that_are_not_forked_give_the_same(mixed: Path) -> None:
    assert identical(loaded(mixed, num_workers=2, multiprocessing_context="spawn"), loaded(mixed))


def test_without_shared_memory_everything_goes_through_the_pipe(
    mixed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = loaded(mixed)
    monkeypatch.setattr(slots, "take_from", lambda *_: pytest.fail("a slot was used"))
    monkeypatch.delattr(os, "memfd_create")
    assert identical(loaded(mixed, num_workers=2), expected)


def test_tensors_can_be_changed_and_hold_no_rows_of_other_batches(mixed: Path) -> None:
    rows = np.arange(20)
    made = collate_samples({"number": rows[5:7]})["number"]
    rows[:] = 0
    assert made.tolist() == [5, 6]
    for batch in loaded(mixed, num_workers=2):
        batch["number"].zero_()
        batch["pair"] += 1


class _Negated(StreamingDataset):
    def get_item(self, sample_id: int) -> Any:
        return _negated(super().get_item(sample_id))


def _negated(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "number": -sample["number"]}


@pytest.mark.parametrize("workers", [0, 2])
def test_functions_of_the_users_see_every_sample_of_default_batches(mixed: Path, workers: int) -> None:
    plain = [batch["number"].tolist() for batch in loaded(mixed)]
    negated = [[-number for number in batch] for batch in plain]
    order: dict[str, Any] = {"local": mixed, "shuffle": True, "batch_size": 7}
    for dataset, expected in [
        (StreamingDataset(**order, transform=_negated), negated),
        (_Negated(**order), negated),
        (StreamingDataset(**order, filter=lambda sample: sample["number"] >= -40), None),
    ]:
        got = [batch["number"].tolist() for batch in StreamingDataLoader(dataset, num_workers=workers)]
        assert got == (expected or [[number for number in batch if number >= -40] for batch in plain])


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_an_error_comes_after_all_batches_before_it(tmp_path: Path, workers: int) -> None:
    place = text_dataset(tmp_path / "set", 200)
    expected = epoch_of(StreamingDataLoader(StreamingDataset(local=place, batch_size=2)))

    def fail_at_90(samples: list[Any]) -> Any:
        if samples[0]["number"] == 90:
            raise ArithmeticError("ninety")
        return collate_samples(samples)

    loader = StreamingDataLoader(
        StreamingDataset(local=place, batch_size=2), num_workers=workers, collate_fn=fail_at_90
    )
    batches = iter(loader)
    assert [next(batches)["number"].tolist() for _ in range(45)] == expected[:45]
    with pytest.raises(ArithmeticError, match="ninety"):
        next(batches)
    assert loader.state_dict()["position"] == 90


@given(st.integers(1, 5), st.integers(0, 60), st.integers(1, 9))
def test_bundles_of_any_number_of_workers_come_out_in_order(workers: int, batches: int, most: int) -> None:
    shares = [range(worker, batches, workers) for worker in range(workers)]
    sent = [
        list(map(arrived, Bundling(lambda number: number, most).bundles(share, worker)))
        for worker, share in enumerate(shares)
    ]
    assert all(
        len(bundle.batches) <= size
        for each in sent
        for bundle, size in zip(each, bundle_sizes(most), strict=False)
    )
    torchs = (bundle for turn in itertools.zip_longest(*sent) for bundle in turn if bundle is not None)
    assert list(Unbundled(torchs, workers, None)) == list(range(batches))


def test_bundles_grow_from_one_and_large_batches_travel_alone() -> None:
    assert list(itertools.islice(bundle_sizes(6), 6)) == [1, 2, 4, 6, 6, 6]
    assert list(itertools.islice(bundle_sizes(1), 3)) == [1, 1, 1]
    assert most_batches(5_000, made_by_user=False) == 52
    assert most_batches(5_000, made_by_user=True) == 8
    assert most_batches(1, made_by_user=False) == 64
    assert most_batches(0, made_by_user=False) == 64
    assert most_batches(1 << 30, made_by_user=False) == 1


def test_small_tensors_are_in_the_pickle_and_large_ones_are_open_files() -> None:
    small, large = torch.arange(10), torch.zeros(1 << 17)
    packed = pack_for_trainer([small], None)
    found = unpack_from_worker(packed)[0]
    assert torch.equal(found, small)
    assert not found.is_shared()
    packed = pack_for_trainer([{"x": large}], None)
    assert len(packed) < 10_000
    found = unpack_from_worker(packed)[0]["x"]
    assert found.is_shared()
    assert torch.equal(found, large)


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no memory without a name")
@pytest.mark.parametrize("wrap", [lambda batch: batch, lambda batch: Handed(batch, 0, 0, 0, "")])
def test_large_columns_of_bytes_are_not_in_the_pickle(wrap: Any) -> None:
    memory = Slots(1, 1, 1 << 17)
    blobs = [bytes([i]) * 10_000 for i in range(10)]
    batch = wrap({"a": 1, "blob": blobs, "few": [b"1"], "text": ["x"] * 10, "z": blobs[:1]})
    packed = pack_for_trainer([batch], memory.writer(0))
    assert len(packed) < 15_000
    assert (batch.batch if isinstance(batch, Handed) else batch)["blob"] is blobs
    again = pack_for_trainer([batch], memory.writer(0))  # the slot is full: through the pipe
    assert len(again) > 100_000
    assert identical(unpack_from_worker(packed), [batch])
    assert identical(unpack_from_worker(again), [batch])


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no memory without a name")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
def test_large_tensors_go_through_a_slot_and_are_the_trainers_own() -> None:
    memory = Slots(1, 1, 1 << 21)
    large = torch.arange(1 << 17)
    batch = {
        "blob": [bytes([i]) * 10_000 for i in range(10)],
        "few": torch.arange(3),
        "half": torch.arange(600 * 500).to(torch.bfloat16).reshape(600, 500).T,
        "large": large,
        "sparse": torch.eye(3).to_sparse(),
    }
    packed = pack_for_trainer([batch, {"a": 1}], memory.writer(0))
    assert len(packed) < 5_000
    assert batch["large"] is large
    again = pack_for_trainer([batch], memory.writer(0))  # the slot is full: as open files
    (found, rest), (other,) = unpack_from_worker(packed), unpack_from_worker(again)
    assert rest == {"a": 1}
    assert other["large"].is_shared()
    for each in (found, other):
        assert list(each) == list(batch)
        assert torch.equal(each.pop("sparse").to_dense(), torch.eye(3))
        assert identical(each, {key: batch[key] for key in each})
    before = found["large"].clone()
    memory.writer(0).write([b"\0" * (1 << 21)])
    found["large"] += 1
    assert torch.equal(found["large"], before + 1)


def _with_pixels(sample: dict[str, Any]) -> dict[str, Any]:
    return {"number": sample["number"], "pixels": np.full((200, 300, 3), sample["number"] % 256, np.uint8)}


def test_what_a_transform_makes_of_samples_goes_through_slots_too(mixed: Path) -> None:
    order: dict[str, Any] = {"local": mixed, "shuffle": True, "batch_size": 7, "transform": _with_pixels}
    found = list(StreamingDataLoader(StreamingDataset(**order), num_workers=2))
    assert identical(found, list(StreamingDataLoader(StreamingDataset(**order))))
    if hasattr(os, "memfd_create"):
        assert not any(batch["pixels"].is_shared() for batch in found)


def test_lists_that_only_begin_with_bytes_are_pickled() -> None:
    memory = Slots(1, 1, 1 << 17)
    batch = {"mixed": [bytes(50_000), "text"], "subclass": [_Bytes(50_000)]}
    stream = io.BytesIO(pack_for_trainer([batch], memory.writer(0)))
    found = unpack_from_worker(stream.getvalue())[0]
    assert identical(found, batch)
    assert type(found["subclass"][0]) is _Bytes


class _Bytes(bytes):
    pass


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("pictures", [8, 1], ids=["through a slot", "in the pickle"])
def test_tensors_keep_the_order_of_their_axes_in_memory(pictures: int) -> None:
    sent = torch.rand(pictures, 3, 120, 120).to(memory_format=torch.channels_last)
    nested = torch.nested.nested_tensor([torch.rand(100_000), torch.rand(5)])
    slots = Slots(1, 1, 4 << 20)
    for writer in (slots.writer(0), None):
        (found,) = unpack_from_worker(pack_for_trainer([{"x": sent, "y": nested}], writer))
        assert found["x"].stride() == sent.stride()
        assert torch.equal(found["x"], sent)
        assert found["y"].is_nested

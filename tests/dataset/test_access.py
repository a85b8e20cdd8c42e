"""Samples by number, subclasses, transforms, columns, pictures and arrays."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from streamshard import LocalDataset, StreamingDataLoader, StreamingDataset, World
from streamshard.errors import UnsafeEncodingError
from tests.support.small_datasets import text_samples, write_dataset

SAMPLES = text_samples(35)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("access") / "set"
    write_dataset(path, SAMPLES)
    return path


def identity(samples: list[Any]) -> list[Any]:
    return samples


def all_of(dataset: StreamingDataset, workers: int = 0) -> list[Any]:
    loader = StreamingDataLoader(dataset, 8, num_workers=workers, collate_fn=identity)
    return [sample for batch in loader for sample in batch]


SELECTIONS: list[Any] = [
    0, 34, -1, -35, np.int64(7), np.uint8(7), slice(None), slice(3, 30, 4), slice(None, None, -1), slice(40, 50),
    [3, 3, -1, 17], (1, 2), range(5, 20, 5), [], np.array([34, 0, 11]), np.array(4), np.arange(35) % 3 == 0,
    [[1, 2], [3, 4]], np.zeros((2, 0), int), np.array([[[3, -1]], [[0, 12]]]), torch.tensor([1, 5]),
]  # fmt: skip


@pytest.mark.parametrize("at", SELECTIONS, ids=repr)
def test_samples_by_number_are_those_of_local_dataset(directory: Path, at: Any) -> None:
    assert StreamingDataset(local=directory)[at] == LocalDataset(directory)[at]


@pytest.mark.parametrize("at", [35, -36, 10**30, [0, 35], np.array([-36])], ids=repr)
def test_numbers_beyond_the_dataset_are_index_errors(directory: Path, at: Any) -> None:
    with pytest.raises(IndexError, match="35"):
        StreamingDataset(local=directory)[at]


@pytest.mark.parametrize("at", [1.0, "1", None, [0.5], True, np.array([1.0]), {1}], ids=repr)
def test_other_things_are_type_errors(directory: Path, at: Any) -> None:
    with pytest.raises(TypeError, match="samples are selected by"):
        StreamingDataset(local=directory)[at]


def test_reading_by_number_while_iterating_disturbs_neither(directory: Path) -> None:
    dataset = StreamingDataset(local=directory, batch_size=8)
    seen = []
    for place, sample in enumerate(dataset):
        assert dataset[place] == sample
        seen.append(sample)
    assert seen == SAMPLES


# Subclasses and transforms


class WithItem(StreamingDataset):
    calls = 0

    def __getitem__(self, at: Any) -> Any:
        type(self).calls += 1
        sample = super().__getitem__(at)
        return (at, sample["text"])


class WithGetItem(StreamingDataset):
    def get_item(self, sample_id: int) -> Any:
        sample = super().get_item(sample_id)
        return (sample_id, sample["text"])


class WithState(StreamingDataset):
    """As people write them: arguments passed on, something of its own beside."""

    def __init__(self, *, suffix: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.suffix = suffix

    def __getitem__(self, at: Any) -> Any:
        sample = super().__getitem__(at)
        return (sample["number"], sample["text"] + self.suffix)


def make_subclass(kind: type[StreamingDataset], directory: Path, **arguments: Any) -> StreamingDataset:
    more = {"suffix": ""} if kind is WithState else {}
    return kind(local=directory, shuffle=True, **more, **arguments)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [WithItem, WithGetItem, WithState])
def test_a_subclass_sees_every_sample(directory: Path, kind: type[StreamingDataset], workers: int) -> None:
    got = all_of(make_subclass(kind, directory), workers)
    assert sorted(got) == [(sample["number"], sample["text"]) for sample in SAMPLES]
    expected = [sample["number"] for sample in all_of(StreamingDataset(local=directory, shuffle=True))]
    assert [number for number, _ in got] == expected


@pytest.mark.parametrize("workers", [0, 2])
def test_b114_a_subclass_with_workers_does_not_hang(directory: Path, workers: int) -> None:
    dataset = make_subclass(WithState, directory, batch_size=4)
    loader = DataLoader(dataset, 4, num_workers=workers, collate_fn=identity)
    assert sorted(number for batch in loader for number, _ in batch) == list(range(35))


def test_a_subclass_without_loader_is_called_too(directory: Path) -> None:
    WithItem.calls = 0
    assert len(list(make_subclass(WithItem, directory))) == 35
    assert WithItem.calls == 35
    dataset = make_subclass(WithGetItem, directory)
    assert dataset[3] == (3, SAMPLES[3]["text"])
    assert dataset[3:5] == [(3, SAMPLES[3]["text"]), (4, SAMPLES[4]["text"])]


def lengthened(sample: dict[str, Any]) -> dict[str, Any]:
    sample["length"] = len(sample.pop("text"))  # a transform may change the sample it is given
    return sample


@pytest.mark.parametrize("workers", [0, 2])
def test_transform_gets_every_sample(directory: Path, workers: int) -> None:
    got = all_of(StreamingDataset(local=directory, transform=lengthened), workers)
    assert got == [lengthened(dict(sample)) for sample in SAMPLES]


def test_transform_applies_to_samples_by_number_and_in_subclasses(directory: Path) -> None:
    dataset = StreamingDataset(local=directory, transform=lengthened)
    assert dataset[4] == lengthened(dict(SAMPLES[4]))
    assert dataset[[4, 4]] == [dataset[4]] * 2

    class Wrapped(StreamingDataset):
        def __getitem__(self, at: Any) -> Any:
            return super().__getitem__(at)["length"]

    assert all_of(Wrapped(local=directory, transform=lengthened)) == [
        len(sample["text"]) for sample in SAMPLES
    ]


def test_repeated_samples_are_separate_objects(tmp_path: Path) -> None:
    """A transform that changes its sample in place must not meet one twice."""
    write_dataset(tmp_path, SAMPLES[:3])
    for rank in range(8):
        dataset = StreamingDataset(local=tmp_path, world=World(rank, 8), transform=lengthened, epoch_size=9)
        assert [set(sample) for sample in all_of(dataset)] == [{"id", "number", "length"}] * 2


def test_a_transforms_error_reaches_the_loop_as_it_is(directory: Path) -> None:
    def fails(sample: dict[str, Any]) -> Any:
        raise LookupError(sample["id"])

    with pytest.raises(LookupError, match="a0"):
        all_of(StreamingDataset(local=directory, transform=fails))


def doubled(columns: dict[str, Any]) -> dict[str, Any]:
    assert isinstance(columns["number"], np.ndarray)
    assert columns["number"].dtype == np.int64
    return {"twice": torch.from_numpy(columns["number"] * 2), "id": columns["id"]}


@pytest.mark.parametrize("workers", [0, 2])
def test_batch_transform_gets_columns_of_whole_batches(directory: Path, workers: int) -> None:
    dataset = StreamingDataset(local=directory, batch_transform=doubled)
    batches = list(StreamingDataLoader(dataset, 8, num_workers=workers))
    assert [len(batch["id"]) for batch in batches] == [8, 8, 8, 8, 3]
    assert torch.cat([batch["twice"] for batch in batches]).tolist() == list(range(0, 70, 2))
    assert [one for batch in batches for one in batch["id"]] == [f"a{number}" for number in range(35)]


def test_batch_transform_gives_batches_in_a_plain_loop_too(directory: Path) -> None:
    dataset = StreamingDataset(local=directory, batch_transform=doubled, batch_size=30)
    assert [len(batch["id"]) for batch in dataset] == [30, 5]
    assert [len(batch["id"]) for batch in DataLoader(dataset, None)] == [30, 5]


def test_batch_transform_and_a_sample_by_sample_subclass_contradict(directory: Path) -> None:
    for kind in (WithItem, WithGetItem):
        with pytest.raises(ValueError, match=f"{kind.__name__} overrides __getitem__ or get_item"):
            kind(local=directory, batch_transform=doubled)


# What is decoded


@pytest.mark.parametrize("workers", [0, 2])
def test_only_the_wanted_columns_are_decoded(directory: Path, workers: int) -> None:
    got = all_of(StreamingDataset(local=directory, columns=["number", "id"]), workers)
    assert got == [{"number": sample["number"], "id": sample["id"]} for sample in SAMPLES]
    assert StreamingDataset(local=directory, columns=["id"])[2] == {"id": "a2"}


def png(number: int) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (2, 1), (number, 0, 0)).save(stream, "PNG")
    return stream.getvalue()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pictures") / "set"
    samples = [
        {"image": png(number), "number": number, "several": [png(number)] * (number % 3)}
        for number in range(12)
    ]
    write_dataset(
        path, samples, {"image": "png", "number": "int", "several": "list[png]"}, samples_per_shard=5
    )
    return path


@pytest.mark.parametrize("workers", [0, 2])
def test_pictures_are_decoded_unless_their_bytes_are_wanted(pictures: Path, workers: int) -> None:
    for sample in all_of(StreamingDataset(local=pictures), workers):
        assert sample["image"].getpixel((0, 0)) == (sample["number"], 0, 0)
        assert len(sample["several"]) == sample["number"] % 3
    for sample in all_of(StreamingDataset(local=pictures, decode_images=False), workers):
        assert sample["image"] == png(sample["number"])
        assert sample["several"] == [png(sample["number"])] * (sample["number"] % 3)


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("arrays") / "set"
    samples = [
        {"fixed": np.full((2, 3), number, np.float32), "free": np.arange(number + 1), "number": number}
        for number in range(12)
    ]
    write_dataset(path, samples, {"fixed": "ndarray:float32:2,3", "free": "ndarray", "number": "int"})
    return path


@pytest.mark.parametrize("workers", [0, 2])
def test_s19_arrays_may_be_changed_where_that_is_asked_for(arrays: Path, workers: int) -> None:
    """Those of mosaicml-streaming are read-only: torch warns, and in-place operations fail."""
    for sample in all_of(StreamingDataset(local=arrays, writeable_arrays=True), workers):
        for name in ("fixed", "free"):
            assert sample[name].flags.writeable
            sample[name] += 1
            torch.from_numpy(sample[name])  # no warning
    again = StreamingDataset(local=arrays, writeable_arrays=True)
    assert again[3]["fixed"].tolist() == np.full((2, 3), 3.0).tolist()
    if not workers:
        assert not StreamingDataset(local=arrays)[3]["fixed"].flags.writeable


@pytest.mark.parametrize("workers", [0, 2])
def test_s19_default_batches_hold_tensors_that_may_be_changed(arrays: Path, workers: int) -> None:
    dataset = StreamingDataset(local=arrays)
    for batch in StreamingDataLoader(dataset, 4, num_workers=workers):
        assert batch["fixed"].shape == (4, 2, 3)
        batch["fixed"] += 1
        assert isinstance(batch["free"], list)
        assert batch["number"].dtype == torch.int64


def test_columns_that_could_run_code_are_refused_unless_allowed(tmp_path: Path) -> None:
    write_dataset(tmp_path, [{"thing": {1, 2}}], {"thing": "pkl"})
    with pytest.raises(UnsafeEncodingError, match="thing"):
        StreamingDataset(local=tmp_path)
    assert StreamingDataset(local=tmp_path, allow_unsafe_types=True)[0] == {"thing": {1, 2}}


def test_shards_of_several_schemas_are_read_together(tmp_path: Path) -> None:
    write_dataset(tmp_path / "a", SAMPLES[:5])
    write_dataset(tmp_path / "b", [{"number": 5, "extra": "x"}], {"number": "int", "extra": "str"})
    index = json.loads((tmp_path / "a" / "index.json").read_text())
    for entry in json.loads((tmp_path / "b" / "index.json").read_text())["shards"]:
        entry["raw_data"]["basename"] = "other.mds"
        index["shards"].append(entry)
    (tmp_path / "b" / "shard.00000.mds").rename(tmp_path / "a" / "other.mds")
    (tmp_path / "a" / "index.json").write_text(json.dumps(index))
    assert all_of(StreamingDataset(local=tmp_path / "a")) == [*SAMPLES[:5], {"number": 5, "extra": "x"}]

"""What the default collate function makes of samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from streamshard import StreamingDataLoader, StreamingDataset
from streamshard.dataset.collate import collate_samples
from tests.support.small_datasets import write_dataset


def column(*values: Any) -> Any:
    return collate_samples([{"column": value} for value in values])["column"]


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1, 2], torch.int64),
        ([True, False], torch.bool),
        ([1.5, 2.0], torch.float64),
        ([np.float32(1), np.float32(2)], torch.float32),
        ([np.float16(1), np.float16(2)], torch.float16),
        ([np.uint8(1), np.uint8(255)], torch.uint8),
        ([np.int16(-1), np.int16(2)], torch.int16),
        ([np.uint16(1), np.uint16(65535)], torch.uint16),
        ([np.uint64(1), np.uint64(2**63)], torch.uint64),
        ([np.bool_(True), np.bool_(False)], torch.bool),
    ],
)
def test_numbers_become_one_tensor_of_their_type(values: list[Any], dtype: torch.dtype) -> None:
    got = column(*values)
    assert got.dtype == dtype
    assert got.tolist() == [value.item() if isinstance(value, np.generic) else value for value in values]


@pytest.mark.parametrize("dtype", ["u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "?"])
def test_arrays_of_one_shape_become_one_tensor(dtype: str) -> None:
    arrays = [np.array([[0, 1], [1, number]], dtype) for number in range(3)]
    for array in arrays:
        array.flags.writeable = False  # as they come out of a shard
    got = column(*arrays)
    assert got.shape == (3, 2, 2)
    assert got.tolist() == [array.tolist() for array in arrays]
    got[0] = got[1]  # no warning about read-only memory, and no error


@pytest.mark.parametrize(
    "values",
    [
        ["a", "b"],
        [b"a", b"b"],
        [None, None],
        [1, None],
        [None, 1],
        [1, 2.5],
        [True, 2],
        [1, "2"],
        [2**70, 1],
        [1, -(2**63) - 1],
        [{"a": 1}, {"a": 2}],
        [[1, 2], [3, 4]],
        [[], [1]],
        [np.zeros(2), np.zeros(3)],
        [np.zeros(2, "f4"), np.zeros(2, "f8")],
        [np.array(["a"]), np.array(["b"])],
        [torch.zeros(2), torch.zeros(3)],
        [torch.zeros(2), 1],
    ],
    ids=str,
)
def test_everything_else_stays_a_list_with_one_item_per_sample(values: list[Any]) -> None:
    got = column(*values)
    assert isinstance(got, list)
    assert all(one is other for one, other in zip(got, values, strict=True))


def test_tensors_of_one_shape_are_stacked() -> None:
    assert column(torch.ones(2), torch.zeros(2)).tolist() == [[1, 1], [0, 0]]


def test_pictures_stay_a_list() -> None:
    assert len(column(Image.new("RGB", (1, 1)), Image.new("RGB", (1, 1)))) == 2


def test_samples_with_other_keys_stay_samples() -> None:
    samples = [{"a": 1}, {"b": 2}]
    assert collate_samples(samples) == samples
    assert collate_samples([]) == []


def test_samples_that_are_no_dicts_go_to_torch() -> None:
    assert collate_samples([1, 2]).tolist() == [1, 2]
    pairs = collate_samples([(1, "a"), (2, "b")])
    assert pairs[0].tolist() == [1, 2]
    assert list(pairs[1]) == ["a", "b"]


@pytest.mark.parametrize("batch_size", [1, 2])
def test_b080_lists_in_a_json_column_are_not_transposed(tmp_path: Path, batch_size: int) -> None:
    samples = [{"words": ["a", "b"]}, {"words": ["c", "d"]}]
    write_dataset(tmp_path, samples, {"words": "json"})
    batches = list(StreamingDataLoader(StreamingDataset(local=tmp_path), batch_size))
    assert [words for batch in batches for words in batch["words"]] == [["a", "b"], ["c", "d"]]
    assert json.dumps(batches[0]["words"]) == json.dumps([sample["words"] for sample in samples[:batch_size]])


def test_integers_of_any_size_survive(tmp_path: Path) -> None:
    samples = [{"big": 2**80}, {"big": 3}]
    write_dataset(tmp_path, samples, {"big": "str_int"})
    (batch,) = StreamingDataLoader(StreamingDataset(local=tmp_path), 2)
    assert batch["big"] == [2**80, 3]

"""Values that go from one process of a job to another."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from streamshard.dataset.parcels import pack, unpack


def there(value: Any) -> Any:
    return unpack(pack(value).clone())


DTYPES = [
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (3, 5)])
def test_a_tensor_of_every_dtype_and_shape_arrives_as_it_was(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    value = torch.arange(2 * 15).reshape(2, 15).to(dtype)[1][: int(np.prod(shape))].reshape(shape)
    arrived = there({"x": value})["x"]
    assert arrived.dtype == dtype
    assert arrived.shape == value.shape
    assert torch.equal(arrived, value)


def test_large_tensors_and_arrays_are_not_in_the_pickle() -> None:
    value = {"tensor": torch.ones(300_000), "array": np.ones(300_000), "turned": torch.ones(600, 500).T}
    parcel = pack(value)
    pickled = int.from_bytes(bytes(parcel[8:16].tolist()), "little")
    assert pickled < 1000
    arrived = unpack(parcel)
    assert torch.equal(arrived["turned"], value["turned"])
    assert np.array_equal(arrived["array"], value["array"])
    assert arrived["tensor"].data_ptr() % 64 == parcel.data_ptr() % 64


def test_what_is_no_plain_tensor_arrives_too() -> None:
    values = {
        "gradient": torch.ones(3, requires_grad=True),
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "sparse": torch.eye(3).to_sparse(),
        "picture": Image.new("RGB", (7, 5), (1, 2, 3)),
        "texts": ["a", "ü", ""],
        "none": None,
        "bytes": b"\0" * 70,
        "numbers": [1, 2.5, 1 << 80],
        "objects": np.array(["a", None], dtype=object),
        "strings": np.array(["a", "bc"]),
    }
    arrived = there(values)
    assert arrived["gradient"].requires_grad
    assert torch.equal(arrived["conjugate"], values["conjugate"])
    assert torch.equal(arrived["sparse"].to_dense(), torch.eye(3))
    assert arrived["picture"].tobytes() == values["picture"].tobytes()
    assert arrived["objects"].tolist() == ["a", None]
    assert arrived["strings"].tolist() == ["a", "bc"]
    for name in ("texts", "none", "bytes", "numbers"):
        assert arrived[name] == values[name]


def test_who_may_write_stays_and_nothing_is_shared() -> None:
    frozen = np.arange(5)
    frozen.flags.writeable = False
    arrived = there([frozen, np.arange(5), torch.arange(5)])
    assert not arrived[0].flags.writeable
    arrived[1][:] = 9
    arrived[2][:] = 9
    assert frozen.tolist() == list(range(5)) == arrived[0].tolist()
    same = torch.ones(2)
    first, second = there((same, same))
    assert first is second


def test_what_cannot_be_sent_is_an_error_where_it_is() -> None:
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pack(lambda: None)


@given(st.lists(st.tuples(st.integers(0, 200), st.booleans(), st.text(max_size=3)), max_size=12))
def test_any_mixture_arrives(parts: list[tuple[int, bool, str]]) -> None:
    values = [
        (torch.arange(size) if tensor else np.arange(size, dtype=np.uint8) % 251, text)
        for size, tensor, text in parts
    ]
    arrived = there(values)
    assert [text for _, text in arrived] == [text for _, text in values]
    for (got, _), (sent, _) in zip(arrived, values, strict=True):
        assert type(got) is type(sent)
        assert got.tolist() == sent.tolist()

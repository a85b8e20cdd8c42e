"""Values as bytes for another process of the same job: tensors and arrays as they lie in memory, the rest pickled.

A parcel is one run of bytes, integers little-endian:

    u64      number of buffers, n
    u64      size of the pickle in bytes
    n * u64  for each buffer its size in bytes
    ...      the pickle, protocol 5
    ...      the buffers, each at the next multiple of 64

Unpickling runs whatever code a pickle names. A parcel must come from a process of one's own job, over its process
group; it is never written to a place or read from one.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

_ALIGNMENT = 64
_HEAD = struct.Struct("<QQ")


def pack(value: Any) -> torch.Tensor:
    """Return a value as a parcel, a uint8 tensor (nbytes,).

    Raises:
        Exception: whatever pickle raises for what it cannot take.
    """
    buffers: list[memoryview] = []

    def keep(buffer: pickle.PickleBuffer) -> None:
        buffers.append(buffer.raw())

    stream = io.BytesIO()
    _Pickler(stream, protocol=5, buffer_callback=keep).dump(value)
    pickled = stream.getbuffer()
    sizes = [buffer.nbytes for buffer in buffers]
    head = _HEAD.pack(len(buffers), pickled.nbytes) + struct.pack(f"<{len(sizes)}Q", *sizes)
    begin = len(head) + pickled.nbytes
    places = list(_places(begin, sizes))
    parcel = torch.empty(places[-1][1] if places else begin, dtype=torch.uint8)
    target = parcel.numpy().data
    target[: len(head)] = head
    target[len(head) : begin] = pickled
    for (first, last), buffer in zip(places, buffers, strict=True):
        target[first:last] = buffer
    return parcel


def unpack(parcel: torch.Tensor) -> Any:
    """Return the value of a parcel of this job. Its tensors and arrays lie in the parcel's own memory.

    Raises:
        Exception: whatever unpickling raises, as for a class that is not to be found in this process.
    """
    source = parcel.numpy().data
    count, nbytes = _HEAD.unpack_from(source)
    sizes = struct.unpack_from(f"<{count}Q", source, _HEAD.size)
    stream = _HEAD.size + 8 * count
    begin = stream + nbytes
    buffers = [source[first:last] for first, last in _places(begin, sizes)]
    return pickle.loads(source[stream:begin], buffers=buffers)  # noqa: S301 of our own job, see above


class _Pickler(pickle.Pickler):
    """Hands plain CPU tensors over as buffers; numpy does so with its arrays by itself."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not torch.Tensor or not _is_plain(value):
            return NotImplemented
        array: np.ndarray[Any, Any] = value.contiguous().reshape(-1).view(torch.uint8).numpy()
        return _tensor, (pickle.PickleBuffer(array.data), value.dtype, tuple(value.shape))


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
    )


def _tensor(buffer: Any, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(buffer, dtype=dtype).reshape(shape)


def _places(begin: int, sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Where each buffer begins and ends."""
    for size in sizes:
        first = -(-begin // _ALIGNMENT) * _ALIGNMENT
        begin = first + size
        yield first, begin

"""Values as bytes for another process of the same job: tensors and arrays as they lie in memory, the rest pickled.

Between processes of a group, a parcel is one run of bytes, integers little-endian:

    u64      number of buffers, n
    u64      size of the pickle in bytes
    n * u64  for each buffer its size in bytes
    ...      the pickle, protocol 5
    ...      the buffers, each at the next multiple of 64

From a DataLoader worker to its trainer, it is a pickle in which small tensors are bytes too; see
``pack_for_trainer``.

Unpickling runs whatever code a pickle names. A parcel must come from a process of one's own job, over its process
group; it is never written to a place or read from one.
"""

from __future__ import annotations

import io
import itertools
import logging
import math
import os
import pickle
import struct
from collections.abc import Iterator, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from streamshard.dataset.left_out import Handed
from streamshard.dataset.slots import SlotWriter, take_from

_ALIGNMENT = 64
# Up to this size, copying a tensor with its pickle costs less than opening a file for it on both sides.
_SMALL_NBYTES = 256 << 10
# From this size on, a column of bytes goes through shared memory.
_LARGE_NBYTES = 32 << 10
_HEAD = struct.Struct("<QQ")

logger = logging.getLogger(__name__)
_told: set[int] = set()


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


def pack_for_trainer(batches: list[Any], writer: SlotWriter | None) -> bytes:
    """Return a worker's batches as a pickle for its trainer.

    Small tensors are part of it. Large columns of bytes and large tensors are put into shared memory where ``writer``
    has room for them; else tensors go as open files, torch's own way, as long as /dev/shm has room for them.

    Raises:
        Exception: whatever pickle raises for what it cannot take.
    """
    taken = None
    if writer is not None:
        lean, columns, values, tensors = _without_large_columns(batches)
        place = writer.write(values) if values else None
        if place is not None:
            batches = lean
            taken = (*place, [len(value) for value in values], len(tensors), columns, tensors)
    stream = io.BytesIO()
    try:
        _ForTrainer(stream).dump((batches, taken))
    except RuntimeError as error:
        stream = io.BytesIO()
        _ForTrainer(stream, bytes_of_all=True).dump((batches, taken))
        if os.getpid() not in _told:
            _told.add(os.getpid())
            logger.warning(
                "no shared memory for a batch (%s): batches go through a pipe, which is slower; make %s larger, "
                "as by docker run --shm-size=8g",
                error,
                "/dev/shm",  # noqa: S108 where the C library keeps it
            )
    return stream.getvalue()


def unpack_from_worker(packed: bytes) -> list[Any]:
    """Return the batches that a worker of this process has packed; to be called once."""
    batches, taken = pickle.loads(packed)  # noqa: S301 of our own worker
    if taken is not None:
        *place, columns, tensors = taken
        values = iter(take_from(*place))
        for number, key, count in columns:
            _columns_of(batches[number])[key] = list(itertools.islice(values, count))
        for (number, key, *kind), value in zip(tensors, values, strict=True):
            _columns_of(batches[number])[key] = _tensor(value, *kind)
    found: list[Any] = batches
    return found


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
        content, stride = _content(value)
        return _tensor, (pickle.PickleBuffer(content.data), value.dtype, tuple(value.shape), stride)


class _ForTrainer(ForkingPickler):
    """Makes bytes of small tensors; torch has taught its base class to hand others over as open files."""

    def __init__(self, stream: io.BytesIO, *, bytes_of_all: bool = False) -> None:
        super().__init__(stream, 5)
        self._most_nbytes = math.inf if bytes_of_all else _SMALL_NBYTES

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not torch.Tensor or not _is_plain(value) or value.nbytes > self._most_nbytes:
            return NotImplemented
        content, stride = _content(value)
        return _tensor, (bytearray(content), value.dtype, tuple(value.shape), stride)


class _Lean(NamedTuple):
    """Batches without their large columns, and these: what belongs where, and the values, those of tensors last."""

    batches: list[Any]
    columns: list[tuple[int, Any, int]]  # number of the batch, key, count
    values: list[bytes | memoryview]
    tensors: list[tuple[int, Any, torch.dtype, tuple[int, ...], tuple[int, ...] | None]]


def _without_large_columns(batches: list[Any]) -> _Lean:
    found = _Lean([], [], [], [])
    contents: list[memoryview] = []
    for number, batch in enumerate(batches):
        rest = _columns_of(batch)
        large: dict[Any, None] = {}
        for key, column in rest.items():
            if _is_large_bytes(column):
                found.columns.append((number, key, len(column)))
                found.values.extend(column)
            elif _is_large_tensor(column):
                content, stride = _content(column)
                found.tensors.append((number, key, column.dtype, tuple(column.shape), stride))
                contents.append(content.data)
            else:
                continue
            large[key] = None
        if large:
            rest = {**rest, **large}
            batch = batch._replace(batch=rest) if isinstance(batch, Handed) else rest
        found.batches.append(batch)
    found.values.extend(contents)
    return found


def _columns_of(batch: Any) -> dict[Any, Any]:
    inner = batch.batch if isinstance(batch, Handed) else batch
    return inner if type(inner) is dict else {}


def _is_large_bytes(column: Any) -> bool:
    if type(column) is not list or not column or type(column[0]) is not bytes:
        return False
    return all(type(value) is bytes for value in column) and sum(map(len, column)) >= _LARGE_NBYTES


def _is_large_tensor(column: Any) -> bool:
    return type(column) is torch.Tensor and _is_plain(column) and column.nbytes > _SMALL_NBYTES


def _content(tensor: torch.Tensor) -> tuple[NDArray[np.uint8], tuple[int, ...] | None]:
    """A plain tensor's bytes, shape (nbytes,), and its strides where it is dense in another order than its axes'."""
    stride = None
    if not tensor.is_contiguous():  # as in torch.channels_last, which must arrive as such
        steps = tensor.stride()
        ordered = tensor.permute(sorted(range(tensor.dim()), key=steps.__getitem__, reverse=True))
        if ordered.is_contiguous():
            tensor, stride = ordered, steps
    array: NDArray[np.uint8] = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    return array, stride


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_nested)
        and not (tensor.is_conj() or tensor.is_neg())
    )


def _tensor(
    buffer: Any, dtype: torch.dtype, shape: Sequence[int], stride: Sequence[int] | None = None
) -> torch.Tensor:
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    flat = torch.frombuffer(buffer, dtype=dtype)
    return flat.reshape(shape) if stride is None else flat.as_strided(shape, stride)


def _places(begin: int, sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Where each buffer begins and ends."""
    for size in sizes:
        first = -(-begin // _ALIGNMENT) * _ALIGNMENT
        begin = first + size
        yield first, begin

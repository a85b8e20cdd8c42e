"""Arrays: ``ndarray``, ``ndarray:dtype`` and ``ndarray:dtype:d0,d1,...``.

What the name fixes is not stored. The rest stands before the values, in C order:

    ndarray                 dtype code (1 byte), shape header, values
    ndarray:uint16          shape header, values
    ndarray:uint16:2,3      values

Shape header: one byte ``ndim << 2 | k``, then ndim dimensions of ``2 ** k`` bytes each.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamshard.errors import FormatError, SampleError
from streamshard.format.encodings import Encoding, type_name

# The numbers are MDS's, fixed for ever.
DTYPE_CODES: dict[str, int] = {
    "uint8": 8,
    "int8": 9,
    "uint16": 16,
    "int16": 17,
    "float16": 18,
    "uint32": 32,
    "int32": 33,
    "float32": 34,
    "uint64": 64,
    "int64": 65,
    "float64": 66,
}
MAX_NDIM = 63
_DTYPES = {name: np.dtype(name).newbyteorder("<") for name in DTYPE_CODES}
_DTYPE_OF_CODE = {code: _DTYPES[name] for name, code in DTYPE_CODES.items()}
_CODE_OF_DTYPE = {dtype: bytes([code]) for code, dtype in _DTYPE_OF_CODE.items()}
_DIM_DTYPES = tuple(np.dtype(d) for d in ("<u1", "<u2", "<u4", "<u8"))
_SHAPE = re.compile(r"[0-9]{1,18}(,[0-9]{1,18})*")


class NdarrayEncoding(Encoding):
    """An array, its dtype and shape fixed by the name or stored with each value."""

    def __init__(self, dtype: str | None, shape: tuple[int, ...] | None) -> None:
        self.dtype = None if dtype is None else _DTYPES[dtype]
        self.shape = shape
        self.name = "ndarray"
        if dtype is not None:
            self.name += f":{dtype}"
        if self.dtype is not None and shape is not None:
            self.name += ":" + ",".join(map(str, shape))
            self.size = math.prod(shape) * self.dtype.itemsize

    @classmethod
    def from_parameters(cls, parameters: str) -> NdarrayEncoding:
        """Parse what follows ``ndarray:``; raises FormatError."""
        dtype, colon, dims = parameters.partition(":")
        if not parameters:
            return cls(None, None)
        if dtype not in DTYPE_CODES:
            raise FormatError(
                f"unknown dtype in encoding 'ndarray:{parameters:.60}'; known: {', '.join(DTYPE_CODES)}"
            )
        if not colon:
            return cls(dtype, None)
        shape = tuple(map(int, dims.split(","))) if _SHAPE.fullmatch(dims) else ()
        if not shape or min(shape) < 1 or len(shape) > MAX_NDIM:
            raise FormatError(
                f"shape {dims!r:.60} in an ndarray encoding: expected sizes of at least 1 such as '2,3'"
            )
        if math.prod(shape) * _DTYPES[dtype].itemsize >= 2**32:
            raise FormatError(f"shape {dims!r:.60} in an ndarray encoding: a value would pass 4 GiB")
        return cls(dtype, shape)

    def encode(self, value: Any) -> bytes:
        if type(value) is not np.ndarray and (
            not isinstance(value, np.ndarray) or isinstance(value, np.ma.MaskedArray)
        ):
            raise SampleError(f"expected a numpy array, found {type_name(value)}; wrap it with numpy.asarray")
        dtype = value.dtype
        code = _CODE_OF_DTYPE.get(dtype)
        if code is None:
            # Big-endian arrays have the same numbers in another order of bytes.
            dtype = dtype.newbyteorder("<")
            code = _CODE_OF_DTYPE.get(dtype)
            if code is None:
                raise SampleError(
                    f"arrays of {value.dtype} cannot be stored; known dtypes: {', '.join(DTYPE_CODES)}"
                )
            value = value.astype(dtype)
        head = b""
        if self.dtype is None:
            head = code
        elif dtype != self.dtype:
            raise SampleError(f"expected an array of {self.dtype.name}, found {value.dtype.name}")
        if self.shape is None:
            head += _shape_header(value.shape)
        elif value.shape != self.shape:
            raise SampleError(f"expected an array of shape {self.shape}, found {value.shape}")
        payload: bytes = value.tobytes()
        return head + payload

    def decode(self, payload: bytes | memoryview) -> NDArray[Any]:
        array, immutable = self.view(payload)
        if not immutable:
            array = array.copy()
        array.flags.writeable = False
        return array

    def decode_writeable(self, payload: bytes | memoryview) -> NDArray[Any]:
        """Decode into memory of the array's own that may be changed."""
        array: NDArray[Any] = self.view(payload)[0].copy()
        return array

    def view(self, payload: bytes | memoryview) -> tuple[NDArray[Any], bool]:
        """Give the array over the payload's memory, and whether that memory is immutable bytes."""
        nbytes = len(payload)
        at = 0
        dtype = self.dtype
        if dtype is None:
            if not nbytes:
                raise FormatError("an ndarray of 0 bytes: expected a dtype code")
            found = _DTYPE_OF_CODE.get(payload[0])
            if found is None:
                raise FormatError(f"unknown ndarray dtype code {payload[0]}")
            dtype = found
            at = 1
        shape = self.shape
        if shape is None:
            if nbytes <= at:
                raise FormatError(f"an ndarray of {nbytes} bytes: expected a shape header")
            ndim, k = payload[at] >> 2, payload[at] & 3
            end = at + 1 + (ndim << k)
            if end > nbytes:
                raise FormatError(f"an ndarray of {nbytes} bytes whose shape header takes {end}")
            shape = tuple(np.frombuffer(payload, _DIM_DTYPES[k], ndim, at + 1).tolist())
            at = end
        wanted = math.prod(shape) * dtype.itemsize
        if nbytes - at != wanted:
            raise FormatError(
                f"an array of {dtype.name} and shape {_show(shape)} takes {wanted} bytes, found {nbytes - at}"
            )
        count = wanted // dtype.itemsize
        flat = np.frombuffer(payload, dtype, count, at) if count else np.empty(0, dtype)
        try:
            return flat.reshape(shape), type(payload) is bytes
        except ValueError as error:  # e.g. a zero-size array with a dimension beyond what numpy can index
            raise FormatError(f"an array of shape {_show(shape)}: {error}") from error


def _show(shape: tuple[int, ...]) -> str:
    return str(shape) if len(shape) < 9 else f"of {len(shape)} dimensions"


def _shape_header(shape: tuple[int, ...]) -> bytes:
    if len(shape) > MAX_NDIM:
        raise SampleError(f"an array of {len(shape)} dimensions; at most {MAX_NDIM} can be stored")
    largest = max(shape, default=0)
    k = (largest > 0xFF) + (largest > 0xFFFF) + (largest > 0xFFFFFFFF)
    head = bytes([len(shape) << 2 | k])
    if k == 0:
        return head + bytes(shape)
    return head + np.array(shape, _DIM_DTYPES[k]).tobytes()

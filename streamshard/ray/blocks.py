"""Samples as Arrow tables in Ray's types, the same for every block of a dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from ray.data.extensions import (
    ArrowPythonObjectArray,
    ArrowPythonObjectType,
    ArrowTensorArray,
    ArrowVariableShapedTensorArray,
)

from streamshard.format.encodings import SCALARS

if TYPE_CHECKING:
    from streamshard.format.decoder import SampleDecoder
    from streamshard.format.schema import Schema

_IMAGES = ("jpeg", "png", "pil")
_IMAGE_LISTS = ("list[jpeg]", "list[png]", "list[pil]", "jpeg_array", "jpegarray")

_Make = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class BlockTypes:
    """The columns wanted of a schema: how samples are decoded, and how each column becomes an Arrow array."""

    decoder: SampleDecoder
    makers: Mapping[str, _Make]

    @classmethod
    def of(
        cls,
        schema: Schema,
        columns: Sequence[str] | None,
        *,
        decode_images: bool,
        allow_unsafe_types: bool,
    ) -> BlockTypes:
        """Raises ValueError for a column that is not there, UnsafeEncodingError for one that runs code."""
        decoder = schema.decoder(columns, decode_images=decode_images, allow_unsafe_types=allow_unsafe_types)
        encodings = dict(zip(schema.names, schema.encodings, strict=True))
        return cls(
            decoder,
            {name: _maker(encodings[name], decode_images=decode_images) for name in decoder.columns},
        )

    def table(self, samples: Sequence[Mapping[str, Any]]) -> pa.Table:
        """A block of the samples."""
        return pa.table({name: make([s[name] for s in samples]) for name, make in self.makers.items()})

    def schema(self) -> pa.Schema | None:
        """The schema of all blocks, None where a column's type depends on its values."""
        try:
            return self.table([]).schema
        except _UnknownTypeError:
            return None


class _UnknownTypeError(ValueError):
    """No values, and the type is told by them alone."""


def _maker(encoding: str, *, decode_images: bool) -> _Make:
    kind, _, parameters = encoding.partition(":")
    if kind in _IMAGES:
        return _tensors if decode_images else lambda values: pa.array(values, pa.binary())
    if kind in _IMAGE_LISTS:
        return _objects if decode_images else lambda values: pa.array(values, pa.list_(pa.binary()))
    if kind == "list[bytes]":
        return lambda values: pa.array(values, pa.list_(pa.binary()))
    if kind in SCALARS:
        dtype = np.dtype(SCALARS[kind][1])
        return lambda values: pa.array(np.array(values, dtype))
    if kind == "ndarray" and parameters:
        name, _, shape = parameters.partition(":")
        if shape:
            sizes = tuple(int(size) for size in shape.split(","))
            return lambda values: ArrowTensorArray.from_numpy(
                np.stack(values) if values else np.empty((0, *sizes), np.dtype(name))
            )
        return _tensors
    simple = {"str": pa.string(), "bytes": pa.binary(), "str_float": pa.float64()}.get(kind)
    if simple is not None:
        return lambda values: pa.array(values, simple)
    return _objects


def _tensors(values: list[Any]) -> Any:
    """Arrays of one number of dimensions; images become (height, width, 3)."""
    if not values:
        raise _UnknownTypeError
    arrays = np.empty(len(values), object)
    for number, value in enumerate(values):
        arrays[number] = value if isinstance(value, np.ndarray) else np.asarray(value.convert("RGB"))
    if len({array.ndim for array in arrays}) > 1:
        return _objects(list(arrays))
    return ArrowVariableShapedTensorArray.from_numpy(arrays)


def _objects(values: list[Any]) -> Any:
    if not values:
        return pa.ExtensionArray.from_storage(ArrowPythonObjectType(), pa.array([], pa.large_binary()))
    array = np.empty(len(values), object)
    for number, value in enumerate(values):
        array[number] = value
    return ArrowPythonObjectArray.from_objects(array)

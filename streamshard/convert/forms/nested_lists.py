"""Lists of lists of numbers in Arrow that are arrays of a shape: lists of fixed sizes, and ``Array2D`` to ``Array5D``.

Hugging Face ``datasets`` stores the latter as plain nested lists and says the shape in the features beside the schema.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

Shape = tuple[int | None, ...]
"""Sizes, outermost first; ``None``: every row has its own. Only the first one can be that."""

_MOST_DIMENSIONS = 32


def shapes_in_schema(metadata: Mapping[bytes, bytes] | None) -> dict[str, Shape]:
    """The shapes that features of Hugging Face ``datasets`` give to columns."""
    try:
        features = json.loads((metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
        items = list(features.items())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}  # nobody's duty: lists are stored all the same
    shapes = {name: feature.get("shape") for name, feature in items if isinstance(feature, dict)}
    return {name: tuple(shape) for name, shape in shapes.items() if _is_shape(shape)}


def _is_shape(shape: Any) -> TypeGuard[list[int | None]]:
    return (
        isinstance(shape, list)
        and 2 <= len(shape) <= _MOST_DIMENSIONS
        and (shape[0] is None or type(shape[0]) is int)
        and all(type(size) is int for size in shape[1:])
    )


def shape_of_type(types: Any, kind: Any) -> Shape | None:
    """The shape of lists of fixed sizes inside one another; ``None`` for any other type, and for a single list."""
    sizes = []
    while types.is_fixed_size_list(kind):
        sizes.append(int(kind.list_size))
        kind = kind.value_type
    return tuple(sizes) if len(sizes) > 1 and not types.is_nested(kind) else None


def shaped_arrays(pa: Any, column: Any, shape: Shape) -> tuple[list[NDArray[Any]], Any] | None:
    """The values of a column of nested lists as arrays of a shape, and the Arrow type of their numbers.

    ``None`` where a value is null at any level, or has another shape.
    """
    types = pa.types
    flat, counts = column, np.ones(len(column), np.int64)
    for level, size in enumerate(shape):
        kind = flat.type
        if (
            not (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))
            or flat.null_count
        ):
            return None
        lengths = pa.compute.list_value_length(flat).to_numpy(zero_copy_only=False)
        if size is not None and not np.all(lengths == size):
            return None
        if level == 0:
            counts = lengths.astype(np.int64)
        flat = flat.flatten()
    if flat.null_count or types.is_nested(flat.type):
        return None
    inner = tuple(size for size in shape[1:] if size is not None)
    try:
        whole = flat.to_numpy(zero_copy_only=False).reshape(int(counts.sum()), *inner)
    except ValueError:  # sizes that no array has, of lists that are all empty
        return None
    return np.split(whole, np.cumsum(counts)[:-1]) if len(counts) else [], flat.type


def fixed_sizes(shape: Sequence[int | None]) -> str:
    """The end of the encoding of an array: its sizes, or nothing where rows differ, or an array is empty."""
    return "" if any(not size for size in shape) else ":" + ",".join(map(str, shape))

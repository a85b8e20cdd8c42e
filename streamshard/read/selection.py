"""Which samples an index expression means (int, slice, mask, integers in any nesting), and which columns of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


def parse_selection(at: Any, num_samples: int) -> NDArray[np.int64]:
    """Turn a slice, mask, or (nested) sequence or array of ints into sample ids in [0, num_samples).

    The result has the shape of the integers given; a slice or a mask gives shape (n,).

    Raises:
        IndexError: an id outside [-num_samples, num_samples), or a mask of another length.
        TypeError: something else.
    """
    if isinstance(at, slice):
        return np.arange(*at.indices(num_samples), dtype=np.int64)
    if not isinstance(at, (list, tuple, range)) and not hasattr(at, "__array__"):
        _refuse(at)
    try:
        array = np.asarray(at)
    except ValueError as error:  # lists of unequal length
        raise TypeError(f"samples are selected by arrays of one shape: {error}") from error
    if array.dtype == np.bool_:
        if array.shape != (num_samples,):
            raise IndexError(f"a boolean mask of shape {array.shape} for {num_samples:,} samples")
        return np.flatnonzero(array).astype(np.int64)
    if array.size == 0:
        return np.zeros(array.shape, np.int64)
    if array.dtype.kind not in "iu" and not _holds_large_ints(array):
        _refuse(at)
    low, high = int(array.min()), int(array.max())
    if low < -num_samples or high >= num_samples:
        raise IndexError(out_of_range(low if low < -num_samples else high, num_samples))
    ids = array.astype(np.int64)
    return np.where(ids < 0, ids + num_samples, ids) if low < 0 else ids


def nested(samples: list[Any], shape: tuple[int, ...]) -> Any:
    """Arrange samples in lists of lists of a shape; shape () gives the sample itself."""
    rest = iter(samples)

    def arrange(depth: int) -> Any:
        return next(rest) if depth == len(shape) else [arrange(depth + 1) for _ in range(shape[depth])]

    return arrange(0)


def wanted_columns(columns: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the names of the wanted columns; ValueError for a single string."""
    if isinstance(columns, str):
        raise ValueError(f"columns={columns!r}: expected a list of names, such as [{columns!r}]")  # noqa: TRY004
    return None if columns is None else tuple(columns)


def _holds_large_ints(array: NDArray[Any]) -> bool:
    """Python ints beyond 64 bits make an array of objects."""
    return array.dtype == np.object_ and all(type(item) is int for item in array.flat)


def out_of_range(at: int, num_samples: int) -> str:
    if not num_samples:
        return f"sample {at}: the dataset is empty"
    return (
        f"sample {at}: the dataset has {num_samples:,} samples, so from {-num_samples} to {num_samples - 1}"
    )


def _refuse(at: Any) -> NoReturn:
    raise TypeError(
        "samples are selected by an int, a slice, a boolean mask, or a list or array of ints, "
        f"not {type(at).__name__}"
    )

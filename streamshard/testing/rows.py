"""The samples of a batch, one by one."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def rows_of(batch: Any) -> list[Any]:
    """Split a batch as common collate functions make it into its samples.

    A list holds samples; a tensor or array holds one in each row; mappings and tuples hold columns of equal
    length, nested as deep as you like.

    Raises:
        TypeError: anything else, or columns of different lengths.
    """
    torch = sys.modules.get("torch")
    if isinstance(batch, list):
        return batch
    if isinstance(batch, np.ndarray) and batch.ndim:
        return list(batch)
    if torch is not None and isinstance(batch, torch.Tensor) and batch.ndim:
        return list(batch)
    if isinstance(batch, Mapping) and batch:
        columns = {key: rows_of(column) for key, column in batch.items()}
        return [dict(zip(columns, row, strict=True)) for row in _across(columns)]
    if isinstance(batch, tuple) and batch:
        return list(_across({f"[{place}]": rows_of(column) for place, column in enumerate(batch)}))
    raise TypeError(
        f"cannot tell the samples of a batch apart: found a {type(batch).__name__}, expected a list of samples, "
        "rows, or a dict or tuple of columns; pass samples_of=, a function from a batch to the list of its samples"
    )


def _across(columns: Mapping[Any, Sequence[Any]]) -> list[tuple[Any, ...]]:
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{name}: {length}" for name, length in lengths.items())
        raise TypeError(
            f"cannot tell the samples of a batch apart: its columns have different lengths ({said}); pass "
            "samples_of=, a function from a batch to the list of its samples"
        )
    return list(zip(*columns.values(), strict=True))

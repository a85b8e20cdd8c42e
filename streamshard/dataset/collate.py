"""From samples to a batch, and what a user's functions may do on the way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

_NUMBERS = (int, float, complex, np.number, np.bool_)


def collate_samples(samples: Sequence[Any] | dict[str, Any]) -> Any:
    """Join samples into a batch: tensors where values can be stacked, lists of values everywhere else.

    For samples that are dicts with equal keys the result is a dict. A column becomes one tensor where all of its
    values are numbers, or arrays or tensors of one shape; any other column (text, JSON values, pictures, ``None``,
    arrays of several shapes) stays a list with one item per sample. torch's ``default_collate`` would transpose
    JSON lists and refuse pictures; it is used for samples that are no dicts.

    A dict is a batch in columns, as a dataset with one schema reads it: arrays and lists with a row for each
    sample. The result is the same as for its samples.
    """
    if isinstance(samples, dict):
        return {key: _whole_column(column) for key, column in samples.items()}
    if not len(samples):
        return []
    first = samples[0]
    if not isinstance(first, dict):
        return default_collate(list(samples))
    keys = first.keys()
    if not all(isinstance(sample, dict) and sample.keys() == keys for sample in samples):
        return list(samples)
    return {key: _column([sample[key] for sample in samples]) for key in keys}


def _whole_column(column: Any) -> Any:
    # A copy: the array holds the rows of other batches too, which must not live, or be saved, with this one.
    return torch.from_numpy(column.copy()) if isinstance(column, np.ndarray) else _column(column)


def _column(values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, _NUMBERS):
        kind = type(first)
        if not all(type(each) is kind for each in values):
            return values
        if isinstance(first, np.generic):
            return torch.from_numpy(np.array(values))
        # An int column may hold numbers of any size (str_int); those do not fit a tensor.
        return default_collate(values) if _fits(values) else values
    if isinstance(first, torch.Tensor):
        stackable = all(
            isinstance(each, torch.Tensor) and each.shape == first.shape and each.dtype == first.dtype
            for each in values
        )
        return torch.stack(values) if stackable else values
    if isinstance(first, np.ndarray):
        stackable = first.dtype.kind in "biufc" and all(
            isinstance(each, np.ndarray) and each.shape == first.shape and each.dtype == first.dtype
            for each in values
        )
        return torch.from_numpy(np.stack(values)) if stackable else values
    return values


def _fits(values: list[Any]) -> bool:
    return type(values[0]) is not int or (min(values) >= -(1 << 63) and max(values) < 1 << 63)


def as_it_is(batch: Any) -> Any:
    """Hand a batch on unchanged: for datasets whose ``batch_transform`` has made it."""
    return batch

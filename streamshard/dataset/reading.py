"""What a batch is made of: samples or columns, with the user's functions applied."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from streamshard.dataset.pool import ShardPool


@dataclass(frozen=True, slots=True)
class Reading:
    """How sample numbers become batches.

    Attributes:
        read: decodes samples, given by number (int64, shape (n,)), from a pool.
        split: cuts what ``read`` gave at bounds into one part for each batch.
        finish: the user's function, applied to a batch when its turn comes; None: nothing to do.
        one_by_one: read each batch alone, because reading costs so much that many at once would keep the first
            one waiting, or runs the user's code.
        in_columns: ``read`` gives columns, not a list of samples.
        each: what ``finish`` applies to each sample, where samples may be left out one by one.
        get: the user's function that gives a sample by its number, where there is one.
    """

    read: Callable[[ShardPool, NDArray[Any]], Any]
    split: Callable[[Any, list[int]], list[Any]]
    finish: Callable[[Any], Any] | None = None
    one_by_one: bool = False
    in_columns: bool = False
    each: Callable[[Any], Any] | None = None
    get: Callable[[int], Any] | None = None

    @property
    def gives_samples(self) -> bool:
        """Whether ``read`` gives a list of samples as they are stored."""
        return self.read is ShardPool.samples


def read_samples(transform: Callable[[Any], Any] | None, *, one_by_one: bool) -> Reading:
    """Give lists of samples, each passed through ``transform``."""
    finish = None if transform is None else _Each(transform)
    return Reading(ShardPool.samples, _cut_list, finish, one_by_one, each=transform)


def read_columns(batch_transform: Callable[[dict[str, Any]], Any] | None, *, one_by_one: bool) -> Reading:
    """Give a batch's columns, or what ``batch_transform`` makes of them."""
    return Reading(ShardPool.columns, _cut_columns, batch_transform, one_by_one, in_columns=True)


def read_singly(get: Callable[[int], Any]) -> Reading:
    """Give lists of what ``get`` returns for each sample number."""
    return Reading(_Singly(get), _cut_list, None, one_by_one=True, get=get)


class _Each:
    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def __call__(self, batch: list[Any]) -> list[Any]:
        return [self._function(sample) for sample in batch]


class _Singly:
    def __init__(self, get: Callable[[int], Any]) -> None:
        self._get = get

    def __call__(self, pool: ShardPool, samples: NDArray[Any]) -> list[Any]:
        return [self._get(number) for number in samples.tolist()]


def _cut_list(values: list[Any], bounds: list[int]) -> list[list[Any]]:
    return [values[begin:end] for begin, end in itertools.pairwise(bounds)]


def _cut_columns(columns: dict[str, Any], bounds: list[int]) -> list[dict[str, Any]]:
    return [
        {name: values[begin:end] for name, values in columns.items()}
        for begin, end in itertools.pairwise(bounds)
    ]

"""Counting what samples cost, for the index: by a column, or by a function of the sample."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamshard._sizes import as_integer
from streamshard.errors import SampleError
from streamshard.format.costs import COSTS_KEY, MAX_COST, check_cost_name, costs_entry

Cost = str | Callable[[Mapping[str, Any]], int]
"""A column, counted by :func:`count_of`, or a function that gives a sample's cost."""

# Values of these are no numbers of anything.
_UNCOUNTABLE = (
    "bytes", "str", "float16", "float32", "float64", "str_float", "str_decimal", "jpeg", "png", "pil",
)  # fmt: skip


def count_of(value: Any) -> int:
    """Return what a value counts for: a whole number itself, a list or array its elements, None nothing.

    Of an array of several dimensions, the elements of all of them.

    Raises:
        ValueError: a value that is none of these, a list of lists, or a number that is not from 0 to 2**63 - 1.
    """
    if value is None:
        return 0
    if isinstance(value, np.ndarray) and value.ndim:
        return int(value.size)
    if isinstance(value, (list, tuple)):
        if value and isinstance(value[0], (list, tuple)):
            raise ValueError(
                "found a list of lists, of which it is not clear what to count; store the number"
            )
        return len(value)
    number = as_integer(value)
    if number is None:
        raise ValueError(
            f"found {_shown(value)}; expected a whole number, or a list or an array, whose elements are counted"
        )
    if not 0 <= number <= MAX_COST:
        found = f"{number}" if number.bit_length() < 100 else f"a number of {number.bit_length()} bits"
        raise ValueError(f"found {found}; expected 0 to 2**63 - 1")
    return number


def _shown(value: Any) -> str:
    return f"{type(value).__name__} {reprlib.repr(value)[:60]}"


class CostSums:
    """The costs of one writer's samples, added up shard by shard.

    Args:
        costs: cost name -> column or function.
        columns: column name -> encoding.

    Raises:
        ValueError: a name that no cost may have, a column that is not there or that counts nothing.
    """

    def __init__(self, costs: Mapping[str, Cost] | None, columns: Mapping[str, str]) -> None:
        self._costs = {check_cost_name(name): cost for name, cost in (costs or {}).items()}
        for name, cost in self._costs.items():
            if not callable(cost):
                _check_column(name, cost, columns)
        self._totals = dict.fromkeys(self._costs, 0)
        self._filling = dict.fromkeys(self._costs, 0)
        self._shards: dict[str, list[int]] = {name: [] for name in self._costs}

    def __bool__(self) -> bool:
        return bool(self._costs)

    def count(self, sample: Mapping[str, Any]) -> Mapping[str, int]:
        """Return the costs of one sample, without adding them.

        Raises:
            SampleError: a cost that is no whole number from 0 on, or that takes the total beyond 2**63 - 1.
        """
        counted = {}
        for name, cost in self._costs.items():
            value = cost(sample) if callable(cost) else sample[cost]
            if callable(cost) and as_integer(value) is None:
                raise SampleError(
                    f"cost {name!r}: the function gave {_shown(value)}; expected a whole number"
                )
            try:
                counted[name] = count_of(value)
            except ValueError as error:
                what = "" if callable(cost) else f" of column {cost!r}"
                raise SampleError(f"cost {name!r}{what}: {error}") from error
            if self._totals[name] + counted[name] > MAX_COST:
                raise SampleError(f"cost {name!r}: the dataset's total would pass 2**63 - 1")
        return counted

    def add(self, counted: Mapping[str, int]) -> None:
        """Add the costs of a sample of the shard that is being filled."""
        for name, cost in counted.items():
            self._totals[name] += cost
            self._filling[name] += cost

    def cut(self) -> None:
        """End a shard."""
        for name, cost in self._filling.items():
            self._shards[name].append(cost)
            self._filling[name] = 0

    def extra(self) -> dict[str, Any]:
        """Return what belongs under the index's key ``"streamshard"``; empty where nothing is counted."""
        return {COSTS_KEY: costs_entry(self._shards)} if self._costs else {}


def _check_column(name: str, column: object, columns: Mapping[str, str]) -> None:
    if not isinstance(column, str) or column not in columns:
        raise ValueError(
            f"costs: {name!r}: {column!r:.80} is no column; expected one of {', '.join(map(repr, columns))}, or a "
            "function of the sample"
        )
    if columns[column] in _UNCOUNTABLE:
        raise ValueError(
            f"costs: {name!r}: column {column!r} is {columns[column]!r}, which counts nothing by itself; expected "
            "whole numbers, arrays, lists or json, or a function of the sample"
        )


def joined_costs(
    parts: Sequence[tuple[str, Mapping[str, NDArray[np.int64]], int]],
) -> tuple[dict[str, list[int]], dict[str, list[str]]]:
    """Put the sums of several datasets one after another.

    Args:
        parts: folder; by name the sums of each shard, int64[shards]; number of shards.

    Returns:
        The sums of all shards under each name that all parts with shards have; and, for each other name, the
        folders of the parts that lack it.
    """
    filled = [(folder, costs) for folder, costs, num_shards in parts if num_shards]
    joined: dict[str, list[int]] = {}
    lacking: dict[str, list[str]] = {}
    for name in sorted({name for _, costs in filled for name in costs}):
        without = [folder for folder, costs in filled if name not in costs]
        if without:
            lacking[name] = without
        else:
            joined[name] = [value for _, costs in filled for value in costs[name].tolist()]
    return joined, lacking

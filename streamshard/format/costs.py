"""What the samples of each shard cost, in units that the writer named: tokens, characters, seconds.

Under the key ``"streamshard"`` of an index: ``{"costs": {"tokens": {"shards": [100, 90], "total": 190}}}``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamshard.errors import FormatError

COSTS_KEY = "costs"
MAX_COST = (1 << 63) - 1
"""Most that a cost may add up to over a whole dataset."""
MEASURES = ("samples", "bytes")
"""What every index tells anyway, so that no cost may have these names."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


def check_cost_name(name: object) -> str:
    """Return the name of a cost.

    Raises:
        ValueError: not 1 to 64 of the ASCII letters, digits, ``_``, ``.`` and ``-``, the first no ``.`` or ``-``;
            or one of ``samples`` and ``bytes``.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            f"cost name {name!r:.80}: expected 1 to 64 of the ASCII letters, digits, '_', '.' and '-', such as 'tokens'"
        )
    if name in MEASURES:
        raise ValueError(
            f"cost name {name!r}: every index tells its samples and bytes anyway; choose another"
        )
    return name


def costs_entry(sums: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """Give what stands under ``"costs"``: for each name the shards' sums and their total.

    Raises:
        FormatError: a total of more than 2**63 - 1.
    """
    entry = {}
    for name, shards in sums.items():
        total = sum(shards)
        if total > MAX_COST:
            raise FormatError(f"cost {name!r} adds up to {total}; expected at most 2**63 - 1")
        entry[name] = {"shards": list(shards), "total": total}
    return entry


def parse_costs(entry: object, num_shards: int) -> dict[str, NDArray[np.int64]]:
    """Check what stands under ``"costs"`` and give the sum of each shard by name: int64[num_shards].

    Raises:
        FormatError: names the cost, what was found and what was expected.
    """
    if not isinstance(entry, dict):
        raise FormatError(f"{COSTS_KEY!r} is a {type(entry).__name__}, expected an object")
    found = {}
    for name, cost in entry.items():
        try:
            check_cost_name(name)
        except ValueError as error:
            raise FormatError(str(error)) from error
        if not isinstance(cost, dict) or not isinstance(cost.get("shards"), list):
            raise FormatError(f"cost {name!r} is {cost!r:.80}, expected an object with 'shards' and 'total'")
        shards, total = cost["shards"], cost.get("total")
        if len(shards) != num_shards:
            raise FormatError(f"cost {name!r} has {len(shards)} sums for {num_shards} shards")
        for shard, value in enumerate(shards):
            if type(value) is not int or not 0 <= value <= MAX_COST:
                raise FormatError(
                    f"cost {name!r} of shard {shard} is {value!r:.40}, expected a whole number from 0 to 2**63 - 1"
                )
        if type(total) is not int or total > MAX_COST or total != sum(shards):
            raise FormatError(
                f"cost {name!r} has the total {total!r:.40}, but its shards add up to {sum(shards)}; expected the "
                "sum, at most 2**63 - 1"
            )
        found[name] = np.array(shards, np.int64)
    return found

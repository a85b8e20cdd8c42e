"""Arguments of a walk, checked."""

from __future__ import annotations

import operator

import numpy as np
from numpy.typing import NDArray

from streamshard._sizes import shown

# Far above any data set, and low enough that no sum in this package comes near the end of 64 bits.
MAX_SAMPLES = 1 << 53
MAX_WINDOW = (1 << 31) - 1  # more than there can be pieces in a lane, so no larger one differs from it


def checked_sizes(samples_per_shard: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """Give samples of each shard as int64, shape (shards,), and of all; ValueError for what cannot be that, or none."""
    given = np.asarray(samples_per_shard)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise ValueError(
            f"samples_per_shard: expected integers of shape (shards,), got {given.dtype} of {given.shape}"
        )
    if given.size and int(given.min()) < 0:
        shard = int(given.argmin())
        raise ValueError(f"samples_per_shard[{shard}]={int(given[shard])}: must not be negative")
    total = float(given.sum(dtype=np.float64))
    if not total:
        raise ValueError(f"a stream of {given.size} shards holds no samples: there is nothing to walk")
    if total > MAX_SAMPLES:
        raise ValueError(f"a stream of more than {MAX_SAMPLES} samples is not supported")
    # Those of an index are fixed, and perhaps in memory that processes share.
    return given.astype(np.int64, copy=given.flags.writeable), int(total)


def whole(name: str, value: object, least: int, most: int, error: type[ValueError] = ValueError) -> int:
    """Give a whole number from ``least`` to ``most``; else the error, which names it."""
    number = None
    if not isinstance(value, bool):
        try:
            number = operator.index(value)  # type: ignore[arg-type] # this is the check
        except TypeError:
            number = None
    if number is None or not least <= number <= most:
        raise error(f"{name}={shown(value)}: expected an integer from {least} to {most}")
    return number

"""Batches of one rank: what looking them up gives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class RankBatches:
    """Some batches of one rank, joined.

    Attributes:
        samples: sample ids, padding included; a stream's ids follow those of the stream before it.
        bounds: batch i is samples[bounds[i]:bounds[i+1]], shape (batches + 1,).
        padding: how many samples at the end of each batch are repeats that fill it up, shape (batches,).
    """

    samples: NDArray[np.int64]
    bounds: NDArray[np.int64]
    padding: NDArray[np.int64]

    def part(self, begin: int, end: int) -> RankBatches:
        """Give the batches begin … end-1 of these, fewer where there are no more."""
        bounds = self.bounds[begin : end + 1]
        if begin == 0 and len(bounds) == len(self.bounds):
            return self
        first = bounds[0]
        return RankBatches(self.samples[first : bounds[-1]], bounds - first, self.padding[begin:end])

"""Whether a quantity that is measured again and again stays where it is: a straight line through its later values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# What comes before is warming up: caches fill, and pages of a forked process become its own.
_WARM_SHARE = 1 / 3


@dataclass(frozen=True, slots=True)
class Trend:
    """The line through the later values.

    Attributes:
        mean: of the later values.
        growth: how much the line rises over them, from the first one to the last.
        surely: the least rise that chance does not explain: ``growth`` less two standard errors.
        count: how many values the line goes through.
    """

    mean: float
    growth: float
    surely: float
    count: int

    def is_flat(self, allowed: float) -> bool:
        """Whether the quantity does not surely grow by more than ``allowed``."""
        return self.surely <= allowed


def trend_of(values: Sequence[float]) -> Trend:
    """Fit a line by least squares to the values after the first third. Needs 3 of them for an error of its slope."""
    later = np.asarray(values[int(len(values) * _WARM_SHARE) :], float)
    count = len(later)
    if count < 3:
        return Trend(float(later.mean()) if count else 0.0, 0.0, 0.0, count)
    times = np.linspace(-0.5, 0.5, count)
    growth = float(times @ later / (times @ times))
    residual = later - later.mean() - growth * times
    error = float(np.sqrt(residual @ residual / (count - 2) / (times @ times)))
    return Trend(float(later.mean()), growth, growth - 2 * error, count)

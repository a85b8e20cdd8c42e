"""Which samples may be missing: the user's rules, and which errors are a sample's own fault."""

from __future__ import annotations

import errno
import math
import numbers
import os
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from streamshard.dataset.settings import only
from streamshard.errors import (
    BlobNotFoundError,
    FormatError,
    MissingDependencyError,
    StateError,
    StorageError,
    TopologyError,
    UnsafeEncodingError,
    WrongSizeError,
)
from streamshard.storage.redact import public_url

_DAMAGE = (FormatError, BlobNotFoundError, WrongSizeError)
# Of the user's code: what says something about the machine or the run, not about the sample.
_NEVER_A_SAMPLE = (
    MemoryError,
    TimeoutError,
    ConnectionError,
    PermissionError,
    StorageError,
    StateError,
    TopologyError,
    MissingDependencyError,
    UnsafeEncodingError,
)
_MACHINE_ERRNO = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
)
_LONGEST_MESSAGE = 2000

SPREAD = 4
"""Shards that must have bad samples before a part of an epoch is taken for a picture of the whole."""
_CLEARLY_MORE = 4


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What becomes of samples that are bad or not wanted.

    Attributes:
        on_error: ``"raise"``, ``"skip"`` or ``"replace"``.
        wanted: called with each decoded sample; a false result leaves it out. None: all are wanted.
        error_limit: bad samples of one epoch that are tolerated: a number, or below 1 a share of the epoch.
        report: where each bad sample is written down; see ``report_path``.

    Raises:
        ValueError: a value out of range, or a report of nothing.
        TypeError: ``filter=`` that cannot be called.
    """

    on_error: str = "raise"
    wanted: Callable[[Any], Any] | None = None
    error_limit: float = 0.01
    report: str | None = None

    def __post_init__(self) -> None:
        only("on_error", self.on_error, "raise", "skip", "replace")
        if self.wanted is not None and not callable(self.wanted):
            raise TypeError(f"filter={self.wanted!r}: expected a function of one sample")
        limit: Any = self.error_limit
        is_number = isinstance(limit, numbers.Real) and not isinstance(limit, bool)
        if not is_number or not 0 <= limit < math.inf or (limit >= 1 and limit != int(limit)):
            raise ValueError(
                f"error_limit={limit!r}: expected a whole number of samples, or a share of the epoch below 1"
            )
        if self.report is not None:
            object.__setattr__(self, "report", os.fspath(self.report))
            if "://" in str(self.report):
                raise ValueError(f"report={self.report!r}: expected a directory or file of this machine")
            if self.on_error == "raise":
                raise ValueError(
                    "report= has nothing to say where on_error='raise' ends the run: use 'skip' or 'replace'"
                )

    @property
    def is_used(self) -> bool:
        """Whether any sample may be left out at all."""
        return self.on_error != "raise" or self.wanted is not None

    def most_bad(self, num_samples: int) -> int:
        """Bad samples tolerated in a whole epoch of ``num_samples``; a share is rounded up."""
        limit = self.error_limit
        # 0.07 of 100 samples are 7, though 0.07 * 100 is a little more.
        return math.ceil(Fraction(str(limit)) * num_samples) if 0 < limit < 1 else int(limit)

    def most_bad_of_part(self, num_samples: int, readers: int) -> float:
        """Bad samples in several shards, met by one of ``readers`` of an epoch, that prove enough for all of them.

        Readers do not know each other's counts, and the samples of one bad shard may all come to one of them: so
        this is far above an even part of what is tolerated, and means nothing below ``SPREAD`` shards.
        """
        return math.inf if readers == 1 else _CLEARLY_MORE * self.most_bad(num_samples) / readers


class Cause(NamedTuple):
    """What was wrong, in a form that keeps nothing alive."""

    kind: str
    message: str

    @classmethod
    def of(cls, error: BaseException) -> Cause:
        """Describe an error, without credentials that a URL in its message may hold; a long message is cut."""
        text = public_url(str(error))
        if len(text) > _LONGEST_MESSAGE:
            text = text[:_LONGEST_MESSAGE] + "…"
        return cls(type(error).__name__, text)

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}" if self.message else self.kind


class LostShards:
    """Shards that could not be had or opened: not asked for again in this iteration."""

    def __init__(self, *, tolerated: bool) -> None:
        self._tolerated = tolerated
        self._causes: dict[int, Cause] = {}

    def note(self, shard: int, error: BaseException) -> bool:
        """Remember a shard; False if the error says nothing about it, or is not tolerated."""
        if not self._tolerated or not is_damage(error):
            return False
        self._causes[shard] = Cause.of(error)
        return True

    def get(self, shard: int) -> Cause | None:
        """Why a shard is lost; None if it is not."""
        return self._causes.get(shard)

    def numbers(self) -> list[int]:
        """The lost shards."""
        return list(self._causes)

    def __contains__(self, shard: int) -> bool:
        return shard in self._causes

    def __len__(self) -> int:
        return len(self._causes)


def is_damage(error: BaseException) -> bool:
    """Whether what was read is to blame: damaged, cut or missing. Outages, denied access, full disks are not."""
    return isinstance(error, _DAMAGE) and not isinstance(error, UnsafeEncodingError)


def is_about_sample(error: BaseException) -> bool:
    """Whether an exception of the user's own function may be the fault of the sample that it was given."""
    if is_damage(error):
        return True
    if not isinstance(error, Exception) or isinstance(error, _NEVER_A_SAMPLE):
        return False
    if type(error).__name__ == "OutOfMemoryError":  # torch's, a RuntimeError
        return False
    return not (isinstance(error, OSError) and error.errno in _MACHINE_ERRNO)

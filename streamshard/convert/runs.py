"""Runs of equal values: whether the input is sorted by some key, told from every sixteenth record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import xxhash

EVERY = 16
_LONGEST_VALUE = 64
_MOST_KEYS = 64


@dataclass(slots=True)
class Runs:
    """The runs of equal values under one key, in looks: the first, the last, and the longest.

    A sequence that is all one run has it as both first and last.
    """

    first: int
    last: int
    looks: int = 1
    first_looks: int = 1
    last_looks: int = 1
    longest: int = 1

    def add(self, value: int) -> None:
        """Look at the next value, by its hash."""
        self.join(Runs(value, value))

    def join(self, later: Runs) -> None:
        """Put the runs of what comes later behind these."""
        meeting = self.last_looks + later.first_looks if self.last == later.first else 0
        self.longest = max(self.longest, later.longest, meeting)
        if meeting and self.first_looks == self.looks:
            self.first_looks = meeting
        self.last_looks = meeting if meeting and later.last_looks == later.looks else later.last_looks
        self.last = later.last
        self.looks += later.looks

    @property
    def is_one(self) -> bool:
        """Whether all values are equal."""
        return self.first_looks == self.looks

    def to_list(self) -> list[int]:
        return [self.first, self.last, self.looks, self.first_looks, self.last_looks, self.longest]


class RunsOfKeys:
    """The runs under each key; keys that hold long texts or other things than text and whole numbers are left out."""

    def __init__(self) -> None:
        self.found: dict[str, Runs | None] = {}
        self._looks = 0

    def look(self, values: Mapping[str, Any]) -> None:
        """Look at a record. A key that is not in every record that was looked at is left out."""
        for key in self.found.keys() - values.keys():
            self.found[key] = None
        for key, value in values.items():
            runs = self.found.get(key)
            if runs is None and (key in self.found or self._looks or len(self.found) >= _MOST_KEYS):
                continue
            kind = type(value)
            if kind is int or kind is bool:
                number = xxhash.xxh64_intdigest(str(value).encode())
            elif (kind is str or kind is bytes) and len(value) <= _LONGEST_VALUE:
                number = xxhash.xxh64_intdigest(
                    value if kind is bytes else value.encode("utf-8", "surrogatepass")
                )
            else:
                self.found[key] = None
                continue
            if runs is None:
                self.found[key] = Runs(number, number)
            else:
                runs.add(number)
        self._looks += 1

    def join(self, later: Mapping[str, Runs | None], is_first: bool) -> None:
        """Put the runs of a later part of the input behind these; a key that is not in both is left out."""
        if is_first:
            self.found = dict(later)
            return
        for key in {**self.found, **later}:
            mine, theirs = self.found.get(key), later.get(key)
            if mine is None or theirs is None:
                self.found[key] = None
            else:
                mine.join(theirs)

    def longest(self) -> tuple[str, int] | None:
        """The key of the longest run that is not all of the input, and its length in records, at least."""
        runs = [
            (each.longest, key) for key, each in self.found.items() if each is not None and not each.is_one
        ]
        if not runs:
            return None
        length, key = max(runs, key=lambda run: (run[0], run[1]))
        return key, (length - 1) * EVERY + 1

    def to_json(self) -> dict[str, list[int] | None]:
        return {key: None if runs is None else runs.to_list() for key, runs in self.found.items()}


def parse_runs(shown: Mapping[str, list[int] | None]) -> dict[str, Runs | None]:
    """What :meth:`RunsOfKeys.to_json` gave."""
    return {key: None if row is None else Runs(*row) for key, row in shown.items()}

"""What is wrong with single records: named, counted, listed up to a bound."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

# Reasons, as they are shown in summaries and counted under ``--on-error skip``.
BROKEN_JSON = "broken JSON"
NOT_AN_OBJECT = "not an object"
DUPLICATE_KEY = "duplicate key"
NOT_UTF8 = "not UTF-8"
BAD_REFERENCE = "unusable image reference"
TWO_IMAGE_KEYS = "two image keys"
URL_IMAGE = "URL image"
REFUSED_URL = "URL that may not be fetched"
UNFETCHED_IMAGE = "image that could not be fetched"
OUTSIDE_ROOT = "image outside the root"
MISSING_IMAGE = "missing image"
EMPTY_IMAGE = "empty image file"
UNREADABLE_IMAGE = "unreadable image"
HUGE_IMAGE = "image too large"
TOO_LARGE = "record too large"
BAD_COST = "cost that cannot be counted"
BAD_ROW = "row that does not fit its table"
BAD_VALUE = "value that its column cannot hold"
BAD_SAMPLE = "broken sample"

LISTED = 20
"""How many problems a message lists one by one; the rest is a number."""

KEPT_PER_CHUNK = 200_000
"""How many problems one scanned chunk keeps as text: practically all, but no unbounded memory."""

REJECTED_BASENAME = "rejected.jsonl"
"""The list of all records left out, beside the dataset."""


class RecordProblem(Exception):  # noqa: N818 it never leaves this package: it becomes a Problem or a ConvertError
    """A record that cannot be converted. The message does not name file and line; the caller adds them."""

    def __init__(self, reason: str, message: str, path: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.path = path

    def of_file(self) -> RecordProblem:
        """The same problem, met with a file that is no image."""
        reason = self.reason.replace("image file", "file").replace("image", "file")
        message = self.message
        if message.startswith("image "):
            message = f"file {message.removeprefix('image ')}"
        return RecordProblem(reason, message, self.path)


class Problem(NamedTuple):
    """One refused record. ``line`` counts physical lines from 1 (array elements in a JSON array).

    ``path`` is the image reference at fault, if it was one.
    """

    line: int
    reason: str
    message: str
    record_id: str | None = None
    path: str | None = None

    def to_list(self) -> list[Any]:
        return [self.line, self.reason, self.message, self.record_id, self.path]

    @classmethod
    def from_list(cls, row: list[Any]) -> Problem:
        line, reason, message, record_id, path = row
        return cls(int(line), str(reason), str(message), record_id, path)


@dataclass(slots=True)
class ProblemLog:
    """Counts every problem by reason; keeps the text of the first ``limit``."""

    limit: int
    counts: Counter[str] = field(default_factory=Counter)
    kept: list[Problem] = field(default_factory=list)

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def add(self, problem: Problem) -> None:
        self.counts[problem.reason] += 1
        if len(self.kept) < self.limit:
            self.kept.append(problem)


class PlacedProblem(NamedTuple):
    """A problem with its place: ``where`` is ``file:line``, or ``file: row 4`` and the like."""

    where: str
    problem: Problem
    file: str = ""
    unit: str = "line"
    number: int = 0

    def __str__(self) -> str:
        return f"{self.where}: {self.problem.message}"

    def to_json(self) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "where": self.where, "reason": self.problem.reason, "message": self.problem.message,
        }  # fmt: skip
        if self.problem.record_id is not None:
            shown["id"] = self.problem.record_id
        return shown

    def rejected(self) -> dict[str, Any]:
        """The line of ``rejected.jsonl``."""
        shown: dict[str, Any] = {"file": self.file, self.unit: self.number}
        if self.problem.record_id is not None:
            shown["id"] = self.problem.record_id
        if self.problem.path is not None:
            shown["path"] = self.problem.path
        return {**shown, "reason": self.problem.reason, "message": self.problem.message}

    @classmethod
    def from_json(cls, shown: dict[str, Any]) -> PlacedProblem:
        return cls(
            str(shown["where"]), Problem(0, str(shown["reason"]), str(shown["message"]), shown.get("id"))
        )


def shorten(text: str, limit: int = 200) -> str:
    """``repr(text)``, cut in the middle of nowhere with its length told, so that no message prints megabytes."""
    return repr(text) if len(text) <= limit else f"{text[:limit]!r}… ({len(text)} characters)"


def counts_text(counts: Counter[str]) -> str:
    """``3 missing image, 1 broken JSON``: most frequent first."""
    return ", ".join(
        f"{number} {reason}"
        for reason, number in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    )

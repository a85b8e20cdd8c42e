"""What a verification found: every problem with its place, and what was looked at."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong. ``shard`` is a file's basename, ``row`` a sample's place in that shard."""

    shard: str | None
    row: int | None
    message: str

    def __str__(self) -> str:
        return self.message


@dataclass(slots=True)
class ShardReport:
    """What was found in one shard."""

    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    hashed_files: int = 0
    unhashed_files: int = 0
    decoded_samples: int = 0
    hashed_samples: int = 0
    headers: int = 0
    nbytes: int = 0


@dataclass(slots=True)
class Report:
    """The result of ``verify_dataset``; the data is as the index says if ``ok``.

    ``problems`` holds every problem (of one shard at most 1,000 single samples, then their number, unless ``deep``
    was asked for); ``notes`` holds what is unusual and not wrong, such as files that are not in the index.
    ``deep`` says whether the samples were read; else only sizes and headers were. ``nbytes`` counts the bytes read.
    """

    source: str
    deep: bool = True
    num_shards: int = 0
    num_samples: int = 0
    decoded_samples: int = 0
    hashed_samples: int = 0
    headers: int = 0
    hashed_files: int = 0
    unhashed_files: int = 0
    nbytes: int = 0
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems

    def add(self, shard: ShardReport) -> None:
        """Take in what was found in one shard; a note that many shards give is kept once."""
        self.problems += shard.problems
        self.notes += [note for note in shard.notes if note not in self.notes]
        self.hashed_files += shard.hashed_files
        self.unhashed_files += shard.unhashed_files
        self.decoded_samples += shard.decoded_samples
        self.hashed_samples += shard.hashed_samples
        self.headers += shard.headers
        self.nbytes += shard.nbytes

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain lists, dicts, strings and numbers."""
        return {"ok": self.ok, **asdict(self)}

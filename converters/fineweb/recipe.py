"""FineWeb and FineWeb-Edu: texts of Common Crawl, with their number of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from streamshard.recipes import read_records


@dataclass(frozen=True)
class FineWeb:
    """``root`` holds Parquet files, in folders or not: a dump (``data/CC-MAIN-…``) or a sample (``sample/10BT``).

    ``min_score`` leaves out texts of a lower ``language_score``.
    """

    root: Path
    min_score: float = 0.0

    columns: ClassVar = {
        "text": "str",
        "id": "str",
        "dump": "str",
        "url": "str",
        "language_score": "float64",
        "token_count": "int",
    }
    splits: ClassVar = ("train",)

    def tasks(self, split: str) -> list[Path]:
        return sorted(self.root.glob("**/*.parquet"))

    def samples(self, task: Path) -> Iterator[dict[str, Any]]:
        for row in read_records(task, columns=self.columns):
            if row["language_score"] >= self.min_score:
                yield row

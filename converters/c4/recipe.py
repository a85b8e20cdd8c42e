"""C4: the Colossal Clean Crawled Corpus, as the Allen Institute for AI publishes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from streamshard.recipes import read_records


@dataclass(frozen=True)
class C4:
    """``root`` holds the folder ``variant`` (``en``, ``realnewslike``, …) with files of packed JSON lines."""

    root: Path
    variant: str = "en"

    columns: ClassVar = {"text": "str", "timestamp": "str", "url": "str"}
    splits: ClassVar = ("train", "validation")

    def tasks(self, split: str) -> list[Path]:
        return sorted((self.root / self.variant).glob(f"c4-{split}.*.json.gz"))

    def samples(self, task: Path) -> Iterator[dict[str, Any]]:
        yield from read_records(task, columns=self.columns)

"""Wikipedia and BookCorpus, the texts of BERT: an article or a run of sentences of a book is one sample."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from streamshard.recipes import read_records

WIKIPEDIA, BOOKCORPUS = "wikipedia", "bookcorpus"
KINDS = (".parquet", ".jsonl", ".jsonl.gz", ".json.gz", ".arrow")
VALIDATION_PARTS = 200


@dataclass(frozen=True)
class WikipediaBookCorpus:
    """``root`` holds the folders ``wikipedia`` and ``bookcorpus``, or one of them, with Parquet or JSONL files.

    BookCorpus is one sentence a row; ``sentences`` of them in a row become a sample. Of both, one sample in 200, chosen
    by the text alone, is the validation split.
    """

    root: Path
    sentences: int = 64

    columns: ClassVar = {"text": "str", "title": "str", "source": "str"}
    splits: ClassVar = ("train", "validation")

    def tasks(self, split: str) -> list[tuple[str, Path, str]]:
        return [
            (source, path, split)
            for source in (WIKIPEDIA, BOOKCORPUS)
            for path in sorted((self.root / source).glob("**/*"))
            if path.name.endswith(KINDS)
        ]

    def samples(self, task: tuple[str, Path, str]) -> Iterator[dict[str, Any]]:
        source, path, split = task
        for title, text in self._articles(path) if source == WIKIPEDIA else self._passages(path):
            held_out = zlib.crc32(text.encode()) % VALIDATION_PARTS == 0
            if held_out == (split == "validation"):
                yield {"text": text, "title": title, "source": source}

    def _articles(self, path: Path) -> Iterator[tuple[str, str]]:
        for row in read_records(path, columns=("title", "text")):
            if row["text"].strip():
                yield row.get("title") or "", row["text"]

    def _passages(self, path: Path) -> Iterator[tuple[str, str]]:
        rows = read_records(path, columns=("text",))
        while some := [row["text"].strip() for row in islice(rows, self.sentences)]:
            text = "\n".join(filter(None, some))
            if text:
                yield "", text

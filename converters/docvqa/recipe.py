"""DocVQA (single documents): each page once, with all questions about it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar


@dataclass(frozen=True)
class DocVqa:
    """``root`` holds ``documents`` and the JSON files, or ``spdocvqa_images`` and ``spdocvqa_qas``."""

    root: Path

    columns: ClassVar = {"image": "image", "document": "str", "questions": "json"}
    splits: ClassVar = ("train", "val", "test")

    def tasks(self, split: str) -> list[tuple[Path, str]]:
        found = [
            path
            for folder in (self.root, self.root / "spdocvqa_qas", self.root / split)
            for path in sorted(folder.glob(f"{split}_v*.json"))
        ]
        return [(path, split) for path in found[:1]]

    def samples(self, task: tuple[Path, str]) -> Iterator[dict[str, Any]]:
        path, split = task
        pages = (self.root / "documents", self.root / "spdocvqa_images", self.root / split / "documents")
        folder = next((page for page in pages if page.is_dir()), None)
        if folder is None:
            raise FileNotFoundError(
                f"{self.root}: none of {', '.join(map(str, pages))} is there; unpack the pages"
            )
        asked: dict[str, list[dict[str, Any]]] = {}
        documents = {}
        for one in json.loads(path.read_bytes())["data"]:
            name = one["image"].rpartition("/")[2]
            documents[name] = one["ucsf_document_id"]
            asked.setdefault(name, []).append(
                {
                    "question_id": one["questionId"],
                    "question": one["question"],
                    "answers": one.get("answers", []),
                    "types": one.get("question_types", []),
                }
            )
        for name, questions in asked.items():
            yield {
                "image": (folder / name).relative_to(self.root).as_posix(),
                "document": documents[name],
                "questions": questions,
            }

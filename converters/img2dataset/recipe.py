"""Pictures with captions as img2dataset fetches them: CC3M, CC12M, LAION, COYO and the like, as WebDataset tars."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from streamshard.recipes import read_records

PICTURES = ("jpg", "png", "webp")


@dataclass(frozen=True)
class Img2Dataset:
    """``root`` is img2dataset's output folder: ``00000.tar``, ``00001.tar``, …

    ``min_side`` leaves out pictures whose shorter side has fewer pixels.
    """

    root: Path
    min_side: int = 0

    columns: ClassVar = {
        "key": "str",
        "image": "image",
        "caption": "str",
        "url": "str",
        "width": "int32",
        "height": "int32",
    }
    splits: ClassVar = ("train",)

    def tasks(self, split: str) -> list[Path]:
        return sorted(self.root.glob("**/*.tar"))

    def samples(self, task: Path) -> Iterator[dict[str, Any]]:
        for record in read_records(task, kind="webdataset"):
            facts = record.get("json", {})
            picture = next((record[kind] for kind in PICTURES if kind in record), None)
            if picture is None or facts.get("status", "success") != "success":
                continue
            width, height = facts.get("width") or 0, facts.get("height") or 0
            if self.min_side and min(width, height) < self.min_side:
                continue
            caption = record.get("txt", facts.get("caption"))
            yield {
                "key": record["__key__"],
                "image": picture,
                "caption": caption or "",
                "url": facts.get("url") or "",
                "width": width,
                "height": height,
            }

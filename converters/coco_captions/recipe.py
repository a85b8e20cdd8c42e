"""COCO captions: each picture once, with all of its captions (most have five)."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar


@dataclass(frozen=True)
class CocoCaptions:
    """``root`` holds ``annotations/captions_{train,val}{year}.json`` and the folders ``train{year}``, ``val{year}``."""

    root: Path
    year: int = 2017

    columns: ClassVar = {"image": "image", "image_id": "int", "captions": "json"}
    splits: ClassVar = ("train", "val")

    def tasks(self, split: str) -> list[tuple[Path, str]]:
        folder = f"{split}{self.year}"
        return [(self.root / "annotations" / f"captions_{folder}.json", folder)]

    def samples(self, task: tuple[Path, str]) -> Iterator[dict[str, Any]]:
        path, folder = task
        annotations = json.loads(path.read_bytes())
        captions: dict[int, list[str]] = defaultdict(list)
        for one in sorted(annotations["annotations"], key=lambda one: one["id"]):
            captions[one["image_id"]].append(one["caption"].strip())
        for picture in annotations["images"]:
            yield {
                "image": f"{folder}/{picture['file_name']}",
                "image_id": picture["id"],
                "captions": captions[picture["id"]],
            }

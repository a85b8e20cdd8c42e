"""ImageNet (ILSVRC 2012): pictures with the number of their class, as every published model counts them."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

SOLUTION = "LOC_val_solution.csv"


@dataclass(frozen=True)
class ImageNet:
    """``root`` holds ``train`` with a folder for each class, and ``val`` with such folders or with Kaggle's list.

    Labels number the folders of ``train``, sorted by name, from 0.
    """

    root: Path

    columns: ClassVar = {"image": "image", "label": "uint16", "synset": "str"}
    splits: ClassVar = ("train", "val")

    def tasks(self, split: str) -> list[tuple[str, str]]:
        if split == "val" and (self.root / SOLUTION).is_file():
            return [(split, "")]
        return [(split, folder.name) for folder in sorted((self.root / split).iterdir()) if folder.is_dir()]

    def samples(self, task: tuple[str, str]) -> Iterator[dict[str, Any]]:
        split, synset = task
        names = sorted(folder.name for folder in (self.root / "train").iterdir() if folder.is_dir())
        labels = {name: label for label, name in enumerate(names)}
        pairs = self._listed() if not synset else self._in_folder(split, synset)
        for image, own in pairs:
            yield {"image": image, "label": labels[own], "synset": own}

    def _in_folder(self, split: str, synset: str) -> Iterator[tuple[str, str]]:
        for path in sorted((self.root / split / synset).iterdir()):
            yield f"{split}/{synset}/{path.name}", synset

    def _listed(self) -> Iterator[tuple[str, str]]:
        with (self.root / SOLUTION).open(newline="") as file:
            solved = {row["ImageId"]: row["PredictionString"].split()[0] for row in csv.DictReader(file)}
        for name in sorted(solved):
            yield f"val/{name}.JPEG", solved[name]

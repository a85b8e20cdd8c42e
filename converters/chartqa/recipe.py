"""ChartQA: each chart once, with the questions that people and a model asked about it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar


@dataclass(frozen=True)
class ChartQa:
    """``root`` holds the folders ``train``, ``val`` and ``test``, each with its JSON files and ``png``."""

    root: Path

    columns: ClassVar = {"image": "image", "questions": "json"}
    splits: ClassVar = ("train", "val", "test")

    def tasks(self, split: str) -> list[tuple[Path, Path, str]]:
        folder = self.root / split
        return [(folder / f"{split}_human.json", folder / f"{split}_augmented.json", split)]

    def samples(self, task: tuple[Path, Path, str]) -> Iterator[dict[str, Any]]:
        human, augmented, split = task
        asked: dict[str, list[dict[str, str]]] = defaultdict(list)
        for path, source in ((human, "human"), (augmented, "augmented")):
            for one in json.loads(path.read_bytes()):
                asked[one["imgname"]].append(
                    {"question": one["query"], "answer": str(one["label"]), "source": source}
                )
        for name in sorted(asked):
            yield {"image": f"{split}/png/{name}", "questions": asked[name]}

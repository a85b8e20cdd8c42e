"""VQAv2: each picture of COCO once, with all questions about it and their answers."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar


@dataclass(frozen=True)
class VqaV2:
    """``root`` holds the files of questions and annotations, and the folders ``train2014``, ``val2014``."""

    root: Path

    columns: ClassVar = {"image": "image", "image_id": "int", "questions": "json"}
    splits: ClassVar = ("train", "val")

    def tasks(self, split: str) -> list[tuple[Path, Path, str]]:
        return [
            (
                self.root / f"v2_OpenEnded_mscoco_{split}2014_questions.json",
                self.root / f"v2_mscoco_{split}2014_annotations.json",
                f"{split}2014",
            )
        ]

    def samples(self, task: tuple[Path, Path, str]) -> Iterator[dict[str, Any]]:
        questions, annotations, folder = task
        known = {one["question_id"]: one for one in json.loads(annotations.read_bytes())["annotations"]}
        asked: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for one in json.loads(questions.read_bytes())["questions"]:
            answers = known[one["question_id"]]
            asked[one["image_id"]].append(
                {
                    "question_id": one["question_id"],
                    "question": one["question"],
                    "answer": answers["multiple_choice_answer"],
                    "answers": [given["answer"] for given in answers["answers"]],
                }
            )
        for image_id in sorted(asked):
            yield {
                "image": f"{folder}/COCO_{folder}_{image_id:012}.jpg",
                "image_id": image_id,
                "questions": asked[image_id],
            }

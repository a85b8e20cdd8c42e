"""Make ``fixtures/``: drawn pictures with questions, laid out as VQAv2 is."""

from __future__ import annotations

import json
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parent / "fixtures"
ASKED = {
    "train": [
        (9, 9001, "Which colour is it?", "red"),
        (5, 5001, "Is it round?", "no"),
        (9, 9002, "How many?", "1"),
    ],
    "val": [(3, 3001, "Is it red?", "yes")],
}


def main() -> None:
    for split, asked in ASKED.items():
        folder = ROOT / f"{split}2014"
        folder.mkdir(parents=True, exist_ok=True)
        for image_id in {one[0] for one in asked}:
            name = f"COCO_{split}2014_{image_id:012}.jpg"
            Image.new("RGB", (10, 10), (image_id * 20, 0, 0)).save(folder / name, quality=50)
        questions = [
            {"image_id": image_id, "question": question, "question_id": number}
            for image_id, number, question, _ in asked
        ]
        annotations = [
            {
                "question_id": number,
                "image_id": image_id,
                "multiple_choice_answer": answer,
                "answers": [
                    {"answer": answer, "answer_confidence": "yes", "answer_id": place} for place in (1, 2)
                ],
            }
            for image_id, number, _, answer in reversed(asked)
        ]
        (ROOT / f"v2_OpenEnded_mscoco_{split}2014_questions.json").write_text(
            json.dumps({"questions": questions})
        )
        (ROOT / f"v2_mscoco_{split}2014_annotations.json").write_text(
            json.dumps({"annotations": annotations})
        )


if __name__ == "__main__":
    main()

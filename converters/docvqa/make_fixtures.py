"""Make ``fixtures/``: drawn pages with questions, laid out as DocVQA is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from PIL import Image

ROOT = Path(__file__).parent / "fixtures"


def main() -> None:
    folder = ROOT / "spdocvqa_images"
    folder.mkdir(parents=True, exist_ok=True)
    (ROOT / "spdocvqa_qas").mkdir(exist_ok=True)
    for name in ("abcd0001_1.png", "abcd0001_2.png"):
        Image.new("L", (12, 16), 230).save(folder / name)
    for split, version in (("train", "_withQT"), ("val", "_withQT"), ("test", "")):
        rows: list[dict[str, Any]] = [
            {
                "questionId": 337 + place,
                "question": question,
                "image": f"documents/abcd0001_{page}.png",
                "docId": 279,
                "ucsf_document_id": "abcd0001",
                "ucsf_document_page_no": str(page),
                "data_split": split,
            }
            for place, (page, question) in enumerate(((1, "What date?"), (2, "Who?"), (1, "Where?")))
        ]
        if split != "test":
            for row in rows:
                row.update(answers=["1/8/93"], question_types=["handwritten", "form"])
        text = json.dumps({"dataset_name": "docvqa", "dataset_split": split, "data": rows})
        (ROOT / "spdocvqa_qas" / f"{split}_v1.0{version}.json").write_text(text)


if __name__ == "__main__":
    main()

"""Make ``fixtures/``: three drawn pictures with captions, laid out as COCO is."""

from __future__ import annotations

import json
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parent / "fixtures"
CAPTIONS = {7: ["A red square.", "Red, all over. "], 9: [" A green square."], 4: ["Blue."]}


def main() -> None:
    for split, ids in (("train", (9, 7)), ("val", (4,))):
        folder = ROOT / f"{split}2017"
        folder.mkdir(parents=True, exist_ok=True)
        for number in ids:
            colour = tuple(255 if place == number % 3 else 0 for place in range(3))
            Image.new("RGB", (16, 12), colour).save(folder / f"{number:012}.jpg", quality=50)
        rows = [(number, caption) for number in ids for caption in CAPTIONS[number]]
        annotations = {
            "info": {"description": "drawn for a test"},
            "images": [{"id": number, "file_name": f"{number:012}.jpg"} for number in ids],
            "annotations": [
                {"id": 100 - place, "image_id": number, "caption": caption}
                for place, (number, caption) in enumerate(rows)
            ],
        }
        target = ROOT / "annotations" / f"captions_{split}2017.json"
        target.parent.mkdir(exist_ok=True)
        target.write_text(json.dumps(annotations))


if __name__ == "__main__":
    main()

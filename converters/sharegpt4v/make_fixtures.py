"""Make ``fixtures/``: drawn pictures from two folders with captions as chats."""

from __future__ import annotations

import json
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parent / "fixtures"
FILES = (
    "sharegpt4v_instruct_gpt4-vision_cap100k.json",
    "share-captioner_coco_lcs_sam_1246k_1107.json",
    "sharegpt4v_mix665k_cap23k_coco-ap9k_lcs3k_sam9k_div2k.json",
)


def main() -> None:
    records = []
    for name in ("coco/train2017/000000000009.jpg", "sam/images/sa_1.jpg"):
        path = ROOT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (12, 10), (200, 10, 10)).save(path, quality=50)
        turns = [
            {"from": "human", "value": "Describe it.\n<image>"},
            {"from": "gpt", "value": f"A red box, {path.stem}."},
        ]
        records.append({"id": path.stem, "image": name, "conversations": turns})
    for name in FILES:
        (ROOT / name).write_text(json.dumps(records))


if __name__ == "__main__":
    main()

"""Make ``fixtures/``: a drawn picture and chats, one of them about no picture."""

from __future__ import annotations

import json
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parent / "fixtures"


def chat(question: str, answer: str) -> list[dict[str, str]]:
    return [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]


def main() -> None:
    for name in ("00000/000000001.jpg", "coco/train2017/000000000002.jpg"):
        path = ROOT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (14, 14), (40, 80, 120)).save(path, quality=50)
    pretrain = [
        {
            "id": "000000001",
            "image": "00000/000000001.jpg",
            "conversations": chat("What is this?\n<image>", "A square."),
        }
    ]
    instruct = [
        {
            "id": "000000000002",
            "image": "coco/train2017/000000000002.jpg",
            "conversations": chat("<image>\nWhich colour?", "Blue."),
        },
        {"id": 7, "model": "", "conversations": chat("Name a colour.", "Green.")},
    ]
    (ROOT / "blip_laion_cc_sbu_558k.json").write_text(json.dumps(pretrain))
    (ROOT / "llava_v1_5_mix665k.json").write_text(json.dumps(instruct, indent=1))


if __name__ == "__main__":
    main()

"""Make ``fixtures/``: drawn charts with questions, laid out as ChartQA is."""

from __future__ import annotations

import json
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parent / "fixtures"


def main() -> None:
    for split in ("train", "val", "test"):
        folder = ROOT / split / "png"
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("10.png", "2.png"):
            Image.new("RGB", (8, 8), (0, 0, 90)).save(folder / name)
        human = [{"imgname": "2.png", "query": "How high is the bar?", "label": "8"}]
        augmented = [
            {"imgname": "2.png", "query": "Which colour has the bar?", "label": "blue"},
            {"imgname": "10.png", "query": "What is the value?", "label": "8.5"},
        ]
        (ROOT / split / f"{split}_human.json").write_text(json.dumps(human))
        (ROOT / split / f"{split}_augmented.json").write_text(json.dumps(augmented))


if __name__ == "__main__":
    main()

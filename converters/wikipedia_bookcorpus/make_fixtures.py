"""Make ``fixtures/``: articles and sentences in small files; some fall into the validation split."""

from __future__ import annotations

import json
import zlib
from itertools import count
from pathlib import Path

ROOT = Path(__file__).parent / "fixtures"


def text_for(begin: str, *, held_out: bool) -> str:
    texts = (f"{begin} {number}." for number in count())
    return next(text for text in texts if (zlib.crc32(text.encode()) % 200 == 0) == held_out)


def main() -> None:
    articles = [
        {
            "id": "12",
            "url": "https://example.org/12",
            "title": "Bread",
            "text": text_for("Bread is baked", held_out=False),
        },
        {"id": "13", "url": "https://example.org/13", "title": "Empty", "text": " "},
        {
            "id": "14",
            "url": "https://example.org/14",
            "title": "Rain",
            "text": text_for("Rain falls", held_out=True),
        },
    ]
    sentences = [{"text": text} for text in ("it was late .", "she read on .", "the lamp burned low .")]
    for name, rows in (
        ("wikipedia/train-00000.jsonl", articles),
        ("bookcorpus/train-00000.jsonl", sentences),
    ):
        path = ROOT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()

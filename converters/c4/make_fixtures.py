"""Make ``fixtures/``: packed lines as those of C4."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

ROOT = Path(__file__).parent / "fixtures" / "en"
FILES = {
    "c4-train.00000-of-00002": ("Bread rises.\nThen it is baked.", "Rain again."),
    "c4-train.00001-of-00002": ("Ein Satz mit Umlaut: größer.",),
    "c4-validation.00000-of-00001": ("Kept apart.",),
}


def main() -> None:
    ROOT.mkdir(parents=True, exist_ok=True)
    for name, texts in FILES.items():
        rows = [
            {"text": text, "timestamp": "2019-04-25T12:57:54Z", "url": f"https://example.org/{place}"}
            for place, text in enumerate(texts)
        ]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (ROOT / f"{name}.json.gz").write_bytes(gzip.compress(lines.encode(), mtime=0))


if __name__ == "__main__":
    main()

"""Make ``fixtures/``: Parquet files as those of FineWeb."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).parent / "fixtures" / "data" / "CC-MAIN-2024-10"
FILES = {"000_00000": (("Bread rises.", 0.9), ("Brot backt.", 0.5)), "000_00001": (("Rain again.", 0.8),)}


def main() -> None:
    ROOT.mkdir(parents=True, exist_ok=True)
    for name, texts in FILES.items():
        rows = [
            {
                "text": text,
                "id": f"<urn:uuid:{name}-{place}>",
                "dump": "CC-MAIN-2024-10",
                "url": f"https://example.org/{place}",
                "date": "2024-02-21T00:00:00Z",
                "file_path": "s3://commoncrawl/example.warc.gz",
                "language": "en",
                "language_score": score,
                "token_count": len(text.split()),
            }
            for place, (text, score) in enumerate(texts)
        ]
        pq.write_table(pa.Table.from_pylist(rows), ROOT / f"{name}.parquet", compression="none")


if __name__ == "__main__":
    main()

"""Make ``fixtures/``: two tars as img2dataset writes them, with drawn pictures."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parent / "fixtures"


def main() -> None:
    ROOT.mkdir(exist_ok=True)
    for shard, keys in enumerate((("000000000", "000000002"), ("000010001",))):
        with tarfile.open(ROOT / f"{shard:05}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for key in keys:
                side = 8 + int(key[-1])
                picture = io.BytesIO()
                Image.new("RGB", (side, side), (90, side, 0)).save(picture, "JPEG", quality=50)
                caption = f"a square of {side}"
                facts = {
                    "caption": caption,
                    "url": f"https://example.org/{key}.jpg",
                    "key": key,
                    "status": "success",
                    "error_message": None,
                    "width": side,
                    "height": side,
                }
                members = {
                    "jpg": picture.getvalue(),
                    "json": json.dumps(facts).encode(),
                    "txt": caption.encode(),
                }
                for ending, content in members.items():
                    member = tarfile.TarInfo(f"{key}.{ending}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))


if __name__ == "__main__":
    main()

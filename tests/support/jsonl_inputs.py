"""JSONL files and pictures made on the fly, and conversions of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from PIL import Image

from streamshard import LocalDataset
from streamshard.convert import worker
from streamshard.convert.job import convert
from streamshard.convert.options import ConvertOptions
from streamshard.convert.summary import Summary


def write_lines(path: Path, rows: Iterable[Any], *, end: str = "\n") -> Path:
    """One JSON object a line."""
    path.write_text("".join(json.dumps(row) + end for row in rows), encoding="utf-8", newline="")
    return path


def picture(
    format: str = "PNG",
    *,
    color: Any = (1, 2, 3),
    size: tuple[int, int] = (8, 8),
    mode: str = "RGB",
    **save: Any,
) -> bytes:
    """An image file of one colour."""
    out = BytesIO()
    Image.new(mode, size, color).save(out, format, **save)
    return out.getvalue()


def noise(width: int = 64, height: int = 64, seed: int = 0) -> bytes:
    """A JPEG with enough content that half of it is not all of it."""
    import numpy as np

    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8)
    out = BytesIO()
    Image.fromarray(pixels).save(out, "JPEG")
    return out.getvalue()


def run(source: Path | str | list[Path], out: Path | str, **options: Any) -> Summary:
    """Convert in this process."""
    sources = source if isinstance(source, list) else [source]
    options.setdefault("workers", 1)
    return convert(ConvertOptions(sources=tuple(map(str, sources)), out=str(out), **options))


@contextmanager
def stopped_after(shards: int) -> Iterator[None]:
    """Have a conversion by this process end as if killed, when it has written so many shards."""
    real, left = worker.FUNCTIONS["write"], [shards]

    def few(task: Any, advance: Any) -> int:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return real(task, advance)

    with patch.dict(worker.FUNCTIONS, write=few), pytest.raises(KeyboardInterrupt):
        yield


def converted(source: Path | str | list[Path], out: Path, **options: Any) -> list[dict[str, Any]]:
    """Convert in this process and read all samples back, images as the stored bytes."""
    run(source, out, **options)
    return list(LocalDataset(str(out), decode_images=False))


def files_of(directory: Path) -> dict[str, str]:
    """Relative path → digest of every file below a directory, hidden ones too."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def shards_of(directory: Path) -> dict[str, str]:
    """As :func:`files_of`, shards alone."""
    return {name: digest for name, digest in files_of(directory).items() if ".mds" in name}


def chat_rows(count: int, folder: Path, *, image_every: int = 1) -> list[dict[str, Any]]:
    """Chat records with small pictures, written to ``folder``."""
    folder.mkdir(exist_ok=True)
    rows = []
    for number in range(count):
        row: dict[str, Any] = {
            "id": f"r{number}",
            "conversations": [
                {"from": "human", "value": "<image>\nwhat?"},
                {"from": "gpt", "value": f"nº {number} ☃"},
            ],
        }
        if number % image_every == 0:
            name = f"p{number}.png"
            (folder / name).write_bytes(picture(color=(number % 256, number // 256, 7)))
            row["image"] = f"{folder.name}/{name}"
        rows.append(row)
    return rows

"""Samples to measure with: the same on every machine, made from nothing but a number."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

TEXT_COLUMNS = {"number": "int", "text": "str"}
BLOB_COLUMNS = {"blob": "bytes", "name": "str", "number": "int"}
PICTURE_COLUMNS = {"number": "int", "picture": "jpeg"}


def text_samples(count: int) -> Iterator[dict[str, Any]]:
    """Yield {number: int, text: str of 150 ASCII letters}."""
    for number in range(count):
        yield {"number": number, "text": hashlib.shake_128(number.to_bytes(8, "little")).hexdigest(75)}


def blob_samples(count: int) -> Iterator[dict[str, Any]]:
    """Yield {number: int, name: short str, blob: 20,000 to 60,000 bytes that do not compress}."""
    for number in range(count):
        word = hashlib.blake2b(number.to_bytes(8, "little"), digest_size=4).digest()
        nbytes = 20_000 + int.from_bytes(word, "little") % 40_001
        blob = hashlib.shake_128(word).digest(nbytes)
        yield {"number": number, "name": f"blob-{number}", "blob": blob}


def picture_samples(count: int) -> Iterator[dict[str, Any]]:
    """Yield {number: int, picture: JPEG of 256 x 256 with 32 x 32 smooth patches of colour}."""
    from PIL import Image

    for number in range(count):
        seed = hashlib.shake_128(number.to_bytes(8, "little")).digest(32 * 32 * 3)
        picture = Image.frombytes("RGB", (32, 32), seed).resize((256, 256), Image.Resampling.BICUBIC)
        encoded = io.BytesIO()
        picture.save(encoded, "JPEG", quality=85)
        yield {"number": number, "picture": Image.open(encoded)}


SAMPLES: dict[str, tuple[dict[str, str], Callable[[int], Iterator[dict[str, Any]]]]] = {
    "text": (TEXT_COLUMNS, text_samples),
    "blob": (BLOB_COLUMNS, blob_samples),
    "picture": (PICTURE_COLUMNS, picture_samples),
}
"""Kind -> columns and samples."""


def dataset(directory: Path, kind: str, count: int, *, size_limit: str = "64mb") -> Path:
    """Write a dataset below ``directory`` with streamshard, unless it is there, and return its place."""
    from streamshard import MDSWriter

    place = directory / f"{kind}-{count}-{size_limit}"
    if not (place / "index.json").exists():
        columns, samples = SAMPLES[kind]
        with MDSWriter(out=place, columns=columns, size_limit=size_limit) as writer:
            for sample in samples(count):
                writer.write(sample)
    return place

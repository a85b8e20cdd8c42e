"""Samples to measure with: the same on every machine, made from nothing but a number."""

from __future__ import annotations

import hashlib
import io
import json
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


def photo_tree(directory: Path, count: int) -> Path:
    """Make ``train.jsonl`` and ``count`` JPEG files of 5 to 150 kB, a thousand in a folder, unless they are there.

    The pictures are 512 different ones, sizes spread evenly on a log scale; a comment in each file makes it unlike
    all others. A record has an id, a conversation of two turns, and the path of its image.
    """
    place = directory / f"photos-{count}"
    if (place / "train.jsonl").exists():
        return place
    pictures = [_photo(number) for number in range(min(count, 512))]
    lines = []
    for number in range(count):
        image = f"images/{number // 1000:03}/{number:07}.jpg"
        (place / image).parent.mkdir(parents=True, exist_ok=True)
        comment = f"photo {number}".encode()
        content = pictures[number % len(pictures)]
        segment = b"\xff\xfe" + (len(comment) + 2).to_bytes(2, "big") + comment
        (place / image).write_bytes(content[:2] + segment + content[2:])
        answer = hashlib.shake_128(comment).hexdigest(40 + number % 160)
        turns = [{"from": "human", "value": "<image>\nWhat is this?"}, {"from": "gpt", "value": answer}]
        lines.append(json.dumps({"id": f"photo-{number}", "image": image, "conversations": turns}))
    (place / "train.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return place


def _photo(number: int) -> bytes:
    """Encode a JPEG of smooth patches of some 16 x 16 pixels, 5 to 150 kB."""
    from PIL import Image

    word = hashlib.blake2b(number.to_bytes(8, "little"), digest_size=4).digest()
    num_pixels = 5_000 * 30 ** (int.from_bytes(word, "little") / 2**32) / 0.21
    height = int((num_pixels * 3 / 4) ** 0.5)
    patches = (max(1, height * 4 // 3 // 16), max(1, height // 16))
    seed = hashlib.shake_128(word).digest(patches[0] * patches[1] * 3)
    picture = Image.frombytes("RGB", patches, seed)
    encoded = io.BytesIO()
    picture.resize((height * 4 // 3, height), Image.Resampling.BICUBIC).save(encoded, "JPEG", quality=90)
    return encoded.getvalue()


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

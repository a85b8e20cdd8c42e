"""Samples to measure with: the same on every machine, made from nothing but a number."""

from __future__ import annotations

import functools
import hashlib
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TEXT_COLUMNS = {"number": "int", "text": "str"}
BLOB_COLUMNS = {"blob": "bytes", "name": "str", "number": "int"}
PICTURE_COLUMNS = {"number": "int", "picture": "jpeg"}
SHAPES = {
    "text": "{int, 150-byte str}",
    "blob": "{int, 20-60 kB bytes, str}",
    "photo": "{int, JPEG of 500 × 375}",
}
"""Kind -> what a sample is, for titles."""

_DISTINCT_PHOTOS = 200


@dataclass(frozen=True)
class Source:
    """Samples that every library reads, each from files of its own format below ``directory``."""

    kind: str
    count: int
    directory: str
    size_limit: str = "64mb"

    def place(self, library: str) -> Path:
        """Where a library's files of these samples are, or are to be made."""
        suffix = "" if library == "mds" else f"-{library}"
        return Path(self.directory) / f"{self.kind}-{self.count}-{self.size_limit}{suffix}"

    @property
    def shard_nbytes(self) -> int:
        return int(self.size_limit.removesuffix("mb")) << 20


def text_samples(count: int, begin: int = 0) -> Iterator[dict[str, Any]]:
    """Yield {number: int, text: str of 150 ASCII letters}."""
    for number in range(begin, count):
        yield {"number": number, "text": hashlib.shake_128(number.to_bytes(8, "little")).hexdigest(75)}


def blob_samples(count: int, begin: int = 0) -> Iterator[dict[str, Any]]:
    """Yield {number: int, name: short str, blob: 20,000 to 60,000 bytes that do not compress}."""
    for number in range(begin, count):
        word = hashlib.blake2b(number.to_bytes(8, "little"), digest_size=4).digest()
        nbytes = 20_000 + int.from_bytes(word, "little") % 40_001
        blob = hashlib.shake_128(word).digest(nbytes)
        yield {"number": number, "name": f"blob-{number}", "blob": blob}


def picture_samples(count: int, begin: int = 0) -> Iterator[dict[str, Any]]:
    """Yield {number: int, picture: JPEG of 256 x 256 with 32 x 32 smooth patches of colour}."""
    from PIL import Image

    for number in range(begin, count):
        encoded = _jpeg(number, (32, 32), (256, 256), 85)
        yield {"number": number, "picture": Image.open(io.BytesIO(encoded))}


def photo_tree(directory: Path, count: int) -> Path:
    """Make ``train.jsonl`` and ``count`` JPEG files of 5 to 150 kB, a thousand in a folder, unless they are there.

    The pictures are 512 different ones, sizes spread evenly on a log scale; a comment in each file makes it unlike
    all others. A record has an id, a conversation of two turns, and the path of its image.
    """
    place = directory / f"photos-{count}"
    if (place / "train.jsonl").exists():
        return place
    pictures = [_scene(number) for number in range(min(count, 512))]
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


def _scene(number: int) -> bytes:
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


def photo_samples(count: int, begin: int = 0) -> Iterator[dict[str, Any]]:
    """Yield {number: int, picture: bytes of a JPEG of 500 x 375}, some 45 kB; they repeat after 200."""
    for number in range(begin, count):
        yield {"number": number, "picture": _photo(number % _DISTINCT_PHOTOS)}


@functools.cache
def _photo(number: int) -> bytes:
    return _jpeg(number, (63, 47), (500, 375), 90)


def _jpeg(number: int, patches: tuple[int, int], size: tuple[int, int], quality: int) -> bytes:
    from PIL import Image

    across, down = patches
    seed = hashlib.shake_128(number.to_bytes(8, "little")).digest(across * down * 3)
    picture = Image.frombytes("RGB", patches, seed).resize(size, Image.Resampling.BICUBIC)
    encoded = io.BytesIO()
    picture.save(encoded, "JPEG", quality=quality)
    return encoded.getvalue()


def integer_samples(columns: int, count: int, begin: int = 0) -> Iterator[dict[str, int]]:
    """Yield {number: int} and further integers, as many columns in all."""
    names = [f"column{each}" for each in range(1, columns)]
    for number in range(begin, count):
        yield {"number": number, **dict.fromkeys(names, number)}


WIDTHS = (1, 4, 16, 64)
"""Numbers of columns of the kinds ``columns-1`` to ``columns-64``."""

SAMPLES: dict[str, tuple[dict[str, str], Callable[..., Iterator[dict[str, Any]]]]] = {
    "text": (TEXT_COLUMNS, text_samples),
    "blob": (BLOB_COLUMNS, blob_samples),
    "picture": (PICTURE_COLUMNS, picture_samples),
    "photo": (PICTURE_COLUMNS, photo_samples),
    **{
        f"columns-{width}": (
            dict.fromkeys(["number", *(f"column{each}" for each in range(1, width))], "int"),
            functools.partial(integer_samples, width),
        )
        for width in WIDTHS
    },
}
"""Kind -> columns and samples."""


def dataset(directory: Path, kind: str, count: int, *, size_limit: str = "64mb") -> Path:
    """Write a dataset below ``directory`` with streamshard, unless it is there, and return its place."""
    from streamshard import MDSWriter

    place = Source(kind, count, str(directory), size_limit).place("mds")
    if not (place / "index.json").exists():
        columns, samples = SAMPLES[kind]
        with MDSWriter(out=place, columns=columns, size_limit=size_limit) as writer:
            for sample in samples(count):
                writer.write(sample)
    return place


def to_pixels(picture: Any) -> Any:
    """Give a picture of Pillow as uint8 array of shape (224, 224, 3): all of it, scaled."""
    import numpy as np

    return np.array(picture.convert("RGB").resize((224, 224), 2))  # 2: bilinear


def bytes_to_pixels(encoded: bytes) -> Any:
    """The same from a file's bytes."""
    from PIL import Image

    return to_pixels(Image.open(io.BytesIO(encoded)))

"""Datasets that mosaicml-streaming and streamshard both write: the same samples and options for both.

Run by an interpreter with mosaicml-streaming==0.13.0, from the root of the repository:

    python -m tests.support.mosaic_datasets write DIRECTORY     each dataset below, as mosaicml-streaming writes it
    python -m tests.support.mosaic_datasets read DIRECTORY      read them with its readers and compare

``tests/compat/data`` was made by the first command. It is never made anew, only added to.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SOURCES = Path(__file__).resolve().parent.parent / "compat" / "data" / "sources"
ALL_HASHES = [
    *("blake2b", "blake2s", "md5", "sha1", "sha224", "sha256", "sha384", "sha3_224", "sha3_256", "sha3_384"),
    *("sha3_512", "sha512", "xxh128", "xxh32", "xxh3_128", "xxh3_64", "xxh64"),
]


@dataclass(frozen=True)
class Dataset:
    columns: dict[str, str]
    samples: Callable[[], Iterator[dict[str, Any]]]
    options: dict[str, Any] = field(default_factory=dict)
    same_bytes: bool = True  # False: the bytes depend on a version of Pillow, pickle or a codec


def _plain() -> Iterator[dict[str, Any]]:
    for i in range(40):
        yield {
            "a_int": (-1) ** i * 2 ** (i + 20),
            "b_str": "é∀𝄞x"[: i % 5] * (i % 7),
            "c_bytes": bytes([i]) * (i % 6),
            "d_json": {"k": [i, None, True, "ü", 1.5], "1": {}},
            "e_str_int": 10**30 + i,
            "f_str_float": i / 3,
            "g_str_decimal": Decimal("4E15") + i,
            "h_uint8": i,
            "i_uint16": 1000 * i,
            "j_uint32": 2**32 - 1 - i,
            "k_uint64": 2**64 - 1 - i,
            "l_int8": i - 20,
            "m_int16": -1000 * i % 30000,
            "n_int32": -(2**31) + i,
            "o_int64": -(2**63) + i,
            "p_float16": i / 8,
            "q_float32": i / 3,
            "r_float64": -i / 7,
        }


def _arrays() -> Iterator[dict[str, Any]]:
    dtypes = [
        "uint8",
        "int8",
        "uint16",
        "int16",
        "float16",
        "uint32",
        "int32",
        "float32",
        "uint64",
        "int64",
        "float64",
    ]
    for i in range(33):
        dtype = dtypes[i % len(dtypes)]
        yield {
            "any": np.arange(i + 1).astype(dtype).reshape((1,) * (i % 4) + (-1,)),
            "tokens": np.arange(i * i + 1, dtype=np.uint16),
            "wide": np.zeros((1, 70000) if i == 5 else (2, 1), np.int8),
            "fixed": np.full((2, 3), i / 2, np.float32),
        }


def _images() -> Iterator[dict[str, Any]]:
    jpeg, png = (SOURCES / "red.jpg").read_bytes(), (SOURCES / "blue.png").read_bytes()
    for i in range(6):
        opened = Image.open(SOURCES / "red.jpg")
        opened.load()
        raw = Image.new(("1", "L", "RGB", "RGBA", "CMYK", "I;16")[i], (i + 3, 4), i)
        yield {
            "array": [jpeg] * (i + 1),
            "array2": [jpeg],
            "jpeg": opened,
            "jpeg_bytes": jpeg,
            "pils": [Image.new("L", (2, 2), k) for k in range(i)],
            "png_bytes": png,
            "raw": raw,
        }


def _saved_images() -> Iterator[dict[str, Any]]:
    for i in range(4):
        picture = Image.new("RGB", (i + 1, 3), (i, 20, 30))
        yield {"jpegs": [picture] * i, "jpeg": picture, "png": picture, "pngs": [picture] * i}


def _pickles() -> Iterator[dict[str, Any]]:
    for i in range(3):
        yield {"x": {"set": {1, i}, "tuple": (i, b"\0")}}


def _text() -> Iterator[dict[str, Any]]:
    for i in range(200):
        yield {"number": i, "words": f"sample {i} " * (i % 9)}


def _large_first() -> Iterator[dict[str, Any]]:
    yield {"t": b"x" * 500}
    for i in range(30):
        yield {"t": bytes([i]) * 10}


_TEXT = {"number": "int", "words": "str"}
DATASETS = {
    "plain": Dataset(
        {k: k.partition("_")[2] for k in next(_plain())},
        _plain,
        {"size_limit": 4096, "hashes": ["sha1", "xxh3_64"]},
    ),
    "arrays": Dataset(
        {
            "any": "ndarray",
            "tokens": "ndarray:uint16",
            "wide": "ndarray:int8",
            "fixed": "ndarray:float32:2,3",
        },
        _arrays,
        {"size_limit": "16kb", "hashes": []},
    ),
    "images": Dataset(
        {
            "array": "jpeg_array",
            "array2": "jpegarray",
            "jpeg": "jpeg",
            "jpeg_bytes": "jpeg",
            "pils": "list[pil]",
            "png_bytes": "png",
            "raw": "pil",
        },
        _images,
        {"size_limit": None, "hashes": ["xxh64"]},
    ),
    "saved-images": Dataset(
        {"jpeg": "jpeg", "jpegs": "list[jpeg]", "png": "png", "pngs": "list[png]"},
        _saved_images,
        {"hashes": []},
        same_bytes=False,
    ),
    "pickles": Dataset({"x": "pkl"}, _pickles, {"hashes": []}, same_bytes=False),
    "hashes": Dataset(_TEXT, _text, {"size_limit": 8192, "hashes": ALL_HASHES}),
    **{
        "text-" + name.replace(":", "-"): Dataset(
            _TEXT, _text, {"size_limit": 4096, "compression": name, "hashes": ["xxh64"]}, same_bytes=False
        )
        for name in ("zstd", "zstd:7", "gz:5", "bz2:9", "br:5", "snappy")
    },
}
# mosaicml-streaming puts an empty shard before a first sample that is larger than the limit; we do not.
FOREIGN_ONLY = {"empty-shard": Dataset({"t": "bytes"}, _large_first, {"size_limit": 400, "hashes": []})}


def same_value(found: Any, wanted: Any) -> bool:
    """Compare a value read with the one written: same type family, same content."""
    if isinstance(wanted, bytes) and isinstance(found, Image.Image):
        wanted = Image.open(io.BytesIO(wanted))
    if isinstance(wanted, Image.Image):
        if not isinstance(found, Image.Image) or found.size != wanted.size:
            return False
        if found.format == "JPEG" and wanted.format is None:  # saved with loss by the writer
            return found.mode == wanted.mode
        return found.mode == wanted.mode and found.tobytes() == wanted.tobytes()
    if isinstance(wanted, np.ndarray):
        return (
            found.dtype == wanted.dtype
            and found.shape == wanted.shape
            and found.tobytes() == wanted.tobytes()
        )
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(same_value, found, wanted))
    if isinstance(found, np.generic):
        return bool(found == found.dtype.type(wanted))
    return type(found) is type(wanted) and bool(found == wanted)


def same_sample(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Compare all columns."""
    return set(found) == set(wanted) and all(same_value(found[key], wanted[key]) for key in wanted)


def write_all(directory: Path) -> None:
    from streaming import MDSWriter

    for name, dataset in {**DATASETS, **FOREIGN_ONLY}.items():
        with MDSWriter(out=str(directory / name), columns=dataset.columns, **dataset.options) as writer:
            for sample in dataset.samples():
                writer.write(sample)


def read_all(directory: Path) -> None:
    from streaming import StreamingDataset

    for name, dataset in DATASETS.items():
        found = StreamingDataset(
            local=str(directory / name), shuffle=False, batch_size=1, allow_unsafe_types=True
        )
        wanted = list(dataset.samples())
        if len(found) != len(wanted):
            sys.exit(f"{name}: {len(found)} samples, expected {len(wanted)}")
        for i, sample in enumerate(wanted):
            if not same_sample(found[i], sample):
                sys.exit(f"{name}: sample {i} reads back as {found[i]!r:.500}, expected {sample!r:.500}")


def make_sources() -> None:
    SOURCES.mkdir(parents=True, exist_ok=True)
    if not (SOURCES / "red.jpg").exists():
        Image.new("RGB", (16, 8), (250, 10, 10)).save(SOURCES / "red.jpg", quality=91)
        Image.new("RGBA", (8, 8), (1, 2, 200, 128)).save(SOURCES / "blue.png")


if __name__ == "__main__":
    make_sources()
    {"write": write_all, "read": read_all}[sys.argv[1]](Path(sys.argv[2]))

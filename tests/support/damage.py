"""Ways in which a shard of a dataset goes bad. Each takes the dataset's directory and the number of a shard."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from streamshard.format.hashing import hash_bytes
from tests.support.small_datasets import edit_index


def shard_path(directory: Path, number: int) -> Path:
    return directory / f"shard.{number:05d}.mds"


def remove(directory: Path, number: int) -> None:
    shard_path(directory, number).unlink()


def truncate(directory: Path, number: int) -> None:
    path = shard_path(directory, number)
    path.write_bytes(path.read_bytes()[:-1])


def empty(directory: Path, number: int) -> None:
    shard_path(directory, number).write_bytes(b"")


def lengthen(directory: Path, number: int) -> None:
    path = shard_path(directory, number)
    path.write_bytes(path.read_bytes() + b"\0")


def flip_bit(directory: Path, number: int) -> None:
    """In the last sample's text."""
    path = shard_path(directory, number)
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


def spoil_row(directory: Path, number: int, row: int) -> None:
    """The last byte of one sample becomes 255, which ends no text; nothing else shows it."""
    path = shard_path(directory, number)
    content = bytearray(path.read_bytes())
    (end,) = struct.unpack_from("<I", content, 4 + 4 * (row + 1))
    content[end - 1] = 0xFF
    path.write_bytes(content)


def swap_with_next(directory: Path, number: int) -> None:
    one, other = shard_path(directory, number), shard_path(directory, number + 1)
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def claim_more_samples(directory: Path, number: int) -> None:
    """The header claims 2^32 - 1 samples; hashes and index agree with the file."""
    _rewrite(directory, number, lambda content: struct.pack("<I", 0xFFFFFFFF) + content[4:])


def point_outside(directory: Path, number: int) -> None:
    """The offset of the third sample lies beyond the file; hashes and index agree with the file."""
    _rewrite(directory, number, lambda content: content[:12] + struct.pack("<I", 1 << 31) + content[16:])


def point_backwards(directory: Path, number: int) -> None:
    """The offset of the third sample is 0; hashes and index agree with the file."""
    _rewrite(directory, number, lambda content: content[:12] + struct.pack("<I", 0) + content[16:])


def remove_index(directory: Path) -> None:
    (directory / "index.json").unlink()


def cut_index(directory: Path) -> None:
    path = directory / "index.json"
    path.write_bytes(path.read_bytes()[:-10])


def climb_out(directory: Path, number: int) -> None:
    """The index names a shard outside the directory."""

    def change(entries: list[dict]) -> None:  # type: ignore[type-arg]
        entries[number]["raw_data"]["basename"] = "../outside.mds"

    edit_index(directory, change)


def _rewrite(directory: Path, number: int, change) -> None:  # type: ignore[no-untyped-def]
    path = shard_path(directory, number)
    content = change(path.read_bytes())
    path.write_bytes(content)
    index = json.loads((directory / "index.json").read_text())
    raw = index["shards"][number]["raw_data"]
    raw["hashes"] = {name: hash_bytes(name, content) for name in raw["hashes"]}
    (directory / "index.json").write_text(json.dumps(index))

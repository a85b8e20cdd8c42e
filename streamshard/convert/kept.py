"""Copies of images in the work directory, kept from the scan until the shards are made.

What is fetched over a network, or made from another image, is so fetched or made once, whichever process needs it
again, also after a kill. Each copy is one file: the content, behind it the size of what it was made from and a hash
(xxh64, seeded with that size), two u64, little-endian, which a copy that a power cut has torn does not have. Losing
copies costs time and nothing else.
"""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path

import xxhash

KEPT_DIRECTORY = "images"
_TAIL = struct.Struct("<QQ")


class KeptImages:
    """The copies below one folder, by a key. Safe for many processes at once.

    Args:
        folder: need not exist.
        leave_free_nbytes: no copy is added where the disk would have less room left.
    """

    def __init__(self, folder: Path, leave_free_nbytes: int = 0) -> None:
        self._folder = folder
        self._leave_free = leave_free_nbytes
        self._made: set[str] = set()

    def has(self, key: str) -> bool:
        """Whether there is a copy, whole or not."""
        return self._path(key).exists()

    def get(self, key: str) -> tuple[bytes, int] | None:
        """A copy, and the size of what it was made from; ``None`` where there is none, or none that is whole."""
        try:
            whole = self._path(key).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        end = len(whole) - _TAIL.size
        if end <= 0:
            return None
        source_nbytes, digest = _TAIL.unpack_from(whole, end)
        content = whole[:end]
        return (content, source_nbytes) if digest == _digest(content, source_nbytes) else None

    def put(self, key: str, content: bytes, source_nbytes: int) -> None:
        """Keep a copy, if there is room."""
        if free_nbytes(self._folder) - len(content) < self._leave_free:
            return
        path = self._path(key)
        if path.parent.name not in self._made:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._made.add(path.parent.name)
        part = path.with_name(f"{path.name}.{os.getpid()}.{id(content):x}")
        try:
            with part.open("wb") as file:
                file.write(content)
                file.write(_TAIL.pack(source_nbytes, _digest(content, source_nbytes)))
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)

    def clear(self) -> None:
        """Delete all copies."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def drop(self, key: str) -> None:
        """Delete one copy, if there is one."""
        self._path(key).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        name = xxhash.xxh3_128_hexdigest(key.encode("utf-8", "surrogatepass"))
        return self._folder / name[:1] / name[1:]


def room_to_leave(folder: Path) -> int:
    """Half of what is free on the disk now: the shards need room as well."""
    return free_nbytes(folder) // 2


def free_nbytes(folder: Path) -> int:
    """What is free on the disk that a folder is on, or will be."""
    while not folder.exists():
        folder = folder.parent
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def _digest(content: bytes, source_nbytes: int) -> int:
    return xxhash.xxh64_intdigest(content, source_nbytes)

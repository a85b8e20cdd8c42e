"""Files of the driver's machine on other nodes of a cluster: seen there too, or sent once and kept until the job ends.

A file counts as seen where the same path has the same size and time. A folder of images counts as seen where it has
the entries that the driver has noted; images are never sent.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from streamshard import __version__
from streamshard.convert.ray_scratch import scratch_folder
from streamshard.errors import ConvertError, StorageError

# Of a file that is sent, this much at a time.
_PIECE_NBYTES = 8 << 20
_WITNESSES = 8

Stamp = tuple[int, int]
"""Size in bytes and modification time in nanoseconds."""


class AbsentFilesError(ConvertError):
    """Files that this node does not see and that nobody sends."""


class Server(Protocol):
    """Gives pieces of the driver's files."""

    def piece(self, path: str, begin: int, nbytes: int) -> bytes:
        """Bytes ``[begin, begin + nbytes)`` of one of the job's files."""


def stamp_of(path: str) -> Stamp:
    """What tells whether a file on another node is the same one."""
    found = os.stat(path)  # noqa: PTH116 as text
    return found.st_size, found.st_mtime_ns


def witnesses_of(folder: str) -> tuple[str, ...] | None:
    """Some entries of a folder, by which another node knows that it sees the same one; None where there is none."""
    try:
        with os.scandir(folder) as entries:
            return tuple(entry.name for entry in islice(entries, _WITNESSES))
    except OSError:
        return None


def sees_folder(folder: str, witnesses: Iterable[str]) -> bool:
    """Whether the folder is here, with these entries."""
    return os.path.isdir(folder) and all(  # noqa: PTH112 as text
        os.path.lexists(os.path.join(folder, name))  # noqa: PTH118 as text
        for name in witnesses
    )


@dataclass(frozen=True)
class FilesOfJob:
    """What a node must know of the driver's files.

    Attributes:
        name: of the folder for copies, the same for a job that is run again.
        token: content of the file ``seen`` in the work directory, by which a node knows that it sees that directory.
        shared: every node sees the work directory.
        stamps: path → size and time, of each file that tasks read.
        folders: folder of images → some of its entries.
        server: sends files; None as long as no node has needed one.
        version: of streamshard, at the driver.
    """

    name: str
    token: str
    shared: bool
    stamps: Mapping[str, Stamp]
    folders: Mapping[str, tuple[str, ...]]
    server: Server | None = field(default=None, repr=False)
    version: str = __version__

    def scratch(self) -> Path:
        """The private folder of this job on this node."""
        return scratch_folder(self.name)

    def local(self, paths: Iterable[str]) -> dict[str, str]:
        """For each path, where the same file is on this node; files that are not here are fetched.

        Raises:
            AbsentFilesError: they are not here, and there is no server.
            StorageError: a file that changed meanwhile.
        """
        here = {path: path for path in paths}
        absent = [path for path in here if not _is_same(path, self.stamps[path])]
        if absent and self.server is None:
            raise AbsentFilesError(", ".join(absent[:3]))
        for path in absent:
            here[path] = str(self._copy(path))
        return here

    def image_folder(self, folder: str) -> str:
        """The folder itself, or where this node does not see it, a path that is told by :meth:`unseen_folder`."""
        witnesses = self.folders.get(folder)
        if witnesses is None or _sees_folder(folder, witnesses):
            return folder
        return f"{self._unseen}{folder}"

    def unseen_folder(self, message: str) -> str | None:
        """The folder that a message of a task complains of because this node does not see it."""
        if self._unseen not in message:
            return None
        return next((name for name in self.folders if f"{self._unseen}{name}" in message), None)

    @property
    def _unseen(self) -> str:
        return f"/streamshard-{self.name}-not-on-this-node"

    def _copy(self, path: str) -> Path:
        nbytes, time_ns = self.stamps[path]
        folder = self.scratch() / "files"
        folder.mkdir(exist_ok=True)
        key = hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()[:16]
        target = folder / f"{key}-{nbytes}-{time_ns}"
        with _locked(folder / f"{key}.lock"):
            if not target.exists():
                part = target.with_suffix(".part")
                with part.open("wb") as file:
                    for begin in range(0, nbytes, _PIECE_NBYTES):
                        file.write(_served(self.server, path, begin, min(_PIECE_NBYTES, nbytes - begin)))
                part.replace(target)
        return target


def _served(server: Server | None, path: str, begin: int, nbytes: int) -> bytes:
    import ray

    call: Any = server
    content: bytes = ray.get(call.piece.remote(path, begin, nbytes))
    return content


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def _is_same(path: str, stamp: Stamp) -> bool:
    try:
        return stamp_of(path) == stamp
    except OSError:
        return False


@lru_cache(maxsize=1024)
def _sees_folder(folder: str, witnesses: tuple[str, ...]) -> bool:
    return sees_folder(folder, witnesses)


class FileServer:
    """Runs on the driver's node and gives pieces of the job's files, of no others, as long as they do not change."""

    def __init__(self, stamps: Mapping[str, Stamp]) -> None:
        self._stamps = dict(stamps)

    def piece(self, path: str, begin: int, nbytes: int) -> bytes:
        """See :class:`Server`."""
        stamp = self._stamps.get(path)
        if stamp is None:
            raise StorageError(f"{path}: is no file of this job")
        with Path(path).open("rb") as file:
            file.seek(begin)
            content = file.read(nbytes)
            found = os.fstat(file.fileno())
        if (found.st_size, found.st_mtime_ns) != stamp:
            raise StorageError(f"{path}: changed while it was sent to another node; run again")
        return content

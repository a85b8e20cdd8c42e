"""Files in a directory of this machine."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TypeVar

from streamshard.errors import BlobNotFoundError, StorageError
from streamshard.storage.cancel import check_cancelled
from streamshard.storage.retry import RetryPolicy, call_with_retry
from streamshard.storage.store import (
    COPY_NBYTES,
    Version,
    check_key,
    check_limit,
    check_prefix,
    check_range,
    check_size,
    is_temporary,
    replacing,
    sync_directory,
    sync_file,
)

T = TypeVar("T")


class LocalStore:
    """A directory as a store. Links inside it are followed; only regular files are read."""

    def __init__(self, root: Path, *, retry: RetryPolicy | None = None) -> None:
        root = root if isinstance(root, Path) else Path(root)
        self.root = root if root.is_absolute() else root.absolute()  # a later chdir() does not move it
        # The file that was asked for last, until it is read: mostly an index, which is named, looked at and read.
        self._last: tuple[str, Path] | None = None
        self.retry = retry or RetryPolicy()

    def __repr__(self) -> str:
        return f"LocalStore({self.url!r})"

    @property
    def url(self) -> str:
        return str(self.root)

    def local_path(self, key: str) -> Path:
        last = self._last
        if last is None or last[0] != key:
            last = self._last = (key, self.root / check_key(key, self.url))
        return last[1]

    def size(self, key: str) -> int:
        path = self.local_path(key)
        return self._call("look at", path, lambda: _stat_regular(path).st_size)

    def version(self, key: str) -> Version:
        return Version(self.size(key))  # times of change are too coarse for a tag

    def read(self, key: str, *, limit: int | None = None) -> bytes:
        path = self.local_path(key)
        self._last = None
        return self._call("read", path, lambda: _read_all(path, limit))

    def read_small(self, key: str, below: int, *, certain: bool = False) -> bytes | None:
        path = self.local_path(key)
        payload = self._call("read", path, lambda: _read_below(path, below))
        if payload is not None:
            self._last = None
        return payload

    def read_range(self, key: str, begin: int, end: int) -> bytes:
        path = self.local_path(key)
        wanted = check_range(begin, end, f"read {path}")

        def read_part() -> bytes:
            with _open_regular(path) as file:
                nbytes = os.fstat(file.fileno()).st_size
                if end > nbytes:
                    raise StorageError(f"read {path}: bytes [{begin}, {end}) asked, the file has {nbytes}")
                file.seek(begin)
                payload = file.read(wanted)
            check_size(len(payload), wanted, f"read bytes [{begin}, {end}) of {path}")
            return payload

        return self._call("read", path, read_part)

    def fetch_to(
        self,
        key: str,
        path: Path,
        *,
        progress: Callable[[int], None] | None = None,
        nbytes: int | None = None,
    ) -> int:
        source = self.local_path(key)

        def copy() -> int:
            copied = 0
            with _open_regular(source) as reading, replacing(path) as temporary:
                check_size(os.fstat(reading.fileno()).st_size, nbytes, f"copy {source}")
                with temporary.open("xb") as writing:
                    while piece := reading.read(COPY_NBYTES):
                        check_cancelled()
                        writing.write(piece)
                        copied += len(piece)
                        if progress is not None:
                            progress(len(piece))
                check_size(copied, nbytes, f"copy {source}")
            return copied

        return self._call("copy", source, copy)

    def put(self, key: str, path: Path) -> None:
        target = self.local_path(key)

        def copy() -> None:
            target.parent.mkdir(parents=True, exist_ok=True)
            with _open_regular(path) as reading, replacing(target) as temporary:
                with temporary.open("xb") as writing:
                    while piece := reading.read(COPY_NBYTES):
                        writing.write(piece)
                sync_file(temporary)
                # B075: compared before the rename, so that a short copy never shows under its final name.
                check_size(temporary.stat().st_size, os.fstat(reading.fileno()).st_size, f"write {target}")
            sync_directory(target.parent)

        self._call("write", target, copy)

    def put_bytes(self, key: str, payload: bytes) -> None:
        target = self.local_path(key)

        def write() -> None:
            target.parent.mkdir(parents=True, exist_ok=True)
            with replacing(target, durable=True) as temporary:
                temporary.write_bytes(payload)
                check_size(temporary.stat().st_size, len(payload), f"write {target}")

        self._call("write", target, write)

    def list(self, prefix: str = "") -> list[str]:
        folder, _, _ = check_prefix(prefix, self.url).rpartition("/")
        top = self.root / folder if folder else self.root
        return self._call(
            "list", top, lambda: sorted(k for k in _keys_below(top, folder) if k.startswith(prefix))
        )

    def exists(self, key: str) -> bool:
        try:
            self.size(key)
        except BlobNotFoundError:
            return False
        return True

    def delete(self, key: str) -> None:
        path = self.local_path(key)

        def remove() -> None:
            _stat_regular(path)
            path.unlink()

        self._call("delete", path, remove)

    def modified(self, key: str) -> float:
        path = self.local_path(key)
        return self._call("look at", path, lambda: _stat_regular(path).st_mtime)

    def _call(self, verb: str, path: Path, operation: Callable[[], T]) -> T:
        return call_with_retry(operation, self.retry, what=f"{verb} {path}", hint="check its owner and mode")


def _read_all(path: Path, limit: int | None) -> bytes:
    descriptor, nbytes = _opened(path)
    try:
        check_limit(nbytes, limit, f"read {path}")
        return _read_open(descriptor, nbytes, path)
    finally:
        os.close(descriptor)


def _read_below(path: Path, nbytes: int) -> bytes | None:
    """Read a file that has fewer bytes than that; else None."""
    descriptor, found = _opened(path)
    try:
        return _read_open(descriptor, found, path) if found < nbytes else None
    finally:
        os.close(descriptor)


def _read_open(descriptor: int, nbytes: int, path: Path) -> bytes:
    # Without a file object, which takes as long as all else: there may be a thousand small indexes.
    payload = os.read(descriptor, nbytes)
    while len(payload) < nbytes and (more := os.read(descriptor, nbytes - len(payload))):
        payload += more
    if len(payload) != nbytes:
        check_size(len(payload), nbytes, f"read {path}")
    return payload


def _stat_regular(path: Path) -> os.stat_result:
    return _regular(path.stat(), path)


def _regular(status: os.stat_result, path: Path) -> os.stat_result:
    if stat.S_ISDIR(status.st_mode):
        raise BlobNotFoundError(f"{path}: is a directory, expected a file")
    if not stat.S_ISREG(status.st_mode):
        raise StorageError(f"{path}: is a pipe, socket or device, expected a regular file")
    return status


def _open_regular(path: Path) -> BinaryIO:
    """Open ``path`` for reading; never hangs on a pipe that nobody writes to."""
    return os.fdopen(_opened(path)[0], "rb")


def _opened(path: Path) -> tuple[int, int]:
    """The same as a descriptor, with the file's size."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        _stat_regular(path)  # says more of what cannot be opened, such as sockets
        raise
    try:
        return descriptor, _regular(os.fstat(descriptor), path).st_size
    except BaseException:
        os.close(descriptor)
        raise


def _keys_below(top: Path, folder: str) -> list[str]:
    def give_up(error: OSError) -> None:
        if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
            raise error

    keys: list[str] = []
    for directory, _, names in os.walk(top, onerror=give_up):
        relative = Path(directory).relative_to(top).as_posix()
        parts = [part for part in (folder, relative) if part not in ("", ".")]
        keys.extend("/".join([*parts, name]) for name in names if not is_temporary(name))
    return keys

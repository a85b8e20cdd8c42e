"""Files in this process's memory, for tests and small experiments."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path

from streamshard.errors import BlobNotFoundError, StorageError
from streamshard.storage.store import (
    Version,
    check_key,
    check_limit,
    check_prefix,
    check_range,
    check_size,
    replacing,
)

# One space of names for the whole process, as a bucket is one for the whole world: two stores of one URL
# agree. Single operations on a dict are atomic, so that only listing takes the lock.
_files: dict[str, bytes] = {}
_listing = threading.Lock()


class MemoryStore:
    """``memory://NAME[/PATH]``: one dict per process. Pickled by name: another process has its own files."""

    def __init__(self, url: str) -> None:
        self.url = "memory://" + url.removeprefix("memory://").strip("/")

    def __repr__(self) -> str:
        return f"MemoryStore({self.url!r})"

    def local_path(self, key: str) -> None:
        check_key(key, self.url)

    def size(self, key: str) -> int:
        return len(self._find(key))

    def version(self, key: str) -> Version:
        payload = self._find(key)
        return Version(len(payload), hashlib.blake2b(payload, digest_size=16).hexdigest())

    def read(self, key: str, *, limit: int | None = None) -> bytes:
        payload = self._find(key)
        check_limit(len(payload), limit, f"read {self.url}/{key}")
        return payload

    def read_small(self, key: str, below: int, *, certain: bool = False) -> bytes | None:
        return self.read(key) if self.size(key) < below else None

    def read_range(self, key: str, begin: int, end: int) -> bytes:
        payload = self._find(key)
        check_range(begin, end, f"read {self.url}/{key}")
        if end > len(payload):
            raise StorageError(
                f"read {self.url}/{key}: bytes [{begin}, {end}) asked, the file has {len(payload)}"
            )
        return payload[begin:end]

    def fetch_to(
        self,
        key: str,
        path: Path,
        *,
        progress: Callable[[int], None] | None = None,
        nbytes: int | None = None,
    ) -> int:
        payload = self._find(key)
        check_size(len(payload), nbytes, f"fetch {self.url}/{key}")
        with replacing(path) as temporary:
            temporary.write_bytes(payload)
            if progress is not None:
                progress(len(payload))
        return len(payload)

    def put(self, key: str, path: Path) -> None:
        self.put_bytes(key, path.read_bytes())

    def put_bytes(self, key: str, payload: bytes) -> None:
        with _listing:
            _files[self._name(key)] = bytes(payload)

    def list(self, prefix: str = "") -> list[str]:
        check_prefix(prefix, self.url)
        root = f"{self.url}/"
        with _listing:
            names = list(_files)
        return sorted(name[len(root) :] for name in names if name.startswith(root + prefix))

    def exists(self, key: str) -> bool:
        return self._name(key) in _files

    def delete(self, key: str) -> None:
        with _listing:
            found = _files.pop(self._name(key), None)
        if found is None:
            raise BlobNotFoundError(f"delete {self.url}/{key}: not found")

    def modified(self, key: str) -> None:
        self._find(key)

    def _name(self, key: str) -> str:
        return f"{self.url}/{check_key(key, self.url)}"

    def _find(self, key: str) -> bytes:
        try:
            return _files[self._name(key)]
        except KeyError:
            raise BlobNotFoundError(f"read {self.url}/{key}: not found") from None

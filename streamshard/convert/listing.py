"""What lies in a folder, local or below a URL: names, sizes, small files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamshard.errors import ConvertError
from streamshard.storage.opening import is_local, open_store
from streamshard.storage.redact import public_url

if TYPE_CHECKING:
    from streamshard.convert.origins import Origin

_LARGEST_INDEX = 1 << 30


class Place:
    """A folder of inputs, an absolute path or a URL. Hidden files, and those that begin with ``_``, are not seen."""

    def __init__(self, location: str, storage_options: Mapping[str, Any] | None) -> None:
        self.location = location.rstrip("/") if not is_local(location) else location
        self.name = public_url(self.location)
        self.local = is_local(location)
        self._store = open_store(self.location, storage_options=storage_options)

    @cached_property
    def _names(self) -> list[str]:
        if not self.local:
            keys = self._store.list()
            return [key for key in keys if not any(part[:1] in "._" for part in key.split("/"))]
        found: list[str] = []
        for folder, folders, files in os.walk(self.location):
            folders[:] = sorted(name for name in folders if name[:1] not in "._")
            inside = os.path.relpath(folder, self.location)
            prefix = "" if inside == "." else f"{inside}/"
            found += [prefix + name for name in files if name[:1] not in "._"]
        return sorted(found)

    def names(self) -> list[str]:
        """All files at any depth as paths below the folder, sorted."""
        return self._names

    def top(self) -> set[str]:
        """The names directly in the folder that are files."""
        return {name for name in self._names if "/" not in name}

    def read(self, name: str) -> bytes:
        """A small file; StorageError where it cannot be read."""
        return self._store.read(name, limit=_LARGEST_INDEX)

    def stamp(self, name: str) -> tuple[int, int | None]:
        """Size and modification time in nanoseconds (``None`` at a URL)."""
        if not self.local:
            return self._store.size(name), None
        path = Path(self.location, name)
        try:
            found = path.stat()
        except FileNotFoundError:
            raise ConvertError(f"source {self.name!r}: there is no file {name!r}") from None
        return found.st_size, found.st_mtime_ns

    def origin(self, name: str, kind: str, detail: str = "") -> Origin:
        """One file of the folder as an input."""
        from streamshard.convert.origins import Origin

        nbytes, mtime_ns = self.stamp(name)
        location = f"{self.location.rstrip('/')}/{name}"
        folder = location.rpartition("/")[0]
        return Origin(name.rpartition("/")[2], location, folder, nbytes, mtime_ns, kind, detail)

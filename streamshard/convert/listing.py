"""What lies in a folder, local or below a URL: names, sizes, small files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamshard.errors import ConvertError, StorageError
from streamshard.storage.opening import is_local, open_store
from streamshard.storage.redact import public_url

if TYPE_CHECKING:
    from streamshard.convert.origins import Origin

_LARGEST_INDEX = 1 << 30


class Place:
    """A folder of inputs, an absolute path or a URL. Hidden files, and those that begin with ``_``, are not seen.

    Args:
        location: of the folder.
        storage_options: passed to fsspec.
        follow_links: look into folders that links lead to, unless these lie inside the folder anyway.
    """

    def __init__(
        self, location: str, storage_options: Mapping[str, Any] | None, *, follow_links: bool = False
    ) -> None:
        self.follow_links = follow_links
        self.unfollowed: list[str] = []
        self.location = location.rstrip("/") if not is_local(location) else location
        self.name = public_url(self.location)
        self.local = is_local(location)
        self._store = open_store(self.location, storage_options=storage_options)

    @cached_property
    def _names(self) -> list[str]:
        if not self.local:
            keys = self._store.list()
            return [key for key in keys if not any(part[:1] in "._" for part in key.split("/"))]
        return sorted(self._walked())

    def _walked(self) -> Iterator[str]:
        """The files at any depth. With each folder go the real folders on the way to it: none is entered twice."""
        left = [(self.location, "", [os.path.realpath(self.location)])]
        while left:
            folder, prefix, trees = left.pop()
            try:
                with os.scandir(folder) as entries:
                    shown = [entry for entry in entries if entry.name[:1] not in "._"]
            except OSError as error:
                raise StorageError(f"{folder}: the folder cannot be listed ({error.strerror})") from error
            for entry in shown:
                if not _is_folder(entry):
                    yield prefix + entry.name
                elif (mine := self._trees(entry, prefix, trees)) is not None:
                    left.append((entry.path, f"{prefix}{entry.name}/", mine))

    def _trees(self, entry: os.DirEntry[str], prefix: str, trees: list[str]) -> list[str] | None:
        """The real folders on the way into a folder; ``None`` where a link is not to be followed."""
        if not entry.is_symlink():
            return trees
        real = os.path.realpath(entry.path)
        if any(f"{real}/".startswith(f"{tree}/") or f"{tree}/".startswith(f"{real}/") for tree in trees):
            return None
        if not self.follow_links:
            self.unfollowed.append(prefix + entry.name)
            return None
        return [*trees, real]

    def names(self) -> list[str]:
        """All files at any depth as paths below the folder, sorted."""
        return self._names

    def top(self) -> set[str]:
        """The names directly in the folder that are files."""
        return {name for name in self._names if "/" not in name}

    def read(self, name: str) -> bytes:
        """A small file; StorageError where it cannot be read."""
        return self._store.read(name, limit=_LARGEST_INDEX)

    def read_own(self, name: str) -> bytes:
        """As :meth:`read`, of a file that lies in the folder: a link that leaves it is refused, as one to an image is.

        Raises:
            ConvertError: such a link, unless links are followed.
        """
        path = f"{self.location}/{name}"
        if self.local and not self.follow_links and os.path.islink(path):  # noqa: PTH114 many files
            real = os.path.realpath(path)
            if not real.startswith(f"{os.path.realpath(self.location).rstrip('/')}/"):
                raise ConvertError(
                    f"{self.name}/{name}: a link to {real}, outside the folder; put the file there, or allow it with"
                    " --allow-outside-root"
                )
        return self.read(name)

    def stamp(self, name: str) -> tuple[int, int | None]:
        """Size and modification time in nanoseconds (``None`` at a URL)."""
        if not self.local:
            return self._store.size(name), None
        path = Path(self.location, name)
        try:
            found = path.stat()
        except FileNotFoundError:
            raise ConvertError(f"source {self.name!r}: there is no file {name!r}") from None
        except OSError as error:
            raise ConvertError(f"source {self.name!r}: {name!r} cannot be read ({error.strerror})") from None
        return found.st_size, found.st_mtime_ns

    def origin(self, name: str, kind: str, detail: str = "") -> Origin:
        """One file of the folder as an input."""
        from streamshard.convert.origins import Origin

        nbytes, mtime_ns = self.stamp(name)
        location = f"{self.location.rstrip('/')}/{name}"
        folder = location.rpartition("/")[0]
        return Origin(name.rpartition("/")[2], location, folder, nbytes, mtime_ns, kind, detail)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether a folder is there, or a link leads to one; not where it leads to itself."""
    try:
        return entry.is_dir()
    except OSError:
        return False

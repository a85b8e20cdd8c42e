"""Inputs that lie behind a URL, as local files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from streamshard.convert.origins import Origin
from streamshard.storage.opening import is_local, open_store


def local_copy(
    origin: Origin, directory: Path, stem: str, storage_options: Mapping[str, Any] | None
) -> tuple[Path, bool]:
    """Give an input as a local file, and whether it is ours: fetched to ``directory``, to be deleted after use.

    Raises:
        StorageError: it cannot be read.
    """
    if is_local(origin.location):
        return Path(origin.location), False
    folder, _, name = origin.location.rpartition("/")
    path = directory / f"{stem}.fetched"
    open_store(folder, storage_options=storage_options).fetch_to(name, path)
    return path, True

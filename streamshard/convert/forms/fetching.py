"""Inputs that lie behind a URL, as local files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from streamshard.storage.opening import is_local, open_store

if TYPE_CHECKING:
    from streamshard.convert.staging import StageTask


def local_copy(task: StageTask) -> tuple[Path, bool]:
    """Give an input as a local file, and whether it is ours: fetched to the task's folder, to be deleted after use.

    Raises:
        StorageError: it cannot be read.
    """
    location = task.origin.location
    if is_local(location):
        return Path(location), False
    folder, _, name = location.rpartition("/")
    path = Path(task.directory) / f"{task.stem}.fetched"
    open_store(folder, storage_options=task.storage_options).fetch_to(name, path)
    return path, True

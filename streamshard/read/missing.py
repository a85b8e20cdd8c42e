"""One message for a missing index: the full path tried, what is there instead, and the next step (B070)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from streamshard.errors import StorageError
from streamshard.format.index import INDEX_BASENAME
from streamshard.read.keys import key_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from streamshard.storage.store import Store

_MAX_LISTED = 5
# Of a local tree (which may be somebody's home) only so much is looked at.
_MAX_SCANNED = 20_000
_MAX_DEPTH = 2


def explain_missing_index(store: Store, split: str | None, source: str) -> str:
    """Say in one paragraph what was found where the index of ``split`` was expected."""
    path = store.local_path(INDEX_BASENAME)
    root = None if path is None else path.parent.absolute()
    if root is not None and not root.is_dir():
        what = "is not a directory" if root.exists() else "does not exist"
        return f"no index at {source}: {root} {what}. Check the path"
    try:
        keys = store.list() if root is None else list(_scan(root))
    except OSError as error:
        return (
            f"no index at {source}, and the place cannot be listed to see what is there ({error}). "
            "Check address, split and permissions"
        )
    if split and INDEX_BASENAME in keys:
        return f"no index at {source}, but {store.url} itself has one: leave out split={split!r}"
    here = [key for key in keys if key.startswith(key_in(split, ""))] if split else keys
    tail = "/" + INDEX_BASENAME
    if with_index := sorted(key.removesuffix(tail) for key in keys if key.endswith(tail)):
        return (
            f"no index at {source}; sub-directories that have one: {_some(with_index)}. "
            f"Pass split={with_index[0]!r}, or make them one dataset with `streamshard merge {store.url}`"
        )
    if shards := [key for key in here if ".mds" in key.rpartition("/")[2]]:
        return (
            f"no index at {source}, but {len(shards):,} shard files are there ({_some(shards)}): it is "
            "written last, so their writer has not finished or was killed. Wait for it, or run it again; where only "
            "the index was lost, `streamshard repair` makes one from them"
        )
    if here:
        return f"no index at {source}; found instead: {_some(here)}. That is no dataset: check the path"
    if keys:
        folders = sorted({key.partition("/")[0] for key in keys if "/" in key})
        return (
            f"no index at {source}; nothing is there. {store.url} holds {_some(folders or keys)}: "
            "check split and path"
        )
    return f"no index at {source}; nothing at all is there: check the path"


def _some(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:_MAX_LISTED])) + (", ..." if len(names) > _MAX_LISTED else "")


def _scan(root: Path) -> Iterator[str]:
    """Yield the files below ``root`` to a small depth and number, the shallow ones first."""
    left = _MAX_SCANNED
    level = [root]
    for _ in range(_MAX_DEPTH + 1):
        below: list[Path] = []
        for directory in level:
            try:
                with os.scandir(directory) as entries:
                    for entry in entries:
                        left -= 1
                        if left < 0:
                            return
                        if entry.is_dir(follow_symlinks=False):
                            below.append(Path(entry.path))
                        else:
                            yield Path(entry.path).relative_to(root).as_posix()
            except OSError as error:
                if directory == root:
                    raise StorageError(f"{root}: {error.strerror}") from error
        level = below

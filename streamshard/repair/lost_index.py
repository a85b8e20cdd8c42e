"""The index of a dataset that is repaired: the one that lies there, else the origin's, else one made anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from streamshard.errors import BlobNotFoundError, FormatError, StreamshardError
from streamshard.format.index import INDEX_BASENAME, index_text
from streamshard.read.catalog import load_index
from streamshard.read.keys import key_in
from streamshard.read.sample_check import SideFile
from streamshard.read.verify_shard import ShardTask

if TYPE_CHECKING:
    from streamshard.format.index import Index
    from streamshard.repair.rebuild import Rebuilt
    from streamshard.repair.report import RepairReport
    from streamshard.storage.store import Store

_MOST_ROW_PROBLEMS = 20


def found_index(
    here: Store,
    origin: Store | None,
    split: str | None,
    report: RepairReport,
    rebuild: Callable[[], Rebuilt],
) -> tuple[bytes | None, Index]:
    """Give the index, and its text if that is not what lies there; the report says where it came from.

    Args:
        here: the dataset.
        origin, split: where a copy of it is, and its sub-directory there.
        report: of the repair.
        rebuild: makes the index anew, where neither place has a sound one.

    Raises:
        StorageError: the dataset cannot be read. And what ``rebuild`` raises.
    """
    try:
        return None, load_index(here)[0]
    except (BlobNotFoundError, FormatError) as error:
        problem = error
    if origin is not None:
        try:
            index, _ = load_index(origin, split=split)
            text = origin.read(key_in(split, INDEX_BASENAME))
        except (StreamshardError, OSError) as error:
            report.notes.append(f"the origin has no sound index either: {error}")
        else:
            report.index = "fetched"
            report.notes.append(f"the index was taken from the origin: {problem}")
            return text, index
    rebuilt = rebuild()
    report.index = "rebuilt"
    report.notes.append(f"the index was made anew from the shards: {problem}")
    report.notes += rebuilt.notes
    return index_text(rebuilt.index.shards, rebuilt.index.extra), rebuilt.index


def task_of(store: Store, index: Index, shard: int, *, allow_unsafe_types: bool) -> ShardTask:
    """Describe the check of one shard of a dataset in ``store``."""
    return ShardTask(
        store,
        None,
        index.shards[shard],
        int(index.begins[shard]),
        True,
        allow_unsafe_types,
        SideFile.of(index, shard),
        _MOST_ROW_PROBLEMS,
    )

"""What lies where a dataset is to be written: refuse it, or replace an old dataset and nothing else."""

from __future__ import annotations

import logging
import re
from pathlib import Path

from streamshard.errors import BlobNotFoundError, FormatError
from streamshard.format.index import INDEX_BASENAME, parse_index, side_basenames
from streamshard.storage.store import Store, is_temporary
from streamshard.write.remote_claim import is_claim

logger = logging.getLogger(__name__)

_SHARD_FILE = re.compile(r"shard\.[0-9]{5,}\.mds(\.(br|bz2|gz|snappy|zstd|samples))?")


def refuse_or_clear(store: Store, *, exist_ok: bool) -> None:
    """Make sure that nothing of an older dataset remains at ``store``.

    With ``exist_ok`` the old index goes first, so that no reader meets an index whose shards are gone; then
    the shards that it names and what else is named like a shard. All other files stay.

    Raises:
        FileExistsError: something is there and ``exist_ok`` is False.
    """
    keys = [key for key in store.list() if not is_claim(key)]
    if not keys and not _leftovers(store):
        return
    if not exist_ok:
        raise FileExistsError(
            f"{store.url} is not empty (it holds {keys[0] if keys else _leftovers(store)[0].name!r}); "
            "choose another "
            "place, or pass exist_ok=True to replace the dataset in it (other files are kept)"
        )
    doomed = old_dataset(store, keys)
    for key in doomed:
        try:
            store.delete(key)
        except BlobNotFoundError:
            logger.debug("%s/%s is already gone", store.url, key)
    for path in _leftovers(store):
        path.unlink(missing_ok=True)
    if doomed:
        logger.info("%s: removed %d files of the dataset that was there", store.url, len(doomed))


def is_shard_file(basename: str) -> bool:
    """Whether a file is named like a shard or a side file of one: no other file is ever deleted with a dataset."""
    return _SHARD_FILE.fullmatch(basename) is not None


def old_dataset(store: Store, keys: list[str]) -> list[str]:
    """List the files of the dataset at ``store`` in the order in which to remove them: indexes first."""
    here = set(keys)
    named = {key for key in keys if is_shard_file(key)}
    indexes = []
    if INDEX_BASENAME in here:
        indexes.append(INDEX_BASENAME)
        named |= _files_named_by(store, INDEX_BASENAME) & here
    for key in keys:
        # A merged dataset: its parts' own indexes would be left without shards.
        if key.endswith("/" + INDEX_BASENAME):
            files = _files_named_by(store, key) & here
            if files and files <= named:
                indexes.append(key)
    return indexes + sorted(named)


def _files_named_by(store: Store, index_key: str) -> set[str]:
    try:
        index = parse_index(store.read(index_key), source=f"{store.url}/{index_key}")
    except FormatError as error:
        logger.warning("%s; only files named like shards are taken for its dataset", error)
        return set()
    folder = index_key[: -len(INDEX_BASENAME)]
    # An index may name any file, even one that is not of a dataset.
    names = {*index.table.basenames(), *side_basenames(index)}
    return {folder + name for name in names if is_shard_file(name.rpartition("/")[2])}


def _leftovers(store: Store) -> list[Path]:
    """Unfinished files of a writer that was killed; a store does not list them."""
    root = store.local_path("x")
    if root is None or not root.parent.is_dir():
        return []
    return sorted(path for path in root.parent.iterdir() if is_temporary(path.name))

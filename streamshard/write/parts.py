"""One dataset written by many processes on many machines: each writes parts, one commits them.

    begin()            in one process, first
    write(3, rows)     anywhere, any number of attempts at each part
    commit([...])      in one process, last: one index over the attempts that were chosen

An attempt writes into a folder of its own, so that a second one for the same part, after a node has died or beside
one that is slow, never meets the first. What no index names was never written.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from streamshard.errors import BlobNotFoundError, StorageError
from streamshard.format.index import INDEX_BASENAME, Index, parse_index
from streamshard.storage.opening import is_local, join_url, local_directory, open_store
from streamshard.storage.store import Store
from streamshard.write.destination import refuse_or_clear
from streamshard.write.merge import Part, merge_parts, publish_index
from streamshard.write.writer import MDSWriter

logger = logging.getLogger(__name__)

_LISTED = 3


@dataclass(frozen=True, slots=True)
class WrittenPart:
    """What one attempt has written: its folder below the root, the text of its index, its samples."""

    number: int
    folder: str
    index: bytes
    num_samples: int


@dataclass(frozen=True)
class PartedDataset:
    """Where a dataset of parts goes, and how; small and picklable, for all who write.

    Args:
        out: directory that all writers see, or URL.
        columns: column name → encoding.
        options: further arguments of :class:`~streamshard.write.writer.MDSWriter`, such as ``compression``.
        storage_options: passed to the file system of a URL.
        run: what the folders of this run have in their names.
    """

    out: str
    columns: Mapping[str, str]
    options: Mapping[str, Any] = field(default_factory=dict)
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    run: str = field(default_factory=lambda: uuid.uuid4().hex[:12])

    @classmethod
    def of(
        cls,
        out: str | os.PathLike[str],
        columns: Mapping[str, str],
        options: Mapping[str, Any],
        storage_options: Mapping[str, Any] | None,
    ) -> PartedDataset:
        """Check what a user asked for, in the process that asks.

        Raises:
            ValueError: an option that no writer has, an encoding that there is not, ``memory://``.
        """
        place = os.fspath(out)
        if place.startswith("memory://"):
            raise ValueError(f"out={place!r}: exists in one process alone, but the writers are many")
        if is_local(place):
            place = str(local_directory(place).absolute())
        return cls(place, dict(columns), dict(options), storage_options)

    def begin(self, *, exist_ok: bool) -> None:
        """Make sure that nothing of an older dataset is at ``out``.

        Raises:
            FileExistsError: something is there, and ``exist_ok`` is False.
        """
        store = self._store()
        refuse_or_clear(store, exist_ok=exist_ok)
        root = store.local_path("x")
        for folder in [] if root is None else root.parent.glob("part-*-*"):
            # Folders of an older dataset; a store of objects has none.
            with contextlib.suppress(OSError):
                folder.rmdir()

    def write(self, number: int, rows: Iterable[Mapping[str, Any]]) -> WrittenPart | None:
        """Make one attempt at a part; None where there are no rows.

        Raises:
            SampleError: a row that cannot be stored.
            StorageError: it cannot be written. Nothing of the attempt is left in both cases.
        """
        samples = iter(rows)
        first = next(samples, None)
        if first is None:
            return None
        folder = f"part-{number:06d}-{self.run}-{uuid.uuid4().hex[:8]}"
        place = join_url(self.out, folder)
        with MDSWriter(
            columns=self.columns, out=place, storage_options=self.storage_options, **self.options
        ) as writer:
            writer.write(first)
            for sample in samples:
                writer.write(sample)
        index = open_store(place, storage_options=self.storage_options).read(INDEX_BASENAME)
        return WrittenPart(number, folder, index, writer.num_samples)

    def commit(
        self, written: Sequence[WrittenPart], *, num_rows: int | None = None, publish: bool = True
    ) -> Index:
        """Publish one index over the parts, in the order of their numbers, and remove what other attempts left.

        What cannot be removed is told in the log: the dataset is complete without it.

        Args:
            written: one attempt at each part.
            num_rows: of the whole dataset, if that is known.
            publish: False leaves the parts as datasets of their own; the index is given, not written.

        Raises:
            ValueError: two attempts at the same part; samples that the indexes do not have.
            BlobNotFoundError: a shard that is not there, as where the writers did not see this directory.
            StorageError: another number of samples than ``num_rows``; or, without an index over all, what other
                attempts left cannot be removed and would be datasets, too.
        """
        ordered = sorted(written, key=lambda part: part.number)
        for before, part in pairwise(ordered):
            if before.number == part.number:
                raise ValueError(
                    f"{self.out}: part {part.number} was written twice, as {before.folder} and {part.folder}"
                )
        parts = []
        for part in ordered:
            index = parse_index(part.index, source=f"{self.out}/{part.folder}/{INDEX_BASENAME}")
            if index.num_samples != part.num_samples:
                raise ValueError(
                    f"{self.out}: {part.folder} holds {index.num_samples} samples, but {part.num_samples} were written"
                )
            parts.append(Part(part.folder, index))
        merged = merge_parts(parts)
        if num_rows is not None and merged.num_samples != num_rows:
            raise StorageError(
                f"{self.out}: {merged.num_samples} samples were written of {num_rows} rows; the dataset would not be"
                " complete"
            )
        store = self._store()
        keys = store.list()
        self._refuse_lost(set(keys), merged)
        kept = {part.folder for part in written}
        if not publish:
            self._remove(store, keys, kept)
            return merged
        publish_index(store, merged)
        try:
            self._remove(store, keys, kept)
        except StorageError as error:
            logger.warning("%s is complete; left beside it is what other attempts wrote: %s", self.out, error)
        return merged

    def abandon(self) -> None:
        """Remove what this run has left, its index first. What cannot be removed is told in the log."""
        try:
            store = self._store()
            keys = store.list()
            if INDEX_BASENAME in keys and self.run.encode() in store.read(INDEX_BASENAME):
                store.delete(INDEX_BASENAME)
            self._remove(store, keys, kept=set())
        except StorageError as error:  # on its way already is an error that says more
            logger.warning("%s: left there is what was written before the failure: %s", self.out, error)

    def _store(self) -> Store:
        return open_store(self.out, storage_options=self.storage_options)

    def _refuse_lost(self, here: set[str], merged: Index) -> None:
        lost = [name for name in merged.table.stored_basenames() if name not in here]
        if lost:
            hint = (
                "the processes that wrote them see another directory: give an out that all nodes share, or a URL"
                if is_local(self.out)
                else "something else deletes files there"
            )
            raise BlobNotFoundError(
                f"{self.out}: {len(lost)} shards were written, such as {', '.join(lost[:_LISTED])}, and are not there;"
                f" {hint}"
            )

    def _remove(self, store: Store, keys: Sequence[str], kept: set[str]) -> None:
        """Delete the folders of this run that are not kept, each one's index first."""
        strays: dict[str, list[str]] = {}
        for key in keys:
            folder, slash, _ = key.partition("/")
            if slash and folder.startswith("part-") and f"-{self.run}-" in folder and folder not in kept:
                strays.setdefault(folder, []).append(key)
        for folder, files in strays.items():
            for key in sorted(files, key=lambda key: (not key.endswith("/" + INDEX_BASENAME), key)):
                try:
                    store.delete(key)
                except BlobNotFoundError:
                    continue  # the attempt itself takes its files back
            path = store.local_path(folder)
            if path is not None:
                # Files of a killed attempt that were not complete are not listed.
                shutil.rmtree(path, ignore_errors=True)

"""repair_dataset: make a dataset whole again, from an origin or from what is left of it."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from streamshard.errors import BlobNotFoundError, FormatError
from streamshard.format.costs import COSTS_KEY, costs_entry
from streamshard.format.index import INDEX_BASENAME, Index, index_text
from streamshard.format.sample_hashes import SAMPLE_HASHES_KEY, sample_hashes_entry
from streamshard.read.keys import key_in
from streamshard.read.verify_shard import verify_shard
from streamshard.repair.lost_index import found_index, task_of
from streamshard.repair.mend import Kept, Mender, names_of
from streamshard.repair.rebuild import Rebuilt, rebuild_index
from streamshard.repair.remote import RemoteJob
from streamshard.repair.report import Repair, RepairReport
from streamshard.repair.transaction import Transaction, files_of
from streamshard.storage import is_local, open_store
from streamshard.storage.local_store import LocalStore
from streamshard.storage.opening import join_url, local_directory

if TYPE_CHECKING:
    from streamshard.storage.store import Store

_NUMBERED = re.compile(r"shard\.([0-9]{5,18})\.")


def repair_dataset(
    directory: str | os.PathLike[str],
    *,
    deep: bool = False,
    origin: str | os.PathLike[str] | Store | None = None,
    split: str | None = None,
    dry_run: bool = False,
    unproven: Literal["ask", "keep", "drop"] = "ask",
    allow_unsafe_types: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> RepairReport:
    """Find what is wrong with a dataset in a directory and mend it.

    An index that is missing or damaged is fetched from ``origin``, else made anew from the shards. Each shard is
    checked as ``verify_dataset`` does. One that is damaged or missing is fetched from ``origin``, if what lies
    there is what the index says; else it is cut to its good samples, and those that are lost are listed. Good are
    samples with the right hash, where the dataset has hashes of samples. Where it has none and the file is cut or
    has samples that do not decode, the others are kept and counted as unproven. Where nothing but the hash of
    the file is wrong, nobody can say which samples are damaged: ``unproven`` decides.

    The directory holds a whole dataset at every moment: new files are made beside the old ones, the new index
    replaces the old one by one rename, and only then the old files go. After a kill, the next repair cleans up.

    At a URL nothing is cut: bad files are put there again from ``origin``, checked here before; and an index that
    neither place has is made anew, for which each shard is fetched once. Writers are kept away meanwhile.

    Args:
        directory: where the dataset lies, a directory or a URL.
        deep: at a URL: read all shards; else sizes and headers alone are looked at.
        origin: directory, URL or store with a copy of the dataset.
        split: sub-directory of both to use.
        dry_run: change nothing; the report says what would be done. Nothing is fetched then: that the origin has
            files of the right sizes is taken for good.
        unproven: samples of a shard whose hash is wrong without a sign of where: ``"keep"`` them all, ``"drop"`` them
            all, or leave the shard as it is and say so (``"ask"``).
        allow_unsafe_types: decode ``pkl`` columns too, which can run code.
        storage_options: for each of the two that is a URL.
        progress: called with (shards checked, shards in all).

    Returns:
        What was found and done, ids of all lost samples included.

    Raises:
        BlobNotFoundError: there is neither an index nor a shard.
        FormatError: no index can be had or made.
        StorageError: the directory cannot be read or written, or another repair is at work.
        ValueError: arguments that make no sense.
    """
    if unproven not in ("ask", "keep", "drop"):
        raise ValueError(f"unproven={unproven!r}: expected 'ask', 'keep' or 'drop'")
    if not is_local(directory):
        if unproven != "ask":
            raise ValueError(
                f"unproven={unproven!r}: {os.fspath(directory)!r} is not a directory of this machine, and shards"
                " elsewhere are not cut; copy the dataset here, repair the copy, and upload it again"
            )
        url = join_url(directory, split or "")
        there = open_store(url, storage_options=storage_options)
        if isinstance(origin, (str, os.PathLike)):
            origin = open_store(origin, storage_options=storage_options)
        if origin is not None and f"{origin.url}/{split or ''}".rstrip("/") == there.url:
            raise ValueError(f"origin={origin.url!r} is the place to repair itself")
        report = RepairReport(there.url, dry_run)
        with tempfile.TemporaryDirectory(prefix="streamshard-repair-") as scratch:
            RemoteJob(there, origin, split, report, deep, dry_run, allow_unsafe_types, Path(scratch)).run(
                progress
            )
        return report
    root = local_directory(directory).absolute() / (split or "")
    if not root.is_dir():
        raise BlobNotFoundError(f"{root} is not a directory; check the path")
    store = (
        open_store(origin, storage_options=storage_options)
        if isinstance(origin, (str, os.PathLike))
        else origin
    )
    if store is not None and store.local_path(key_in(split, "x")) == root / "x":
        raise ValueError(f"origin={os.fspath(root)!r} is the directory to repair itself")
    report = RepairReport(str(root), dry_run)
    with tempfile.TemporaryDirectory(prefix="streamshard-repair-") as scratch:
        job = _Job(root, store, split, report, unproven, allow_unsafe_types, Path(scratch))
        if dry_run:
            job.run(None, progress)
        else:
            with Transaction(root) as transaction:
                job.run(transaction, progress)
    return report


@dataclass(slots=True)
class _Job:
    root: Path
    origin: Store | None
    split: str | None
    report: RepairReport
    unproven: str
    allow_unsafe_types: bool
    scratch: Path

    def run(self, transaction: Transaction | None, progress: Callable[[int, int], None] | None) -> None:
        report, here = self.report, LocalStore(self.root)
        text, index = found_index(here, self.origin, self.split, report, self._rebuilt)
        report.num_shards, report.num_samples = index.num_shards, index.num_samples
        kept: list[Kept] = []
        mender = Mender(
            self.root,
            self.origin,
            self.split,
            transaction,
            self.unproven,
            self.allow_unsafe_types,
            self._first_free_number(index),
            self.scratch,
            repairs=report.repairs,
        )
        for shard in range(index.num_shards):
            task = task_of(here, index, shard, allow_unsafe_types=self.allow_unsafe_types)
            problems = verify_shard(task).problems
            outcome: Kept | None = Kept(task.info, None if task.side is None else task.side.digest)
            if problems:
                outcome = mender.mend(task, problems)
            if outcome is not None:
                outcome.shard = shard
                kept.append(outcome)
            if progress is not None:
                progress(shard + 1, index.num_shards)
        if len(kept) != index.num_shards or any(each.is_rewritten for each in kept):
            text = self._index_without(index, kept)
        if transaction is not None and text is not None:
            before = files_of(index)
            after = {name for each in kept for name in names_of(each.info, each.side_digest)}
            transaction.publish(
                text, new=mender.new, old=sorted({*mender.old} & (before - after - {INDEX_BASENAME}))
            )

    def _rebuilt(self) -> Rebuilt:
        rebuilt = rebuild_index(self.root, lambda: self.scratch / "rebuilding")
        self.report.repairs += [
            Repair(
                name,
                "dropped",
                f"{name!r}: nothing can be said of it, so that its samples are lost: {reason}",
            )
            for name, reason in rebuilt.lost.items()
        ]
        return rebuilt

    def _first_free_number(self, index: Index) -> int:
        """Give a number above those of all shards here, so that their order stays what their names say."""
        names = [*index.table.basenames(), *(path.name for path in self.root.iterdir())]
        numbers = [int(match[1]) for name in names if (match := _NUMBERED.match(name))]
        return max([index.num_shards - 1, *numbers]) + 1

    def _index_without(self, index: Index, kept: list[Kept]) -> bytes:
        """Write the index of what is left."""
        if not kept:
            raise FormatError(
                f"{self.root}: no sample of the dataset is left; nothing was changed. Name an origin, or write it again"
            )
        extra = dict(index.facts)
        cut = any(each.is_cut for each in kept)
        loses = cut or len(kept) != index.num_shards
        for name in ("convert", "images"):
            if loses and extra.pop(name, None) is not None:
                self.report.notes.append(
                    f"{name!r} is left out of the index: it counted samples that are lost"
                )
        if index.costs and not cut:
            sums = {name: [int(costs[each.shard]) for each in kept] for name, costs in index.costs.items()}
            extra[COSTS_KEY] = costs_entry(sums)
        elif index.costs:
            self.report.notes.append(
                f"costs {', '.join(map(repr, index.costs))} are left out of the index: what the samples kept cost is "
                "not known"
            )
        if index.sample_hashes is not None:
            digests = [str(each.side_digest) for each in kept]
            extra[SAMPLE_HASHES_KEY] = sample_hashes_entry(index.sample_hashes.algorithm, digests)
        return index_text([each.info for each in kept], extra)

"""Mending one shard: fetch it again, or keep what is good of it in a new file."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from streamshard.errors import BlobNotFoundError, FormatError, StreamshardError, WrongSizeError
from streamshard.format.sample_hashes import side_basename
from streamshard.read.keys import key_in
from streamshard.read.sample_check import reading_from
from streamshard.read.verify_shard import safe_decoder, verify_shard
from streamshard.repair.report import Repair, gaps
from streamshard.repair.salvage import DamagedShard, Salvage, is_whole, raw_file_of
from streamshard.storage.local_store import LocalStore
from streamshard.write.encode import shard_basename, write_shard, write_side_file

if TYPE_CHECKING:
    from streamshard.format.index import FileInfo, ShardInfo
    from streamshard.read.report import Problem
    from streamshard.read.sample_check import SampleCheck, SideFile
    from streamshard.read.verify_shard import ShardTask
    from streamshard.repair.transaction import Transaction
    from streamshard.storage.store import Store


LACKS = (BlobNotFoundError, FormatError, WrongSizeError)
"""What a fetch raises where the origin has no good copy. Everything else says nothing about that."""


@dataclass(slots=True)
class Kept:
    """A shard of the dataset afterwards.

    ``shard``: its number before. ``is_rewritten``: it is another file than before; ``is_cut``: with fewer samples.
    """

    info: ShardInfo
    side_digest: str | None
    shard: int = -1
    is_rewritten: bool = False
    is_cut: bool = False


@dataclass(slots=True)
class Mender:
    """Mends the shards of one dataset.

    Attributes:
        root: the directory.
        origin, split: where a copy of the dataset is, and its sub-directory there.
        transaction: what takes new files; None: nothing is changed.
        unproven: what becomes of samples of which nothing says whether they are good.
        next_number: of the next new shard.
        scratch: directory for temporary files.
        new: files made in the transaction's staging directory.
        old: files that the dataset no longer needs.
        repairs: what was done.
    """

    root: Path
    origin: Store | None
    split: str | None
    transaction: Transaction | None
    unproven: str
    allow_unsafe_types: bool
    next_number: int
    scratch: Path
    new: list[str] = field(default_factory=list)
    old: list[str] = field(default_factory=list)
    repairs: list[Repair] = field(default_factory=list)

    def mend(self, task: ShardTask, problems: list[Problem]) -> Kept | None:
        """Deal with a shard that has problems; return what is left of it."""
        info, side = task.info, task.side
        whole = Kept(info, None if side is None else side.digest)
        found = tuple(problems)
        bad = {problem.shard for problem in problems}
        if info.compressed is not None and bad == {info.raw.basename}:
            if not self._raw_is_all_that_is_wrong(task):
                bad.add(info.compressed.basename)
            else:
                if self.transaction is not None:
                    (self.root / info.raw.basename).unlink(missing_ok=True)
                message = f"{info.raw.basename!r} was a bad copy beside the good {info.compressed.basename!r}"
                self._note(Repair(info.raw.basename, "removed", message, found))
                return whole
        wanted = [info.stored]
        if side is not None:
            if bad == {side.name}:
                return self._mend_side(task, side.file, found)
            if side.name in bad:
                wanted.append(side.file)
        try:
            why_not = self._fetch(task, wanted)
        except (StreamshardError, OSError) as error:
            # There may be a good copy, which cannot be had for now, or for which there is no room: nothing is cut.
            name = info.stored.basename
            message = f"{name!r} was left as it is: it could not be fetched from the origin: {error}"
            self._note(Repair(name, "undecided", message, found))
            return whole
        if why_not is None:
            if info.compressed is not None and self.transaction is not None and info.raw.basename in bad:
                (self.root / info.raw.basename).unlink(missing_ok=True)
            names = " and ".join(repr(file.basename) for file in wanted)
            self._note(Repair(info.stored.basename, "fetched", f"{names} fetched from the origin", found))
            return whole
        return self._cut(task, found, why_not)

    def _raw_is_all_that_is_wrong(self, task: ShardTask) -> bool:
        """Whether a compressed shard is good if the raw file beside it is left out of account."""
        raw = self.root / task.info.raw.basename
        if not raw.exists() or task.info.compressed is None:
            return False
        elsewhere = self.scratch / "alone"
        elsewhere.mkdir(exist_ok=True)
        names = [task.info.compressed.basename, *([] if task.side is None else [task.side.name])]
        for name in names:
            link = elsewhere / name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(self.root / name)
        return not verify_shard(replace(task, store=LocalStore(elsewhere), most_rows=1)).problems

    def _mend_side(self, task: ShardTask, file: FileInfo, found: tuple[Problem, ...]) -> Kept:
        """Deal with a shard that is good and whose hashes of samples are not."""
        try:
            is_fetched = self._fetch(task, [file]) is None
        except (StreamshardError, OSError):
            is_fetched = False  # nor is it needed: the shard is there
        if is_fetched:
            self._note(Repair(file.basename, "fetched", f"{file.basename!r} fetched from the origin", found))
            return Kept(task.info, next(iter(file.hashes.values())))
        algorithm, digest = next(iter(file.hashes.items()))
        info = task.info
        path = raw_file_of(info, self.root, lambda: self.scratch / "inflated")
        with DamagedShard(path, info) as shard:
            samples = [shard.sample(row) for row in range(info.num_samples)]
        staging = self.scratch if self.transaction is None else self.transaction.staging
        made = write_side_file(staging, info.raw.basename, samples, algorithm)
        if made != digest:
            message = f"{file.basename!r} is damaged, and the index means other samples than there are"
            self._note(Repair(file.basename, "undecided", message, found))
        else:
            if self.transaction is not None:
                self.transaction.replace_file(file.basename)
            message = f"{file.basename!r} made anew from {info.stored.basename!r}, which is whole"
            self._note(Repair(file.basename, "side file made", message, found))
        return Kept(info, digest)

    def _fetch(self, task: ShardTask, files: list[FileInfo]) -> str | None:
        """Fetch files of a shard from the origin and put them in place if all is good; else say what is not.

        Raises:
            StreamshardError, OSError: what the origin has cannot be had for now, or not be kept here.
        """
        origin = self.origin
        if origin is None:
            return "no origin was given"
        try:
            for file in files:
                if origin.size(key_in(self.split, file.basename)) != file.nbytes:
                    return f"{file.basename!r} at the origin has another size too"
            if self.transaction is None:
                return None
            needed = [task.info.stored, *([] if task.side is None else [task.side.file])]
            for file in needed:
                target = self.transaction.staging / file.basename
                target.parent.mkdir(parents=True, exist_ok=True)
                if file in files:
                    origin.fetch_to(key_in(self.split, file.basename), target, nbytes=file.nbytes)
                else:
                    target.symlink_to(self.root / file.basename)
        except LACKS as error:
            return f"the origin does not have it: {error}"
        staged = LocalStore(self.transaction.staging)
        problems = verify_shard(replace(task, store=staged, most_rows=1)).problems
        for file in needed:
            if problems or file not in files:
                (self.transaction.staging / file.basename).unlink(missing_ok=True)
            else:
                self.transaction.replace_file(file.basename)
        return f"that of the origin is bad too: {problems[0].message}" if problems else None

    def _cut(self, task: ShardTask, found: tuple[Problem, ...], why_not: str) -> Kept | None:
        """Keep the good samples of a shard, under a new name."""
        info, first = task.info, task.first_sample_id
        name = info.stored.basename
        before = names_of(info, None if task.side is None else task.side.digest)
        check = self._side_check(task)
        is_proven = check is not None
        try:
            path = raw_file_of(info, self.root, lambda: self.scratch / "inflated")
            with DamagedShard(path, info) as shard:
                salvage = shard.salvage(safe_decoder(info.schema, self.allow_unsafe_types)[0], check)
                if is_whole(path, info):
                    # What was damaged is how it was stored.
                    salvage = Salvage(tuple(range(info.num_samples)), is_proven=True, is_explained=True)
                is_proven = salvage.is_proven
                keep = salvage.is_proven or salvage.is_explained or self.unproven == "keep"
                if not keep and self.unproven == "ask":
                    message = (
                        f"{name!r} is not what was written, but all its {info.num_samples:,} samples decode, and "
                        f"nothing says which of them are damaged ({why_not}): name an origin, or decide to keep or to "
                        "drop them all (unproven=, --unproven)"
                    )
                    self._note(Repair(name, "undecided", message, found))
                    return Kept(info, None if task.side is None else task.side.digest)
                rows = salvage.rows if keep else ()
                samples = [shard.sample(row) for row in rows]
        except (BlobNotFoundError, FormatError) as error:
            rows, samples, why_not = (), [], f"{why_not}; {error}"
        except (StreamshardError, OSError) as error:
            # Not readable for now, or not on this machine: no reason to lose anything.
            self._note(Repair(name, "undecided", f"{name!r} was left as it is: {error} ({why_not})", found))
            return Kept(info, None if task.side is None else task.side.digest)
        lost = gaps(rows, info.num_samples, first)
        self.old += before
        if not rows:
            message = f"{name!r}: none of its {info.num_samples:,} samples is left ({why_not})"
            self._note(Repair(name, "dropped", message, found, lost))
            return None
        kept = self._written(info, samples, task.side)
        if not lost:
            where = repr(kept.info.stored.basename)
            self._note(
                Repair(
                    name,
                    "rewritten",
                    f"{name!r}: all its samples are good, now in {where} ({why_not})",
                    found,
                )
            )
            return kept
        kept.is_cut = True
        message = (
            f"{name!r} cut to {len(rows):,} of {info.num_samples:,} samples, now in {kept.info.stored.basename!r} "
            f"({why_not})"
        )
        if not is_proven:
            message += "; that they decode is all that speaks for them"
        self._note(Repair(name, "cut", message, found, lost, 0 if is_proven else len(rows)))
        return kept

    def _side_check(self, task: ShardTask) -> SampleCheck | None:
        if task.side is None:
            return None
        try:
            return task.side.load(reading_from(task.store))
        except (StreamshardError, OSError):
            return None

    def _written(self, info: ShardInfo, samples: list[bytes], side: SideFile | None) -> Kept:
        staging = self.scratch if self.transaction is None else self.transaction.staging
        basename = shard_basename(self.next_number)
        self.next_number += 1
        made = write_shard(
            staging,
            basename,
            info.schema,
            samples,
            compression=info.compression if info.compressed is not None else None,
            hashes=info.hashes,
            size_limit=info.size_limit,
        )
        digest = None if side is None else write_side_file(staging, basename, samples, side.algorithm)
        self.new += names_of(made, digest, stored_only=True)
        return Kept(made, digest, is_rewritten=True)

    def _note(self, repair: Repair) -> None:
        self.repairs.append(repair)


def names_of(info: ShardInfo, side_digest: str | None, *, stored_only: bool = False) -> list[str]:
    names = [info.stored.basename] if stored_only else [info.raw.basename]
    if info.compressed is not None and not stored_only:
        names.append(info.compressed.basename)
    return names if side_digest is None else [*names, side_basename(info.raw.basename)]

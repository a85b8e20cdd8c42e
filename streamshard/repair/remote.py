"""Repairing a dataset at a URL: files that are bad are put there again; nothing is cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from streamshard.errors import FormatError, StreamshardError
from streamshard.format.index import INDEX_BASENAME
from streamshard.read.keys import key_in
from streamshard.read.verify_header import verify_header
from streamshard.read.verify_shard import verify_shard
from streamshard.repair.lost_index import found_index, task_of
from streamshard.repair.mend import LACKS
from streamshard.repair.rebuild import Rebuilt, rebuild_index
from streamshard.repair.report import Repair, RepairReport
from streamshard.storage.local_store import LocalStore
from streamshard.write.remote_claim import RemoteClaim

if TYPE_CHECKING:
    from streamshard.format.index import FileInfo
    from streamshard.read.report import Problem
    from streamshard.read.verify_shard import ShardTask
    from streamshard.storage.store import Store


@dataclass(slots=True)
class RemoteJob:
    """One repair at a URL.

    Files are fetched into ``scratch``, checked there as ``verify --deep`` does, and uploaded one shard at a time under
    the names that the index has; an index that was lost comes last.

    Attributes:
        store: the place.
        origin, split: where a copy of the dataset is, and its sub-directory there.
        deep: read all shards; else only sizes and headers are looked at.
        dry_run: change nothing; that the origin has files of the right sizes is taken for good.
    """

    store: Store
    origin: Store | None
    split: str | None
    report: RepairReport
    deep: bool
    dry_run: bool
    allow_unsafe_types: bool
    scratch: Path

    def run(self, progress: Callable[[int, int], None] | None) -> None:
        """Find what is wrong and put it right.

        Raises:
            BlobNotFoundError, FormatError: no index can be had or made.
            DirectoryInUseError: somebody writes there.
            StorageError: the place cannot be read or written.
        """
        if self.dry_run:
            self._run(progress)
            return
        claim = RemoteClaim(self.store)
        try:
            self._run(progress)
        finally:
            claim.release()

    def _run(self, progress: Callable[[int, int], None] | None) -> None:
        report = self.report
        text, index = found_index(self.store, self.origin, self.split, report, self._rebuilt)
        report.num_shards, report.num_samples = index.num_shards, index.num_samples
        # What was made anew was read as a whole, and has no other measure than itself.
        for shard in range(index.num_shards if report.index != "rebuilt" else 0):
            task = task_of(self.store, index, shard, allow_unsafe_types=self.allow_unsafe_types)
            problems = (verify_shard if self.deep else verify_header)(task).problems
            if problems:
                self._mend(replace(task, store=LocalStore(self.scratch)), tuple(problems))
            if progress is not None:
                progress(shard + 1, index.num_shards)
        if not self.deep and report.index != "rebuilt":
            report.notes.append("only sizes and headers were looked at; --deep (deep=True) reads all shards")
        if text is not None and not self.dry_run:
            self.store.put_bytes(INDEX_BASENAME, text)

    def _rebuilt(self) -> Rebuilt:
        folder = self.scratch / "rebuilding"
        folder.mkdir()
        names = [key for key in self.store.list() if "/" not in key]
        rebuilt = rebuild_index(
            folder,
            lambda: self.scratch / "inflated",
            place=self.store.url,
            names=names,
            bring=self._bring(folder),
        )
        if rebuilt.lost:
            name, reason = next(iter(rebuilt.lost.items()))
            raise FormatError(
                f"{self.store.url}: {len(rebuilt.lost)} shards say nothing of themselves any more, such as {name!r}"
                f" ({reason}), and no index says what they were; nothing was changed. Copy the dataset to a directory"
                " and repair that, which leaves them out"
            )
        return rebuilt

    def _bring(self, folder: Path) -> Callable[[list[str]], AbstractContextManager[None]]:
        @contextmanager
        def bring(names: list[str]) -> Iterator[None]:
            try:
                for name in names:
                    if self.store.exists(name):
                        self.store.fetch_to(name, folder / name)
                yield
            finally:
                for name in names:
                    (folder / name).unlink(missing_ok=True)

        return bring

    def _mend(self, task: ShardTask, found: tuple[Problem, ...]) -> None:
        """Put the bad files of a shard there again, from the origin."""
        info, side = task.info, task.side
        bad = {problem.shard for problem in found}
        files, wanted = [info.stored], [info.stored]
        if side is not None:
            files.append(side.file)
            if side.name in bad:
                wanted = files if len(bad) > 1 else files[1:]
        why_not = self._fetch(task, files, wanted)
        name = info.stored.basename
        if why_not is None:
            names = " and ".join(repr(file.basename) for file in wanted)
            self.report.repairs.append(Repair(name, "fetched", f"{names} fetched from the origin", found))
            return
        message = (
            f"{name!r} was left as it is, because {why_not}; shards at a URL are not cut: copy the dataset to a"
            " directory, repair that, and upload it again"
        )
        self.report.repairs.append(Repair(name, "undecided", message, found))

    def _fetch(self, task: ShardTask, files: list[FileInfo], wanted: list[FileInfo]) -> str | None:
        """Fetch a shard from the origin and upload what is wanted if all is good; else say what is not."""
        origin = self.origin
        if origin is None:
            return "no origin was given"
        here: list[Path] = []
        try:
            try:
                for file in files:
                    if origin.size(key_in(self.split, file.basename)) != file.nbytes:
                        return f"{file.basename!r} at the origin has another size too"
                if self.dry_run:
                    return None
                for file in files:
                    target = self.scratch / file.basename
                    target.parent.mkdir(parents=True, exist_ok=True)
                    here.append(target)
                    origin.fetch_to(key_in(self.split, file.basename), target, nbytes=file.nbytes)
            except LACKS as error:
                return f"the origin does not have it: {error}"
            except (StreamshardError, OSError) as error:
                return f"it could not be fetched from the origin: {error}"
            problems = verify_shard(task).problems
            if problems:
                return f"that of the origin is bad too: {problems[0].message}"
            for file in wanted:
                self.store.put(file.basename, self.scratch / file.basename)
        finally:
            for path in here:
                path.unlink(missing_ok=True)
        return None

"""One conversion from beginning to end: scan, plan, write, publish; restartable after any kill."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from streamshard import __version__
from streamshard.convert.destination import Destination, open_destination
from streamshard.convert.finished import input_digests
from streamshard.convert.journal import Done, Journal, work_directory
from streamshard.convert.jsonl import chunk_nbytes
from streamshard.convert.options import ConvertOptions
from streamshard.convert.origins import Origin, find_origins
from streamshard.convert.places import local_path, open_place
from streamshard.convert.plan import Plan, make_plan
from streamshard.convert.problems import REJECTED_BASENAME
from streamshard.convert.processes import Workers
from streamshard.convert.progress import Progress, SilentProgress
from streamshard.convert.scan import ScanTask
from streamshard.convert.shaping import Shaping, settled_shaping
from streamshard.convert.shards import WriteTask
from streamshard.convert.sources import Source
from streamshard.convert.splits import parts
from streamshard.convert.staging import StageTask, in_place, stage_tasks
from streamshard.convert.summary import Summary
from streamshard.convert.tally import SavedChunk
from streamshard.errors import ConvertError, FormatError
from streamshard.format.costs import COSTS_KEY, costs_entry
from streamshard.format.index import (
    INDEX_BASENAME,
    Index,
    ShardInfo,
    index_text,
    parse_index,
    side_basenames,
)
from streamshard.format.sample_hashes import (
    SAMPLE_HASHES_KEY,
    digest_nbytes,
    sample_hashes_entry,
    side_basename,
)
from streamshard.format.shard import config_text, packed_size
from streamshard.read.tables import MAX_INDEX_NBYTES
from streamshard.storage.opening import is_local, join_url
from streamshard.write.publish import publish_file

_SHARD_FILE = re.compile(r"shard\.\d{5,}\.mds(\.\w+)?")


def convert(options: ConvertOptions, progress: Progress | None = None) -> Summary:
    """Turn JSONL and images into a dataset.

    Nothing that looks like a dataset appears before all of it is there: ``index.json`` comes last. After a kill, the
    same call does only what is missing, with the same bytes as an undisturbed run.

    Raises:
        ConvertError: input that cannot be converted, naming file and line; an output that is there already.
        StorageError: a place that cannot be read or written.
    """
    if options.image_root is not None and is_local(options.image_root):
        options = replace(options, image_root=str(local_path(options.image_root)))
    return _Job(options, progress or SilentProgress()).run()


def dry_run(options: ConvertOptions, progress: Progress | None = None) -> Summary:
    """Do all of a conversion but the writing: what would be made, and every problem; nothing is left behind.

    Copies of inputs that have to be fetched or unpacked lie in a temporary folder (``TMPDIR``) meanwhile.

    Raises:
        ConvertError: input of which nothing can be converted.
        StorageError: a place that cannot be read.
    """
    options = replace(options, on_error="skip", max_errors=None)
    with tempfile.TemporaryDirectory(prefix="streamshard-dry-run-") as folder:
        return _Job(options, progress or SilentProgress(), Path(folder)).dry_run()


def convert_splits(
    options: ConvertOptions, splits: Sequence[tuple[str, float]], progress: Progress | None = None
) -> dict[str, Summary]:
    """Divide the records into datasets ``out/NAME``, each by a share of all records; the inputs are scanned once.

    Which record goes where depends on the seed (``shuffle``, else 0) and the number of records alone. After a kill, the
    same call goes on where it stopped.

    Raises:
        ConvertError, StorageError: as :func:`convert`; a split that would get no record.
    """
    if options.image_root is not None and is_local(options.image_root):
        options = replace(options, image_root=str(local_path(options.image_root)))
    shown = progress or SilentProgress()
    with _Job(options, shown).scanned_once() as scanned:
        made = {}
        for name, part in parts(splits, options.shuffle or 0):
            mine = replace(options, out=join_url(options.out, name), part=part)
            made[name] = _Job(mine, shown, scanned=scanned).run()
        return made


_Scanned = tuple[list[Source], Shaping, list[list[Path]]]


class _Job:
    def __init__(
        self,
        options: ConvertOptions,
        progress: Progress,
        directory: Path | None = None,
        scanned: Callable[[], _Scanned] | None = None,
    ) -> None:
        self._options = options
        self._progress = progress
        self._began = time.monotonic()
        self._destination: Destination = open_destination(options.out, options.storage_options)
        self._journal = Journal(directory or work_directory(options.out, options.work_dir))
        self._origins: list[Origin] = []
        self._scanned = scanned

    def dry_run(self) -> Summary:
        self._look_up()
        with Workers(self._num_workers()) as workers:
            plan = self._planned(workers)
        schema = plan.schema()
        options = self._options
        config = config_text(
            schema, compression=options.compression, hashes=options.hashes, size_limit=options.size_limit
        )
        heads = sum(packed_size(n, 0, config) for n in np.diff(plan.begins).tolist())
        return Summary(
            out=self._destination.name,
            samples=plan.num_samples,
            shards=plan.num_shards,
            nbytes=plan.payload_nbytes + heads,
            raw_nbytes=plan.payload_nbytes + heads,
            seconds=time.monotonic() - self._began,
            columns=dict(zip(schema.names, schema.encodings, strict=True)),
            images=plan.extra["images"],
            skipped=plan.skipped,
            skips=plan.skips,
            warnings=plan.warnings,
            dry_run=True,
        )

    def _look_up(self) -> None:
        options = self._options
        self._origins = find_origins(
            options.sources, options.storage_options, options.kind, options.recipe_options
        )
        if options.image_root is not None:
            open_place(
                options.image_root,
                allow_outside_root=options.allow_outside_root,
                storage_options=options.storage_options,
            )

    def run(self) -> Summary:
        self._look_up()
        finished = self._finished_before()
        if finished is not None:
            self._clear_leftovers()
            return finished
        self._refuse_strange_shards()
        self._destination.prepare()
        with self._journal.locked(self._destination.name):
            # Another run may have finished between the first look and the lock.
            finished = self._finished_before()
            if finished is not None:
                self._remove_leftovers()
                return finished
            with Workers(self._num_workers()) as workers:
                plan = self._plan(workers)
                done, resumed = self._write(plan, workers)
            infos, extra = [each.info for each in done], self._extra(plan, done)
            self._publish(infos, extra)
        return self._summary_of(infos, extra, plan=plan, resumed=resumed)

    def _num_workers(self) -> int:
        places = [*self._options.sources, self._options.out, self._options.image_root or ""]
        # Such a place exists in this process alone.
        if any(place.startswith("memory://") for place in places):
            return 1
        return self._options.num_workers

    def _finished_before(self) -> Summary | None:
        if self._options.overwrite:
            return None
        text = self._destination.read(INDEX_BASENAME, limit=MAX_INDEX_NBYTES)
        if text is None:
            return None
        where = self._destination.name
        try:
            index = parse_index(text, source=f"{where}/{INDEX_BASENAME}")
        except FormatError as error:
            raise ConvertError(
                f"{where}: holds an {INDEX_BASENAME} already, and not a sound one ({error}); {_WAYS_OUT}"
            ) from error
        made = index.extra.get("convert")
        facts = made if isinstance(made, dict) else {}
        if facts.get("options") != self._options.portable_digest() or not self._options.resume:
            raise ConvertError(
                f"{where}: holds a finished dataset ({_counts(index)}), not made by this job; {_WAYS_OUT}"
            )
        records = facts.get("records")
        digests = input_digests(
            self._origins,
            self._options,
            records if isinstance(records, int) else 0,
            self._progress,
            decode=bool(facts.get("skipped")),
        )
        if facts.get("digests") != digests:
            raise ConvertError(
                f"{where}: holds a finished dataset ({_counts(index)}) of other records or images; {_WAYS_OUT}"
            )
        for shard in index.shards:
            size = self._destination.size(shard.stored.basename)
            if size != shard.stored.nbytes:
                found = (
                    "is not there" if size is None else f"has {size} bytes instead of {shard.stored.nbytes}"
                )
                raise ConvertError(
                    f"{where}: holds a dataset whose {shard.stored.basename} {found}; {_WAYS_OUT}"
                )
        self._check_side_files(index)
        return self._summary_of(index.shards, index.extra, finished_before=True)

    def _check_side_files(self, index: Index) -> None:
        hashes = index.sample_hashes
        if hashes is None:
            return
        for shard in index.shards:
            side = side_basename(shard.raw.basename)
            size, expected = self._destination.size(side), shard.num_samples * digest_nbytes(hashes.algorithm)
            if size != expected:
                raise ConvertError(
                    f"{self._destination.name}: holds a dataset whose {side}, the hashes of its samples, has"
                    f" {size or 0} bytes instead of {expected}; {_WAYS_OUT}"
                )

    def _clear_leftovers(self) -> None:
        """Finish the cleaning of a run that was killed in it."""
        if self._journal.directory.is_dir():
            with self._journal.locked(self._destination.name):
                self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        """Delete the shards that the finished dataset has replaced, then the work directory.

        An old index may name any file, even the input of this job: only what is named like a shard is deleted.
        """
        text = self._destination.read(INDEX_BASENAME, limit=MAX_INDEX_NBYTES)
        if text is not None:
            index = parse_index(text, source=self._destination.name)
            kept = {*index.table.stored_basenames(), *side_basenames(index)}
            for name in self._journal.replaced():
                if name not in kept and _SHARD_FILE.fullmatch(name):
                    self._destination.delete(name)
        self._journal.remove()

    def _refuse_strange_shards(self) -> None:
        if self._options.overwrite or (self._journal.directory / "job.json").exists():
            return
        strange = self._shard_files()
        if strange:
            raise ConvertError(
                f"{self._destination.name}: holds {len(strange)} shard files without {INDEX_BASENAME} (such as"
                f" {strange[0]}), which this job has not written; {_WAYS_OUT}"
            )

    def _shard_files(self) -> list[str]:
        return [name for name in self._destination.names() if _SHARD_FILE.fullmatch(name)]

    def _plan(self, workers: Workers) -> Plan:
        options, journal = self._options, self._journal
        if not options.resume:
            journal.forget(scan=True)
        for difference in journal.accept(self._facts()):
            self._progress.note(f"work of an interrupted run is planned anew: {difference}")
        self._remove_old_index()
        if (journal.directory / "plan.json").exists():
            plan = Plan.load(journal.directory)
            limit = options.error_limit(plan.extra["convert"]["records"])
            # Else planned anew, which says what is too much, or makes the copies of the inputs again.
            if (limit is None or plan.skipped.total() <= limit) and plan.has_sources():
                return plan
        # Nothing of the new plan is written yet: shards that are there are of an older dataset, or of an older plan and
        # not recorded, since the run was killed in between.
        journal.replace_later(self._shard_files())
        return self._planned(workers)

    @contextlib.contextmanager
    def scanned_once(self) -> Iterator[Callable[[], _Scanned]]:
        """Give what stages and scans the inputs when it is first called; what it made goes at the end."""
        found: list[_Scanned] = []
        self._look_up()
        self._destination.prepare()
        with self._journal.locked(self._destination.name):
            if not self._options.resume:
                self._journal.forget(scan=True)
            self._journal.accept(self._facts())

            def scanned() -> _Scanned:
                if not found:
                    with Workers(self._num_workers()) as workers:
                        found.append(self._scan_all(workers))
                return found[0]

            yield scanned
            self._journal.remove()

    def _facts(self) -> dict[str, Any]:
        return {
            "version": f"{__version__} 1",
            "scan": {
                "sources": [origin.fingerprint() for origin in self._origins],
                **self._options.scan_key(),
            },
            "write": self._options.write_key(),
        }

    def _scan_all(self, workers: Workers) -> _Scanned:
        sources = self._stage_all(workers)
        shaping = settled_shaping(sources, self._options)
        return sources, shaping, self._scan(sources, shaping, workers)

    def _planned(self, workers: Workers) -> Plan:
        sources, shaping, chunks = self._scan_all(workers) if self._scanned is None else self._scanned()
        return make_plan(self._journal.directory, sources, chunks, self._options, shaping.declared)

    def _remove_old_index(self) -> None:
        text = self._destination.read(INDEX_BASENAME, limit=MAX_INDEX_NBYTES)
        if text is None:
            return
        try:
            old = parse_index(text, source=self._destination.name)
            names = [*old.table.stored_basenames(), *side_basenames(old)]
        except FormatError as error:
            self._progress.note(
                f"the old {INDEX_BASENAME} is not sound ({error}); of its files, those named like shards are deleted"
            )
            names = []
        # Shards in folders belong to datasets of their own, which a merged index only points at.
        self._journal.replace_later(name for name in names if "/" not in name)
        self._destination.delete(INDEX_BASENAME)

    def _stage_all(self, workers: Workers) -> list[Source]:
        folder = self._journal.directory / "sources"
        folder.mkdir(exist_ok=True)
        plain: dict[int, Source] = {}
        tasks: list[StageTask] = []
        for number, origin in enumerate(self._origins):
            source = in_place(origin)
            if source is not None:
                plain[number] = source
            else:
                tasks += stage_tasks(origin, folder, number, self._options.storage_options)
        left = [task for task in tasks if not task.listed.exists()]
        nbytes = {task.number: self._origins[task.number].nbytes for task in left}
        self._progress.begin("reading sources", sum(nbytes.values()), None)
        workers.run("stage", left, self._progress.advance, lambda _: None)
        self._progress.end()
        made = {number: [plain[number]] if number in plain else [] for number in range(len(self._origins))}
        for task in tasks:
            made[task.number] += task.sources()
        return [source for number in sorted(made) for source in made[number]]

    def _scan(self, sources: Sequence[Source], shaping: Shaping, workers: Workers) -> list[list[Path]]:
        folder = self._journal.directory / "scan"
        folder.mkdir(exist_ok=True)
        size = chunk_nbytes(sum(source.nbytes for source in sources), check=self._options.check)
        paths: list[list[Path]] = []
        tasks: list[ScanTask] = []
        for number, source in enumerate(sources):
            mine = []
            for part, begin in enumerate(range(0, source.nbytes, size)):
                path = folder / f"{number:05d}-{part:06d}-{size}.tally"
                mine.append(path)
                if not _is_good(path):
                    end = min(begin + size, source.nbytes)
                    tasks.append(self._scan_task(source, begin, end, path, shaping.for_source(source)))
            paths.append(mine)
        total = sum(task.end - task.begin for task in tasks)
        self._progress.begin(
            "checking records and images" if self._options.check else "scanning records", total, None
        )
        told = False

        def finished(problems: int) -> None:
            nonlocal told
            if problems and not told:
                told = True
                self._progress.note(
                    "there are records that cannot be converted; the scan goes on to find all of them"
                )

        workers.run("scan", tasks, self._progress.advance, finished)
        self._progress.end()
        return paths

    def _scan_task(self, source: Source, begin: int, end: int, target: Path, shaping: Shaping) -> ScanTask:
        options = self._options
        return ScanTask(
            source,
            begin,
            end,
            str(target),
            options.image_root if options.image_root is not None else source.image_folder,
            shaping,
            options.check,
            options.max_image_pixels,
            options.allow_outside_root,
            options.storage_options,
            options.costs,
        )

    def _write(self, plan: Plan, workers: Workers) -> tuple[list[Done], int]:
        options = self._options
        done = self._journal.still_there(self._destination, sample_hash=options.sample_hash)
        shaping = settled_shaping(plan.sources, options)
        tasks = [
            WriteTask(
                str(self._journal.directory),
                shard,
                options.out if not is_local(options.out) else str(local_path(options.out)),
                options.image_root,
                shaping,
                options.allow_outside_root,
                options.compression,
                options.hashes,
                options.size_limit,
                options.storage_options,
                options.costs,
                options.sample_hash,
            )
            for shard in range(plan.num_shards)
            if shard not in done
        ]
        resumed = plan.num_shards - len(tasks)
        if resumed:
            self._progress.note(f"{resumed} of {plan.num_shards} shards are there from an interrupted run")
        self._progress.begin("writing shards", plan.payload_nbytes, plan.num_samples)
        for info in done.values():
            self._progress.advance(info.raw.nbytes, info.num_samples)
        workers.run("write", tasks, self._progress.advance, lambda _: None)
        self._progress.end()
        recorded = self._journal.done()
        missing = [shard for shard in range(plan.num_shards) if shard not in recorded]
        if missing:
            raise ConvertError(
                f"{self._destination.name}: no record of shard {missing[0]}; run the same command again"
            )
        return [recorded[shard] for shard in range(plan.num_shards)], resumed

    def _extra(self, plan: Plan, done: Sequence[Done]) -> dict[str, Any]:
        """What stands under the key ``"streamshard"`` of the index: the plan's facts, and the shards' costs."""
        names = [name for name, _ in self._options.costs]
        sums = {name: [each.costs[place] for each in done] for place, name in enumerate(names)}
        extra = dict(plan.extra)
        if self._options.sample_hash is not None:
            digests = [str(each.side_digest) for each in done]
            extra[SAMPLE_HASHES_KEY] = sample_hashes_entry(self._options.sample_hash, digests)
        try:
            return {**extra, COSTS_KEY: costs_entry(sums)} if names else extra
        except FormatError as error:
            raise ConvertError(f"{self._destination.name}: {error}; choose a larger unit for it") from error

    def _publish(self, infos: Sequence[ShardInfo], extra: Mapping[str, Any]) -> None:
        built = self._journal.directory / "built"
        rejected = self._journal.directory / REJECTED_BASENAME
        built.mkdir(exist_ok=True)
        if rejected.exists():
            # A copy: a run that is killed right after this still has the list.
            shutil.copyfile(rejected, built / REJECTED_BASENAME)
            self._destination.place(built / REJECTED_BASENAME, REJECTED_BASENAME)
        elif self._options.overwrite:
            self._destination.delete(REJECTED_BASENAME)
        publish_file(built, INDEX_BASENAME, [index_text(infos, extra)])
        self._destination.place(built / INDEX_BASENAME, INDEX_BASENAME)
        self._remove_leftovers()

    def _summary_of(
        self,
        infos: Sequence[ShardInfo],
        extra: Mapping[str, Any],
        *,
        plan: Plan | None = None,
        resumed: int = 0,
        finished_before: bool = False,
    ) -> Summary:
        schema = infos[0].schema if infos else None
        return Summary(
            out=self._destination.name,
            samples=sum(info.num_samples for info in infos),
            shards=len(infos),
            nbytes=sum(info.stored.nbytes for info in infos),
            raw_nbytes=sum(info.raw.nbytes for info in infos),
            seconds=time.monotonic() - self._began,
            columns=dict(zip(schema.names, schema.encodings, strict=True)) if schema is not None else {},
            images=extra.get("images", {}),
            costs={name: cost["total"] for name, cost in extra.get(COSTS_KEY, {}).items()},
            skipped=extra.get("convert", {}).get("skipped", {}),
            skips=plan.skips if plan is not None else (),
            warnings=plan.warnings if plan is not None else (),
            resumed_shards=resumed,
            finished_before=finished_before,
        )


_WAYS_OUT = "choose another --out, or replace it with --overwrite"


def _counts(index: Index) -> str:
    return f"{index.num_samples} samples in {index.num_shards} shards"


def _is_good(path: Path) -> bool:
    """Whether a chunk was scanned completely and without problems; one with problems is scanned again."""
    try:
        return not SavedChunk(path).problem_counts
    except (FileNotFoundError, ValueError):
        return False

"""One conversion from beginning to end: scan, plan, write, publish; restartable after any kill."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from xxhash import xxh3_128_hexdigest

from streamshard import __version__
from streamshard.convert.destination import Destination, open_destination
from streamshard.convert.earlier import EarlierOutput
from streamshard.convert.earlier_options import unlike_options
from streamshard.convert.engine import Engine, num_processes, open_engine
from streamshard.convert.fetch_limits import DEFAULT_AT_ONCE
from streamshard.convert.intake import Intake, Scanned
from streamshard.convert.journal import Done, Journal, work_directory
from streamshard.convert.kept import KEPT_DIRECTORY, KeptImages, free_nbytes, room_to_leave
from streamshard.convert.options import ConvertOptions
from streamshard.convert.origins import Origin, find_origins
from streamshard.convert.outcome import summary_of_plan, summary_of_shards
from streamshard.convert.places import local_path, open_place
from streamshard.convert.plan import Plan, make_plan
from streamshard.convert.progress import Progress, SilentProgress
from streamshard.convert.publication import Publication
from streamshard.convert.settling import settled_shaping
from streamshard.convert.shards import WriteTask
from streamshard.convert.splits import parts
from streamshard.convert.summary import Summary
from streamshard.convert.supply import ImageSettings
from streamshard.errors import ConvertError
from streamshard.format.index import (
    ShardInfo,
)
from streamshard.storage.opening import is_local, join_url
from streamshard.write.append import Base


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
    whole = _Job(options, shown)
    with whole.scanned_once() as scanned:
        made = {}
        for name, part in parts(splits, options.shuffle or 0):
            mine = replace(options, out=join_url(options.out, name), part=part)
            made[name] = _Job(mine, shown, scanned=scanned, kept=whole.kept_images).run()
        return made


class _Job:
    def __init__(
        self,
        options: ConvertOptions,
        progress: Progress,
        directory: Path | None = None,
        scanned: Callable[[], Scanned] | None = None,
        kept: Path | None = None,
    ) -> None:
        self._options = options
        self._progress = progress
        self._began = time.monotonic()
        self._destination: Destination = open_destination(options.out, options.storage_options)
        self._journal = Journal(directory or work_directory(options.out, options.work_dir))
        self._earlier = EarlierOutput(options, self._destination, self._journal, self._progress)
        self._kept = kept or self._journal.directory / KEPT_DIRECTORY
        self._origins: list[Origin] = []
        self._scanned = scanned
        self._base: Base | None = None
        self._writes = True

    def dry_run(self) -> Summary:
        self._writes = False
        self._look_up()
        self._open_base()
        with self._engine(writes=False) as workers:
            plan = self._planned(workers)
        return summary_of_plan(plan, self._options, self._destination.name, time.monotonic() - self._began)

    def _look_up(self) -> None:
        options = self._options
        if options.fetch is not None and find_spec("aiohttp") is None:
            raise ConvertError("--fetch needs aiohttp: pip install 'streamshard[http]'")
        self._origins = find_origins(
            options.sources,
            options.storage_options,
            options.kind,
            options.recipe_options,
            options.records,
            follow_links=options.allow_outside_root,
        )
        for (name, _, _), times in Counter(
            (each.name, each.location, each.detail) for each in self._origins
        ).items():
            if times > 1:
                self._progress.note(f"{name} is named {times} times, and its records are taken as often")
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
            self._earlier.clear_leftovers()
            return finished
        self._earlier.refuse_strange_shards()
        self._destination.prepare()
        with self._journal.locked(self._destination.name):
            # Another run may have finished between the first look and the lock.
            finished = self._finished_before()
            if finished is not None:
                self._earlier.remove_leftovers()
                return finished
            with self._destination.claimed() as check:
                self._open_base()
                with self._engine() as workers:
                    plan = self._plan(workers)
                    done, resumed = self._write(plan, workers)
                infos, extra = [each.info for each in done], self._extra(plan, done)
                check()
                self._publish(infos, extra)
        return self._summary_of(infos, extra, plan=plan, resumed=resumed)

    def _engine(self, *, writes: bool = True) -> Engine:
        return open_engine(self._options, self._journal.directory, self._progress, writes=writes)

    def _open_base(self) -> None:
        """Read the index of the dataset that is added to; what is added will be like what is there."""
        base = self._base = self._earlier.base()
        if base is None:
            return
        try:
            columns = base.columns or {}
            base.check_kinds((name for name, _ in self._options.costs), self._options.sample_hash)
        except ValueError as error:
            raise ConvertError(self._with_options_of(base, str(error))) from error
        self._options = replace(self._options, like=tuple(sorted(columns.items())))

    def _finished_before(self) -> Summary | None:
        index = self._earlier.finished(self._origins)
        return None if index is None else self._summary_of(index.shards, index.extra, finished_before=True)

    def _plan(self, workers: Engine) -> Plan:
        options, journal = self._options, self._journal
        if not options.resume:
            journal.forget(scan=True)
            KeptImages(self._kept).clear()
        for difference in journal.accept(self._facts()):
            self._progress.note(f"work of an interrupted run is planned anew: {difference}")
        if self._base is None:
            self._earlier.remove_index()
        if (journal.directory / "plan.json").exists():
            plan = Plan.load(journal.directory)
            limit = options.error_limit(plan.extra["convert"]["records"])
            # Else planned anew, which says what is too much, or makes the copies of the inputs again.
            if (limit is None or plan.skipped.total() <= limit) and plan.has_sources(options.engine):
                return plan
        # Nothing of the new plan is written yet: shards that are there are of an older dataset, or of an older plan and
        # not recorded, since the run was killed in between.
        journal.replace_later(self._earlier.shard_files())
        return self._planned(workers)

    @contextlib.contextmanager
    def scanned_once(self) -> Iterator[Callable[[], Scanned]]:
        """Give what stages and scans the inputs when it is first called; what it made goes at the end."""
        found: list[Scanned] = []
        self._look_up()
        self._destination.prepare()
        with self._journal.locked(self._destination.name):
            if not self._options.resume:
                self._journal.forget(scan=True)
                KeptImages(self._kept).clear()
            self._journal.accept(self._facts())

            def scanned() -> Scanned:
                if not found:
                    with self._engine() as workers:
                        found.append(self._scan_all(workers))
                return found[0]

            yield scanned
            self._journal.remove()

    def _facts(self) -> dict[str, Any]:
        return {
            "version": f"{__version__} 2",
            "scan": {
                "sources": [origin.fingerprint() for origin in self._origins],
                **self._options.scan_key(),
            },
            "write": {
                **self._options.write_key(),
                **({} if self._base is None else {"added to": xxh3_128_hexdigest(self._base.text)}),
            },
        }

    def _scan_all(self, workers: Engine) -> Scanned:
        return Intake(
            self._origins,
            self._options,
            self._journal,
            workers,
            self._progress,
            self._images,
            # Nodes of a cluster do not share the folder of the scan, and a dry run makes no shards.
            makes_ready=self._writes and self._options.engine == "local",
        ).scanned()

    def _planned(self, workers: Engine) -> Plan:
        try:
            scanned = self._scan_all(workers) if self._scanned is None else self._scanned()
            return make_plan(self._journal.directory, scanned, self._options, self._base)
        except ConvertError as error:
            if self._base is None:
                raise
            raise ConvertError(self._with_options_of(self._base, str(error))) from error

    def _with_options_of(self, base: Base, text: str) -> str:
        """The text of an error, and the options of the dataset that is added to, if this run has others."""
        said = unlike_options(base, self._options)
        return f"{text}\n{said}" if said else text

    @property
    def kept_images(self) -> Path:
        """The folder of kept copies of images."""
        return self._kept

    def _make_room(self, plan: Plan, done: Mapping[int, ShardInfo]) -> None:
        """Give up the copies of images where the shards would not fit beside them: images come once more then."""
        if not self._kept.is_dir() or not is_local(self._options.out):
            return
        left = plan.payload_nbytes - sum(info.raw.nbytes for info in done.values())
        if free_nbytes(self._kept) < left:
            self._progress.note(
                "the disk has no room for copies of images and the shards: images are fetched again"
            )
            KeptImages(self._kept).clear()

    @cached_property
    def _images(self) -> ImageSettings:
        options = self._options
        at_once = options.fetch.at_once if options.fetch is not None else DEFAULT_AT_ONCE
        return ImageSettings(
            str(self._kept),
            options.max_image_pixels,
            options.allow_outside_root,
            max(1, at_once // num_processes(options)),
            options.check or options.resizing is not None,
            room_to_leave(self._kept),
            options.fetch,
            options.resizing,
            options.storage_options,
        )

    def _write(self, plan: Plan, workers: Engine) -> tuple[list[Done], int]:
        options = self._options
        done = self._journal.still_there(self._destination, sample_hash=options.sample_hash)
        self._make_room(plan, done)
        shaping = settled_shaping(plan.sources, options)
        tasks = [
            WriteTask(
                str(self._journal.directory),
                shard,
                options.out if not is_local(options.out) else str(local_path(options.out)),
                options.image_root,
                shaping,
                self._images,
                options.compression,
                options.hashes,
                options.size_limit,
                options.storage_options,
                options.costs,
                options.sample_hash,
                first_number=0 if self._base is None else self._base.first_number,
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

    @property
    def _publication(self) -> Publication:
        source_nbytes = sum(origin.nbytes for origin in self._origins)
        return Publication(
            self._options, self._destination, self._journal.directory, self._base, source_nbytes
        )

    def _extra(self, plan: Plan, done: Sequence[Done]) -> dict[str, Any]:
        return self._publication.entry(plan, done)

    def _publish(self, infos: Sequence[ShardInfo], extra: Mapping[str, Any]) -> None:
        self._publication.publish(infos, extra)
        self._earlier.remove_leftovers()

    def _summary_of(
        self,
        infos: Sequence[ShardInfo],
        extra: Mapping[str, Any],
        *,
        plan: Plan | None = None,
        resumed: int = 0,
        finished_before: bool = False,
    ) -> Summary:
        return summary_of_shards(
            infos,
            extra,
            out=self._destination.name,
            seconds=time.monotonic() - self._began,
            plan=plan,
            samples_before=0 if self._base is None or finished_before else self._base.index.num_samples,
            resumed_shards=resumed,
            finished_before=finished_before,
        )

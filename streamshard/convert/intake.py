"""All inputs of a job made readable and scanned, by all workers; what is there from an interrupted run is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from streamshard.convert.engine import Engine
from streamshard.convert.journal import Journal
from streamshard.convert.jsonl import chunk_nbytes
from streamshard.convert.options import ConvertOptions
from streamshard.convert.origins import Beside, Origin
from streamshard.convert.progress import Progress
from streamshard.convert.scan import ScanTask
from streamshard.convert.settling import settled_shaping
from streamshard.convert.shaping import Shaping
from streamshard.convert.sources import Source
from streamshard.convert.staging import StageTask, in_place, stage_tasks
from streamshard.convert.supply import ImageSettings
from streamshard.convert.tally import SavedChunk
from streamshard.storage.opening import is_local


class Scanned(NamedTuple):
    """The sources in order, what is settled before records are read, and for each source the files of its chunks.

    ``class_names`` are those that each source gives, which has them no longer; ``beside`` is what lies around them.
    """

    sources: list[Source]
    shaping: Shaping
    chunks: list[list[Path]]
    class_names: list[Mapping[str, Sequence[str]]]
    beside: list[Beside]


class Intake:
    """Stages and scans the inputs of a job; ``makes_ready``: see :mod:`~streamshard.convert.ready`."""

    def __init__(
        self,
        origins: Sequence[Origin],
        options: ConvertOptions,
        journal: Journal,
        workers: Engine,
        progress: Progress,
        images: ImageSettings,
        *,
        makes_ready: bool = False,
    ) -> None:
        self._origins = origins
        self._options = options
        self._journal = journal
        self._workers = workers
        self._progress = progress
        self._images = images
        self._makes_ready = makes_ready and not options.costs and images.resizing is None

    def scanned(self) -> Scanned:
        """Stage and scan all inputs.

        Raises:
            ConvertError, StorageError: an input that cannot be read.
        """
        staged = self._stage_all()
        names = [source.class_names for source in staged if source.class_names]
        sources = [source._replace(class_names={}) if source.class_names else source for source in staged]
        shaping = settled_shaping(sources, self._options)
        beside = [origin.beside for origin in self._origins if origin.beside != Beside()]
        return Scanned(sources, shaping, self._scan(sources, shaping), names, beside)

    def _stage_all(self) -> list[Source]:
        folder = self._journal.directory / "sources"
        folder.mkdir(exist_ok=True)
        plain: dict[int, Source] = {}
        tasks: list[StageTask] = []
        for number, origin in enumerate(self._origins):
            source = in_place(origin)
            if source is not None:
                plain[number] = source.stamped(origin.location, origin.nbytes, origin.mtime_ns)
            else:
                tasks += stage_tasks(origin, folder, number, self._options.storage_options)
        left = [task for task in tasks if not task.listed.exists()]
        nbytes = {task.number: self._origins[task.number].nbytes for task in left}
        self._progress.begin("reading sources", sum(nbytes.values()), None)
        self._workers.run("stage", left, self._progress.advance, lambda _: None)
        self._progress.end()
        made = {number: [plain[number]] if number in plain else [] for number in range(len(self._origins))}
        for task in tasks:
            origin = self._origins[task.number]
            made[task.number] += [
                source.stamped(origin.location, origin.nbytes, origin.mtime_ns) for source in task.sources()
            ]
        return [source for number in sorted(made) for source in made[number]]

    def _scan(self, sources: Sequence[Source], shaping: Shaping) -> list[list[Path]]:
        folder = self._journal.directory / "scan"
        folder.mkdir(exist_ok=True)
        distant = self._are_images_distant(sources)
        size = chunk_nbytes(
            sum(source.nbytes for source in sources), check=self._options.check and not distant
        )
        makes_ready = self._makes_ready and not distant
        paths: list[list[Path]] = []
        tasks: list[ScanTask] = []
        for number, source in enumerate(sources):
            mine = []
            for part, begin in enumerate(range(0, source.nbytes, size)):
                path = folder / f"{number:05d}-{part:06d}-{size}.tally"
                mine.append(path)
                if not _is_good(path):
                    end = min(begin + size, source.nbytes)
                    task = self._scan_task(source, begin, end, path, shaping.for_source(source))
                    tasks.append(task._replace(makes_ready=makes_ready))
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

        self._workers.run("scan", tasks, self._progress.advance, finished)
        self._progress.end()
        return paths

    def _are_images_distant(self, sources: Sequence[Source]) -> bool:
        """Whether images come over a network: each unit ends with a wait for its last one, so units are not small."""
        root = self._options.image_root
        roots = {source.image_folder for source in sources} if root is None else {root}
        return self._options.fetch is not None or not all(map(is_local, roots))

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
            self._images,
            options.costs,
        )


def _is_good(path: Path) -> bool:
    """Whether a chunk was scanned completely and without problems; one with problems is scanned again."""
    try:
        return not SavedChunk(path).problem_counts
    except (FileNotFoundError, ValueError):
        return False

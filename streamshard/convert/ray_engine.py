"""The units of work of a conversion as tasks of a Ray cluster.

The driver plans, keeps the work directory and publishes, as it does with processes of its own; nodes scan and write.
A task gives back what it found and is safe to run twice, so Ray may run it again when a node dies. Sources are read
(unpacked, tables decoded) on nodes, too, where these see the work directory and the source, else by the driver.
"""

from __future__ import annotations

import hashlib
import socket
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from streamshard import __version__
from streamshard.convert.options import ConvertOptions
from streamshard.convert.plan import Plan
from streamshard.convert.processes import Task, Workers, WorkerTracebackError
from streamshard.convert.progress import Progress
from streamshard.convert.ray_connection import Connection, cause_of, first_line
from streamshard.convert.ray_files import FileServer, FilesOfJob, Stamp, stamp_of, witnesses_of
from streamshard.convert.ray_node import (
    Outcome,
    Sealed,
    clean_up,
    look_around,
    other_version_text,
    paths_of,
    run_unit,
    tokenizers_of,
    unseen_text,
)
from streamshard.convert.scan import Advance
from streamshard.convert.sources import Source
from streamshard.errors import ConvertError, StreamshardError
from streamshard.storage.opening import is_local
from streamshard.write.publish import publish_file

# How often a task is begun anew after its process or node has died.
_RETRIES = 8
_SECONDS_BETWEEN_COUNTS = 5.0
# Inputs that are files; what a recipe reads is its own, and rows and folders of images take no time.
_READ_ON_NODES = frozenset(("jsonl", "csv", "tsv", "parquet", "hf", "webdataset", "mds", "litdata"))


class RayEngine:
    """Runs units of work on a cluster; see :class:`streamshard.convert.engine.Engine`.

    Connects when it is entered, and then looks at every node: the same version of streamshard, and for an output that
    is a directory, the same directory.
    """

    def __init__(self, options: ConvertOptions, directory: Path, progress: Progress, *, writes: bool) -> None:
        self._connection = Connection(options.address or "auto")
        self._ray = self._connection.ray
        self._options = options
        self._directory = directory
        self._progress = progress
        self._shared = writes and is_local(options.out)
        self._token = uuid.uuid4().hex
        name = f"{socket.gethostname()} {directory}"
        self._name = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:16]
        self._staging = Workers(options.num_workers)
        self._server: Any = None
        self._served: dict[str, Stamp] = {}

    def __enter__(self) -> RayEngine:
        self._connection.open()
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            (self._directory / "seen").write_text(self._token, encoding="ascii")
            self._look_at_nodes()
        except BaseException:
            self._connection.close()
            raise
        self._staging.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._staging.__exit__(kind, error, trace)
            if kind is None:
                # What an interrupted run has sent to nodes is of use to the next one.
                self._connection.on_all_nodes(clean_up, self._name)
        finally:
            if self._server is not None:
                self._ray.kill(self._server)
            self._connection.close()

    def run(
        self, function: str, tasks: Sequence[Any], advance: Advance, finished: Callable[[int], None]
    ) -> None:
        """Run ``function`` on all tasks; ``finished`` gets each result. Both callbacks run in the calling thread.

        Raises:
            ConvertError: a task whose process or node died again and again, a node that lacks a directory.
            Exception: the first error of a task; other tasks are cancelled.
        """
        if function == "stage":
            far: list[Any] = []
            near: list[Any] = []
            for task in tasks:
                (far if self._shared and task.origin.kind in _READ_ON_NODES else near).append(task)
            near += self._run(function, far, advance, finished)
            self._staging.run(function, near, advance, finished)
        else:
            self._run(function, tasks, advance, finished)

    def _run(
        self, function: str, tasks: Sequence[Any], advance: Advance, finished: Callable[[int], None]
    ) -> list[Any]:
        """Run tasks on nodes; gives those of reading that a node could not do, since it does not see the source."""
        if not tasks:
            return []
        ray = self._ray
        remote = self._remote(run_unit, name=f"streamshard {function}")
        files = self._files(function, tasks)
        shared = ray.put(files)
        waiting = deque(tasks)
        running: dict[Any, Any] = {}
        room = self._room()
        unread: list[Any] = []
        try:
            while waiting or running:
                for _ in range(min(len(waiting), next(room) - len(running))):
                    task = waiting.popleft()
                    running[remote.remote(shared, Sealed(function, task), str(self._directory))] = task
                ready, _ = ray.wait(list(running), timeout=_SECONDS_BETWEEN_COUNTS)
                for reference in ready:
                    task = running.pop(reference)
                    outcome = self._outcome(reference, task)
                    if outcome.absent and function == "stage":
                        unread.append(task)
                        continue
                    if outcome.absent:
                        if files.server is None:
                            files = self._with_server(files)
                            shared = ray.put(files)
                        waiting.appendleft(task)
                        continue
                    self._keep(function, task, outcome.content)
                    advance(outcome.nbytes, outcome.samples)
                    finished(outcome.result)
        finally:
            for reference in running:
                ray.cancel(reference, force=True)
        return unread

    def _remote(self, function: Callable[..., Any], **options: Any) -> Any:
        # SPREAD has an effect only on tasks that reserve something.
        return self._ray.remote(function).options(
            num_cpus=self._options.task_cpus,
            memory=self._options.task_memory,
            scheduling_strategy="SPREAD",
            max_retries=_RETRIES,
            **options,
        )

    def _room(self) -> Iterator[int]:
        """How many tasks may be on their way: twice what the cluster runs at a time, so that no node waits for us."""
        counted, room = -_SECONDS_BETWEEN_COUNTS, 1
        while True:
            if self._options.workers is not None:
                room = self._options.workers
            elif time.monotonic() - counted > _SECONDS_BETWEEN_COUNTS:
                counted = time.monotonic()
                cpus = self._ray.cluster_resources().get("CPU", 1.0)
                room = max(2, 2 * int(cpus / self._options.task_cpus))
            yield room

    def _outcome(self, reference: Any, task: Task) -> Outcome:
        errors = self._ray.exceptions
        try:
            outcome: Outcome = self._ray.get(reference)
        except errors.RayTaskError as error:
            raise ConvertError(f"{task.label}: {cause_of(error)}") from error
        except errors.RayError as error:
            raise ConvertError(
                f"{task.label}: failed {_RETRIES + 1} times or for good: {first_line(error)}; less memory is"
                " needed with a smaller --size-limit, or reserve it with --task-memory; run the same command again to"
                " go on from here"
            ) from error
        if outcome.error is None:
            return outcome
        if isinstance(outcome.error, StreamshardError):
            raise outcome.error
        raise outcome.error from WorkerTracebackError(f"\n{outcome.traceback}")

    def _keep(self, function: str, task: Any, content: bytes) -> None:
        """Put what a task has found where the next step, or the next run, looks for it."""
        if function == "stage":
            path = task.listed
        elif function == "scan":
            path = Path(task.target)
        else:
            path = self._directory / "done" / f"{task.shard:05d}.json"
        publish_file(path.parent, path.name, [content])

    def _files(self, function: str, tasks: Sequence[Any]) -> FilesOfJob:
        own: list[str] = []
        if function == "stage":
            places = {task.origin.location for task in tasks if is_local(task.origin.location)}
            stamps = {path: stamp_of(path) for path in sorted(places)}
            return FilesOfJob(self._name, self._token, self._shared, stamps, {})
        if function == "scan":
            sources: list[Source] = [task.source for task in tasks]
            folders = {task.image_folder for task in tasks}
        else:
            own = [str(self._directory / name) for name in ("plan.json", "begins.npy", "rows")]
            sources = list(Plan.load(self._directory).sources)
            for source in sources:
                source.refuse_changed()
            folders = {source.image_folder for source in sources} | {self._options.image_root or ""}
        paths = {*own, *(path for source in sources for path in paths_of(source))}
        paths |= {path for task in tasks for path in tokenizers_of(task.shaping)}
        seen = {
            folder: witnesses
            for folder in folders
            if folder and is_local(folder) and (witnesses := witnesses_of(folder)) is not None
        }
        files = FilesOfJob(
            self._name, self._token, self._shared, {path: stamp_of(path) for path in sorted(paths)}, seen
        )
        return files if self._server is None else self._with_server(files)

    def _with_server(self, files: FilesOfJob) -> FilesOfJob:
        """Let nodes fetch what they do not see from an actor on this machine."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        if not files.stamps.items() <= self._served.items():
            if self._server is None:
                self._progress.note(
                    "nodes do not see the inputs; they are sent from this machine, once to each node"
                )
            else:
                self._ray.kill(self._server)
            here = self._ray.get_runtime_context().get_node_id()
            self._served.update(files.stamps)
            self._server = (
                self._ray.remote(FileServer)
                .options(
                    num_cpus=0,
                    max_concurrency=8,
                    max_restarts=-1,
                    max_task_retries=-1,
                    scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=False),
                )
                .remote(self._served)
            )
        return replace(files, server=self._server)

    def _look_at_nodes(self) -> None:
        directory = str(self._directory) if self._shared else ""
        troubles = []
        for answer in self._connection.on_all_nodes(look_around, directory, self._token):
            node, version, trouble = answer
            if version != __version__:
                raise ConvertError(other_version_text(node, version, __version__))
            if trouble:
                troubles.append(f"{node} {trouble}")
        if troubles:
            raise ConvertError(unseen_text(self._options.out, troubles))
        largest = max((node["Resources"].get("CPU", 0.0) for node in self._connection.nodes()), default=0.0)
        if largest < self._options.task_cpus:
            self._progress.note(
                f"no node has {self._options.task_cpus:g} CPUs for a task (the largest has {largest:g}); waiting for"
                " one"
            )

"""Who does the units of work of a conversion: processes of this machine, or the nodes of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol

from streamshard.convert.options import ConvertOptions
from streamshard.convert.processes import Task, Workers
from streamshard.convert.progress import Progress
from streamshard.convert.scan import Advance
from streamshard.errors import ConvertError


class Engine(Protocol):
    """Runs units of work; a context manager."""

    def __enter__(self) -> Engine: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def run(
        self, function: str, tasks: Sequence[Task], advance: Advance, finished: Callable[[int], None]
    ) -> None:
        """Run ``function`` on all tasks; see :meth:`streamshard.convert.processes.Workers.run`."""


def open_engine(
    options: ConvertOptions, directory: Path, progress: Progress, *, writes: bool = True
) -> Engine:
    """Make the engine that the options name.

    Args:
        directory: the work directory.
        writes: shards will be written, not only input scanned.

    Raises:
        ConvertError: a place that exists in this process alone, with another engine than that.
        MissingDependencyError: Ray is not installed.
    """
    private = _private_place(options)
    if options.engine == "ray":
        from streamshard.convert.ray_engine import RayEngine

        if private is not None:
            raise ConvertError(
                f"{private}: exists in this process alone; --engine ray needs a place that nodes see"
            )
        return RayEngine(options, directory, progress, writes=writes)
    return Workers(num_processes(options))


def num_processes(options: ConvertOptions) -> int:
    """How many processes work at the same time, on one machine."""
    return 1 if _private_place(options) is not None else options.num_workers


def _private_place(options: ConvertOptions) -> str | None:
    """A place that exists in this process alone."""
    places = [*options.sources, options.out, options.image_root or ""]
    return next((place for place in places if place.startswith("memory://")), None)

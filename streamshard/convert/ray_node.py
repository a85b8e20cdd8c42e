"""What runs on the nodes of a Ray cluster: single units of work, and looks at what a node sees.

A node writes nothing into the driver's work directory but shards that are being made, and sources that were read, each
under a name of its own. What a unit of work finds goes back to the driver as bytes, since a network file system may
show new files to other machines late.
"""

from __future__ import annotations

import pickle
import shutil
import traceback
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from streamshard import __version__
from streamshard.convert.kept import KEPT_DIRECTORY, room_to_leave
from streamshard.convert.plan import Plan
from streamshard.convert.ray_files import AbsentFilesError, FilesOfJob
from streamshard.convert.ray_scratch import UNIT_PREFIX, held_scratch, remove_scratch, sweep
from streamshard.convert.scan import ScanTask, scan_chunk
from streamshard.convert.shaping import Shaping
from streamshard.convert.shards import WriteTask, write_planned_shard
from streamshard.convert.sources import TAR, Source
from streamshard.convert.staging import StageTask, stage_input
from streamshard.convert.supply import ImageSettings
from streamshard.convert.worker import out_of_memory
from streamshard.errors import ConvertError
from streamshard.storage.opening import is_local


class Sealed:
    """A task on its way: its contents, among them credentials, appear in no representation."""

    def __init__(self, function: str, task: Any) -> None:
        self._content = pickle.dumps((function, task))

    def __repr__(self) -> str:
        return f"<task of {len(self._content)} bytes>"

    def opened(self) -> tuple[str, Any]:
        """The function and its task."""
        function, task = pickle.loads(self._content)  # noqa: S301 made by our own driver
        return function, task


@dataclass(frozen=True)
class Outcome:
    """What a unit of work has come to.

    Attributes:
        result: of the function.
        nbytes, samples: what it has done, for the progress.
        content: of the small file that it made, for the driver's work directory.
        error: raised, with its traceback as text.
        absent: files are needed that this node does not see.
    """

    result: int = 0
    nbytes: int = 0
    samples: int = 0
    content: bytes = b""
    error: Exception | None = None
    traceback: str = ""
    absent: bool = False


def run_unit(files: FilesOfJob, sealed: Sealed, directory: str) -> Outcome:
    """Carry out one unit of work; errors are part of what is given back."""
    if files.version != __version__:  # a node that came when the driver had looked at all
        return Outcome(error=ConvertError(other_version_text(_node_name(), __version__, files.version)))
    with held_scratch(files.name) as scratch:
        return _run_unit(files, sealed, directory, scratch)


def _run_unit(files: FilesOfJob, sealed: Sealed, directory: str, scratch: Path) -> Outcome:
    function, task = sealed.opened()
    done = [0, 0]

    def advance(nbytes: int, samples: int) -> None:
        done[0] += nbytes
        done[1] += samples

    unit = scratch / f"{UNIT_PREFIX}{uuid.uuid4().hex}"
    unit.mkdir()
    try:
        if function == "stage":
            result, content = _stage(files, task, advance, directory)
        elif function == "scan":
            result, content = _scan(files, task, unit, advance)
        else:
            result, content = _write(files, task, unit, advance, directory)
    except AbsentFilesError:
        return Outcome(absent=True)
    except Exception as error:  # noqa: BLE001 it is raised again in the driver
        if isinstance(error, MemoryError):
            error = ConvertError(out_of_memory(task.label))
        text = "".join(traceback.format_exception(error))
        folder = files.unseen_folder(str(error))
        if folder is not None:
            error = ConvertError(
                f"images in {folder}: node {_node_name()} of the Ray cluster does not see this folder; put the images"
                " where all nodes see them, name a bucket with --image-root URL, or run with --engine local"
            )
        return Outcome(error=_portable(error), traceback=text)
    finally:
        shutil.rmtree(unit, ignore_errors=True)
    return Outcome(result, done[0], done[1], content)


def _stage(
    files: FilesOfJob, task: StageTask, advance: Callable[[int, int], None], directory: str
) -> tuple[int, bytes]:
    if _trouble_with(Path(directory), files.token):
        raise AbsentFilesError(directory)
    location = task.origin.location
    if is_local(location):
        files.local([location])
    # A folder of its own: of a task that is run twice, one on a node that is taken for dead, both may be at work.
    mine = task._replace(directory=f"{task.directory}/{task.stem}.{uuid.uuid4().hex}")
    Path(mine.directory).mkdir()
    return stage_input(mine, advance), mine.listed.read_bytes()


def _scan(
    files: FilesOfJob, task: ScanTask, unit: Path, advance: Callable[[int, int], None]
) -> tuple[int, bytes]:
    here = files.local([*paths_of(task.source), *tokenizers_of(task.shaping)])
    target = unit / "tally"
    mine = task._replace(
        source=_here(task.source, here, files),
        target=str(target),
        image_folder=files.image_folder(task.image_folder),
        shaping=_with_tokenizers(task.shaping, here),
        images=_images_here(task.images, files),
    )
    return scan_chunk(mine, advance), target.read_bytes()


def _write(
    files: FilesOfJob, task: WriteTask, unit: Path, advance: Callable[[int, int], None], directory: str
) -> tuple[int, bytes]:
    if is_local(task.out) and (trouble := _trouble_with(Path(directory), files.token)):
        raise ConvertError(unseen_text(task.out, [f"{_node_name()} {trouble}"]))
    own = [f"{directory}/{name}" for name in ("plan.json", "begins.npy", "rows")]
    here = files.local(own)
    for path in own:
        (unit / Path(path).name).symlink_to(here[path])
    plan = Plan.load(unit)
    used = {int(number) for number in set(plan.rows(task.shard)["source"].tolist())}
    wanted = [path for number in used for path in paths_of(plan.sources[number])]
    here = files.local([*wanted, *tokenizers_of(task.shaping)])
    sources = tuple(
        _here(source, here, files) if number in used else source for number, source in enumerate(plan.sources)
    )
    (unit / "plan.json").unlink()
    replace(plan, sources=sources).save_heading()
    root = task.image_root
    mine = replace(
        task,
        directory=str(unit),
        image_root=root if root is None else files.image_folder(root),
        shaping=_with_tokenizers(task.shaping, here),
        images=_images_here(task.images, files),
        # A file that is renamed into a directory has to be on its file system.
        built=f"{directory}/built" if is_local(task.out) else "",
    )
    result = write_planned_shard(mine, advance)
    return result, (unit / "done" / f"{task.shard:05d}.json").read_bytes()


def tokenizers_of(shaping: Shaping) -> list[str]:
    """The files of tokenizers that records need."""
    return [column.path for column in shaping.tokens]


def _with_tokenizers(shaping: Shaping, here: dict[str, str]) -> Shaping:
    return shaping._replace(tokens=tuple(token._replace(path=here[token.path]) for token in shaping.tokens))


def _images_here(images: ImageSettings, files: FilesOfJob) -> ImageSettings:
    """Copies of images are kept for all nodes where there is a directory that all see, else on each node."""
    if files.shared:
        return images
    kept = files.scratch() / KEPT_DIRECTORY
    return replace(images, kept=str(kept), leave_free_nbytes=room_to_leave(kept))


def paths_of(source: Source) -> list[str]:
    """The local files of a source."""
    return [source.path, source.aside] if source.kind == TAR else [source.path]


def _here(source: Source, here: dict[str, str], files: FilesOfJob) -> Source:
    mine = source._replace(
        path=here[source.path],
        aside=here[source.aside] if source.kind == TAR else source.aside,
        image_folder=files.image_folder(source.image_folder),
    )
    # A copy has a time of its own, and does not change.
    return mine if mine.read_file == source.read_file else mine._replace(stamp=())


def other_version_text(node: str, version: str, wanted: str) -> str:
    """What is wrong with a node, and what to do."""
    return (
        f"node {node} of the Ray cluster has streamshard {version}, the driver has {wanted}: install the same version"
        " on all nodes"
    )


def unseen_text(out: str, troubles: list[str]) -> str:
    """Why shards cannot be written to a directory by all nodes, and what to do."""
    shown = "; ".join(troubles[:5]) + (f"; and {len(troubles) - 5} more" if len(troubles) > 5 else "")
    return (
        f"out {out!r}: not every node of the Ray cluster can write to this directory (node {shown}); choose one on a"
        " file system that all nodes share, a URL such as s3://bucket/prefix, or --engine local"
    )


def look_around(directory: str, token: str) -> tuple[str, str, str]:
    """A node's name, the version of streamshard there, and what is wrong with the work directory, seen from there.

    What earlier jobs have left on the node is swept.
    """
    sweep()
    return _node_name(), __version__, "" if not directory else _trouble_with(Path(directory), token)


def _trouble_with(directory: Path, token: str) -> str:
    try:
        if (directory / "seen").read_text(encoding="ascii") != token:
            return "sees another directory there"
        trial = directory / f"seen.{uuid.uuid4().hex}"
        trial.touch()
        trial.unlink()
    except FileNotFoundError:
        return "does not see it"
    except OSError as error:
        return f"cannot use it ({error.strerror})"
    return ""


def clean_up(name: str) -> None:
    """Remove the folder of a job on this node."""
    remove_scratch(name)


def _node_name() -> str:
    import ray

    context = ray.get_runtime_context()
    return f"{ray.util.get_node_ip_address()} ({context.get_node_id()[:8]})"


def _portable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 made here
    except Exception:  # noqa: BLE001 an error of any class whose pickling may fail in any way
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error

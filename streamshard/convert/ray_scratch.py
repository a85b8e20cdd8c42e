"""The private folders of jobs on a node of a Ray cluster: made, held while a unit of work is on, and swept.

A job that ends well removes its folder on every node. One that was cancelled or killed leaves the files that it was
sent, which the same command needs again; the next job on the node takes them away when nobody has used them for a day,
and at once what units of work that were killed have left.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streamshard.errors import StorageError

UNIT_PREFIX = "unit-"
_SECONDS_KEPT = 24 * 3600.0

logger = logging.getLogger(__name__)


def scratch_folder(name: str) -> Path:
    """A folder of this user alone on this node.

    Raises:
        StorageError: somebody else has made it.
    """
    home = _home()
    for folder in (home, home / name):
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise StorageError(
                f"{folder}: belongs to another user; set TMPDIR to a folder of your own on the nodes"
            )
    return home / name


@contextmanager
def held_scratch(name: str) -> Iterator[Path]:
    """The folder of a job, which no sweep touches meanwhile; the kernel lets go of it when this process dies."""
    while True:
        folder = scratch_folder(name)
        try:
            file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # a sweep was just removing it
        try:
            fcntl.flock(file, fcntl.LOCK_SH)
            if _is_same_folder(file, folder):
                os.utime(folder)
                yield folder
                return
        finally:
            os.close(file)


def sweep() -> None:
    """Remove what jobs that nobody goes on with have left on this node; what somebody holds stays."""
    home = _home()
    try:
        if home.lstat().st_uid != os.geteuid():
            return
        folders = [entry for entry in os.scandir(home) if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return
    for entry in folders:
        try:
            _sweep_folder(Path(entry.path))
        except OSError as error:  # of another user, or going at the same moment
            logger.info("%s: left alone: %s", entry.path, error)


def _sweep_folder(folder: Path) -> None:
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if time.time() - os.fstat(file).st_mtime > _SECONDS_KEPT:
            shutil.rmtree(folder)
            return
        for unit in folder.glob(f"{UNIT_PREFIX}*"):
            shutil.rmtree(unit)
    finally:
        os.close(file)


def remove_scratch(name: str) -> None:
    """Remove what a job has left on this node."""
    shutil.rmtree(_home() / name, ignore_errors=True)


def _home() -> Path:
    return Path(tempfile.gettempdir()) / f"streamshard-ray-{os.geteuid()}"


def _is_same_folder(file: int, folder: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), folder.stat())
    except FileNotFoundError:
        return False

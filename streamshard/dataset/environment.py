"""Find out which rank this process is. Only looks; never starts a process group and never waits for anyone."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import get_worker_info

from streamshard.errors import StorageError, StreamshardError, TopologyError
from streamshard.order.world import World

# Longest path of a Unix socket, and what multiprocessing adds to the directory for temporary files:
# /pymp-xxxxxxxx/listener-xxxxxxxx
_SOCKET_PATH_NBYTES = 103 if sys.platform == "darwin" else 107
_SOCKET_NAME_NBYTES = 32


def detect_world(environ: Mapping[str, str] | None = None) -> World:
    """Return the topology of this process.

    ``torch.distributed`` is asked first, if it is initialised; then the variables ``RANK``, ``WORLD_SIZE``
    and ``LOCAL_WORLD_SIZE`` as torchrun sets them; a process with neither is alone in its world.

    Args:
        environ: read instead of ``os.environ``.

    Raises:
        TopologyError: a variable that is not a number, or only one of RANK and WORLD_SIZE.
    """
    variables = os.environ if environ is None else environ
    group = _process_group()
    if group is None:
        rank, world_size = _number(variables, "RANK"), _number(variables, "WORLD_SIZE")
        if (rank is None) != (world_size is None):
            found, missing = ("RANK", "WORLD_SIZE") if world_size is None else ("WORLD_SIZE", "RANK")
            raise TopologyError(
                f"environment variable {found} is set but {missing} is not: set both, or neither, or pass "
                "world=World(rank=..., world_size=...) to StreamingDataset"
            )
        group = (rank or 0, 1 if world_size is None else world_size)
    rank, world_size = group
    local = _number(variables, "LOCAL_WORLD_SIZE")
    # A launcher's leftover from another job must not make a two-rank world claim eight ranks a node.
    fits = local is not None and 1 <= local <= world_size
    return World(rank=rank, world_size=world_size, local_world_size=local if fits else None)


class Topology:
    """Which rank a process is: the world that was given, else handed over to a worker, else detected.

    Attributes:
        given: the world that was given, or None.
    """

    def __init__(self, given: World | None) -> None:
        self.given = given
        self._pickled: tuple[int, World] | None = None

    def now(self, handed: World | None) -> World:
        """Return the topology of the moment.

        Args:
            handed: what the trainer's process handed over; holds in DataLoader workers, which never detect.

        Raises:
            TopologyError: the environment contradicts itself.
        """
        if self.given is not None:
            return self.given
        if get_worker_info() is not None:
            if handed is not None:
                return handed
            for noted in (self._pickled, _at_fork):
                if noted is not None and noted[0] == os.getpid():
                    return noted[1]
        return detect_world()

    def __getstate__(self) -> dict[str, Any]:
        # A worker that is spawned must not detect the topology: it is that of the process that pickles.
        return {"given": self.given, "world": self.now(None)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.given = state["given"]
        self._pickled = (os.getpid(), state["world"])


# The topology of the parent at the moment when it forked this process. A plain DataLoader tells its forked workers
# nothing, and what they find in their own environment later, after the user's worker_init_fn, is not the trainer's.
_at_fork: tuple[int, World] | None = None


def _note_world() -> None:
    global _at_fork
    try:
        _at_fork = (os.getpid(), detect_world())
    except TopologyError:
        _at_fork = None  # said when somebody asks


os.register_at_fork(after_in_child=_note_world)


def _process_group() -> tuple[int, int] | None:
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return None


def _number(variables: Mapping[str, str], name: str) -> int | None:
    text = variables.get(name, "").strip()
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise TopologyError(
            f"environment variable {name}={text!r}: expected a whole number; fix the launcher, or pass "
            "world=World(rank=..., world_size=...) to StreamingDataset"
        ) from None


def check_socket_room() -> None:
    """Refuse a directory for temporary files in which DataLoader workers cannot make the sockets they need.

    Workers hand tensors over as open files, through Unix sockets in that directory. Where a socket's path is too
    long, torch drops the batch with a traceback on stderr, and the trainer waits for it for ever.

    Raises:
        StorageError: the directory's path is too long, or there is no such directory; says what to set.
    """
    import torch.multiprocessing

    if torch.multiprocessing.get_sharing_strategy() != "file_descriptor":  # type: ignore[no-untyped-call]
        return
    try:
        directory = tempfile.gettempdir()
    except FileNotFoundError as error:
        raise StorageError(
            f"DataLoader workers need a directory for sockets, there is none ({error}): set TMPDIR to one that may be "
            "written, or use num_workers=0"
        ) from error
    room = _SOCKET_PATH_NBYTES - _SOCKET_NAME_NBYTES
    nbytes = len(os.fsencode(directory))
    if nbytes > room:
        raise StorageError(
            f"the directory for temporary files, {directory}, has a path of {nbytes} bytes; the sockets of DataLoader "
            f"workers need one of at most {room}: set TMPDIR to a shorter one, call "
            "torch.multiprocessing.set_sharing_strategy('file_system'), or use num_workers=0"
        )


@contextlib.contextmanager
def naming_what_workers_need() -> Iterator[None]:
    """Where DataLoader workers cannot be started, say what they need: processes, open files, room in /dev/shm.

    Raises:
        StorageError: in place of the operating system's error, which names no place.
    """
    try:
        yield
    except StreamshardError:
        raise
    except OSError as error:
        shared = "/dev/shm"  # noqa: S108 where the C library keeps semaphores
        try:
            room = f"{shutil.disk_usage(shared).free:,} bytes free in {shared}"
        except OSError as missing:
            room = f"{shared}: {missing.strerror}"
        raise StorageError(
            f"DataLoader workers cannot be started ({error}; {room}): make {shared} writable and larger "
            "(docker run --shm-size=1g), raise the limits of processes and open files, or use num_workers=0"
        ) from error

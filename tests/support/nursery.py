"""Processes at the price of a fork, under hostile conditions too: ``python -m tests.support.nursery``.

One process imports what all tests of a module need and forks a child for each. A child is the leader of its own process
group, may become another user, lose its locks, its room on the disk or its surroundings, and then calls one function.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import multiprocessing.util
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

PATIENCE_S = 120.0
"""How long a loaded machine may take for what takes a second. Only a hang uses it up."""
NOBODY = 65534
_MOST_NBYTES = 60_000  # what a pipe takes without a reader


@dataclass(frozen=True)
class Outcome:
    """How a child ended: the value of its function, or the error that ended it, and what it wrote to its streams."""

    code: int
    result: Any
    error: str
    message: str
    seconds: float
    printed: str


class Child:
    """One running function in a process of its own, ended with the block at the latest."""

    def __init__(self, nursery: Nursery, number: int, pid: int, directory: Path) -> None:
        self._nursery = nursery
        self._number = number
        self.pid = pid
        self.output = directory / "printed"

    def is_ended(self, seconds: float) -> bool:
        """Whether it ends within some seconds."""
        return self._nursery.is_ended(self._number, seconds)

    def end(self) -> Outcome:
        """Wait for its end. AssertionError with what it printed where it hangs."""
        code, said = self._nursery.end_of(self._number, self._printed)
        found: dict[str, Any] = {}
        with contextlib.suppress(ValueError):
            found = json.loads(said)
        return Outcome(
            code,
            found.get("result"),
            found.get("error", ""),
            found.get("message", ""),
            found.get("seconds", 0.0),
            self._printed(),
        )

    def signal(self, number: int, *, group: bool = False) -> None:
        """Send a signal to it, or to it and all its children."""
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(self.pid, number)

    def until(self, is_so: Callable[[], Any], what: str) -> Any:
        """Wait until something is true; AssertionError where that takes for ever."""
        deadline = time.monotonic() + PATIENCE_S
        while not (found := is_so()):
            if time.monotonic() > deadline:
                raise AssertionError(f"no {what} in {PATIENCE_S:.0f} s:\n{self._printed()}")
            time.sleep(0.005)
        return found

    def _printed(self) -> str:
        return self.output.read_text(errors="replace")[-8000:]

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *exception: object) -> None:
        self.signal(signal.SIGKILL, group=True)


_shared: list[Nursery] = []


def shared_nursery() -> Nursery:
    """The one of this process, begun when it is asked for first."""
    if not _shared:
        _shared.append(Nursery())
    return _shared[0]


def end_shared_nursery() -> None:
    """End it, if it was begun."""
    while _shared:
        _shared.pop().__exit__()


class Nursery:
    """The process that forks. A context manager."""

    def __init__(self) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="sst-")
        self._here, there = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.nursery", str(there.fileno())],
            cwd=Path(__file__).resolve().parents[2],
            pass_fds=[there.fileno()],
            start_new_session=True,
        )
        there.close()
        self._text = b""
        self._ends: dict[int, tuple[int, str]] = {}
        self._number = 0
        self._here.settimeout(PATIENCE_S)

    def begin(self, target: str, options: Any = None, **conditions: Any) -> Child:
        """Call ``target`` (``module.function`` of ``tests.support``) with ``options`` under the conditions.

        Args:
            conditions: see ``_endure``.
        """
        self._number += 1
        directory = Path(self._scratch.name) / str(self._number)
        directory.mkdir()
        (directory / "printed").touch()
        order = {
            "number": self._number,
            "target": target,
            "options": options,
            "conditions": conditions,
            "directory": str(directory),
        }
        self._here.sendall(json.dumps(order).encode() + b"\n")
        while True:
            said = self._read()
            if "begun" in said:
                return Child(self, self._number, said["begun"], directory)

    def run(self, target: str, options: Any = None, **conditions: Any) -> Outcome:
        """Call ``target`` and wait for its end."""
        with self.begin(target, options, **conditions) as child:
            return child.end()

    def is_ended(self, number: int, seconds: float) -> bool:
        """Whether a child ends within some seconds."""
        deadline = time.monotonic() + seconds
        try:
            while number not in self._ends:
                # 0 would mean not to wait even for the rest of a line.
                self._here.settimeout(max(1e-4, deadline - time.monotonic()))
                self._read()
        except TimeoutError:
            return False
        finally:
            self._here.settimeout(PATIENCE_S)
        return True

    def end_of(self, number: int, printed: Callable[[], str]) -> tuple[int, str]:
        """Wait for the end of a child; minus the number of the signal that ended it, or its status; what it said."""
        while number not in self._ends:
            try:
                self._read()
            except TimeoutError:
                raise AssertionError(f"it hangs:\n{printed()}") from None
        return self._ends[number]

    def _read(self) -> dict[str, Any]:
        while b"\n" not in self._text:
            piece = self._here.recv(65536)
            if not piece:
                raise AssertionError(f"the nursery ended with {self._process.wait()}")
            self._text += piece
        line, self._text = self._text.split(b"\n", 1)
        said: dict[str, Any] = json.loads(line)
        if "ended" in said:
            self._ends[said["ended"]] = (said["code"], said["outcome"])
        return said

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *exception: object) -> None:
        self._here.close()
        self._process.wait(PATIENCE_S)
        self._scratch.cleanup()


def _endure(conditions: dict[str, Any]) -> None:
    """Make the surroundings hostile.

    Conditions:
        surroundings: all variables.
        environment: variables to set, or with None to unset.
        user: become this user and group.
        file_nbytes: no file may grow beyond these (RLIMIT_FSIZE); a write beyond is EFBIG.
        no_locks: ``flock`` fails with this errno.
        small_disk: [directory, nbytes]: a tmpfs of that size, in a mount name space of its own.
        read_only: directory that is mounted read-only, in a mount name space of its own.
        clock_s: the wall clock jumps by so many seconds, there and back, each time that it is looked at.
    """
    for mount in ("small_disk", "read_only"):
        if mount in conditions:
            _mount(mount, conditions[mount])
    if "surroundings" in conditions:
        os.environ.clear()
        os.environ.update(conditions["surroundings"])
        tempfile.tempdir = None  # which it remembers
    for name, value in conditions.get("environment", {}).items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if "clock_s" in conditions:
        time.time, time.time_ns = _jumping(conditions["clock_s"])
    if "no_locks" in conditions:
        fcntl.flock = _without_locks(conditions["no_locks"])  # type: ignore[assignment]
    if "file_nbytes" in conditions:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (conditions["file_nbytes"],) * 2)
    if "user" in conditions:
        os.setgroups([])
        os.setgid(conditions["user"])
        os.setuid(conditions["user"])


def _mount(kind: str, what: Any) -> None:
    def mount(*arguments: str) -> None:
        subprocess.run(["mount", *arguments], check=True, capture_output=True)

    os.unshare(os.CLONE_NEWNS) if hasattr(os, "unshare") else _unshare()
    mount("--make-rprivate", "/")
    if kind == "small_disk":
        directory, nbytes = what
        mount("-t", "tmpfs", "-o", f"size={nbytes},mode=1777", "tmpfs", directory)
    else:
        mount("--bind", what, what)
        mount("-o", "remount,bind,ro", what)


def _unshare() -> None:
    import ctypes

    if ctypes.CDLL(None, use_errno=True).unshare(0x00020000):  # CLONE_NEWNS
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _without_locks(number: int) -> Callable[..., None]:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    return flock


def _jumping(seconds: float) -> tuple[Callable[[], float], Callable[[], int]]:
    real, offsets = time.time, itertools.cycle((0.0, seconds, 0.0, -seconds))

    def now() -> float:
        return real() + next(offsets)

    return now, lambda: round(now() * 1e9)


def may_mount() -> bool:
    """Whether this user may mount file systems here."""
    pid = os.fork()
    if not pid:
        try:
            with tempfile.TemporaryDirectory() as directory:
                _mount("small_disk", [directory, 1 << 20])
                subprocess.run(["umount", directory], check=True, capture_output=True)
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def _live(order: dict[str, Any], outcome: int) -> None:
    """Be the child, which tells its outcome through a pipe: it may be allowed to write no file."""
    os.setpgid(0, 0)
    printed = os.open(Path(order["directory"]) / "printed", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    begin = time.monotonic()
    try:
        _endure(order["conditions"])
        module, _, function = order["target"].rpartition(".")
        said: dict[str, Any] = {
            "result": getattr(import_module(f"tests.support.{module}"), function)(order["options"])
        }
    except BaseException as error:
        with contextlib.suppress(OSError):
            traceback.print_exc()
        said = {"error": type(error).__name__, "message": str(error)}
    said["seconds"] = time.monotonic() - begin
    os.write(outcome, json.dumps(said).encode()[:_MOST_NBYTES])


def _serve(connection: socket.socket) -> None:
    import selectors

    awake, wake = socket.socketpair()
    for end in (awake, wake):
        end.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: dict[int, tuple[int, int]] = {}
    waiting = selectors.DefaultSelector()
    waiting.register(connection, selectors.EVENT_READ)
    waiting.register(awake, selectors.EVENT_READ)
    text = b""
    while True:
        for key, _ in waiting.select():
            if key.fileobj is awake:
                awake.recv(4096)
                continue
            piece = b""
            with contextlib.suppress(ConnectionError):  # a test run that was killed
                piece = connection.recv(65536)
            if not piece:
                for pid in children:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(pid, signal.SIGKILL)
                return
            *orders, text = (text + piece).split(b"\n")
            for line in orders:
                order = json.loads(line)
                told, telling = os.pipe()
                pid = os.fork()
                if not pid:
                    os.close(told)
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for end in (connection, awake, wake):
                        end.close()
                    _live(order, telling)
                    with contextlib.suppress(OSError):
                        sys.stdout.flush()
                    # As a child of multiprocessing ends. Taking the interpreter down would take seconds.
                    multiprocessing.util._exit_function()
                    os._exit(0)
                with contextlib.suppress(PermissionError, ProcessLookupError):
                    os.setpgid(pid, pid)  # whoever comes first: it can be signalled from now on
                os.close(telling)
                os.set_blocking(told, False)
                children[pid] = (order["number"], told)
                connection.sendall(json.dumps({"begun": pid}).encode() + b"\n")
        for pid, code in _ended():
            number, told = children.pop(pid)
            try:
                outcome = os.read(told, _MOST_NBYTES).decode(errors="replace")
            except BlockingIOError:
                outcome = ""  # killed, and outlived by children of its own
            os.close(told)
            said = {"ended": number, "code": code, "outcome": outcome}
            connection.sendall(json.dumps(said).encode() + b"\n")


def _ended() -> Iterator[tuple[int, int]]:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        yield pid, os.waitstatus_to_exitcode(status)


def main() -> None:
    from tests.support import hardships  # noqa: F401 the imports that each child then has

    _serve(socket.socket(fileno=int(sys.argv[1])))
    os._exit(0)


if __name__ == "__main__":
    main()

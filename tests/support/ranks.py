"""Start training jobs of several real ranks, follow them, and kill them whole.

A job is a launcher process, its ranks and their DataLoader workers, all in one process group that dies when the job is
killed or the test run ends, however that happens.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.support.nursery import Child, shared_nursery

PATIENCE_S = 200.0
"""How long a loaded machine may take for what takes seconds. Only a hang uses it up."""

_LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Job:
    """One run of ``target`` (a function of ``tests.support.trainers``) on some ranks.

    Args:
        target: its name; called as ``target(rank, options)``. ``module.name`` is in ``tests.support.module``.
        ranks: how many ranks; 0 calls ``target(0, options)`` in the launcher itself.
        options: anything that JSON can hold.
        method: how the ranks are started.
        group: start a gloo process group, by arguments and a file alone.
        environment: added to this process's; a launcher's rank variables are taken out of that.
        anew: the launcher begins with nothing and ends with all that an interpreter's end is, as a user's does. Else
            it is a fork of a process that has imported what ranks need, which takes seconds.
    """

    def __init__(
        self,
        target: str,
        ranks: int,
        options: Mapping[str, Any],
        *,
        method: str = "fork",
        group: bool = True,
        environment: Mapping[str, str] | None = None,
        anew: bool = False,
    ) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="streamshard-job-")
        directory = Path(self._directory.name)
        config = {
            "target": target,
            "ranks": ranks,
            "options": dict(options),
            "method": method,
            "rendezvous": str(directory / "rendezvous") if group else None,
        }
        variables = {name: value for name, value in os.environ.items() if name not in _LAUNCHER_VARIABLES}
        variables.update(environment or {})
        self.process: subprocess.Popen[bytes] | _Forked
        if method == "fork" and not anew:
            child = shared_nursery().begin("rank_launcher.launch", config, surroundings=variables)
            self.process = _Forked(child)
            self.output = child.output
            return
        self.output = directory / "output.txt"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.rank_launcher", json.dumps(config)],
                stdin=subprocess.PIPE,  # the launcher kills its group when this closes
                stdout=output,
                stderr=output,
                cwd=Path(__file__).resolve().parents[2],
                env=variables,
                start_new_session=True,
            )

    def wait(self) -> str:
        """Wait until the job has ended well; return what it printed."""
        code = self.end()
        if code:
            raise AssertionError(f"the job ended with {code}:\n{self.printed()}")
        return self.printed()

    def end(self) -> int:
        """Wait until the job has ended, however; return its exit code."""
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            text = f"the job did not end in {PATIENCE_S:.0f} s:\n{self.printed()}"
            raise AssertionError(f"{text}\nwhere it stands:\n{self._stacks()}") from None

    def _stacks(self) -> str:
        """Let each process say where its threads are."""
        before = self.output.stat().st_size
        for pid in sorted(processes_of_group(self.process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.5)
        with self.output.open("rb") as output:
            output.seek(before)
            return output.read(60_000).decode(errors="replace")

    def until(self, is_so: Callable[[], Any], what: str, *, poll_s: float = 0.01) -> Any:
        """Wait until something is true of the running job; AssertionError if it ends before that."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            ended = self.process.poll() is not None
            result = is_so()
            if result:
                return result
            if ended:
                raise AssertionError(f"the job ended before {what}:\n{self.printed()}")
            if time.monotonic() > deadline:
                raise AssertionError(f"no {what} in {PATIENCE_S:.0f} s:\n{self.printed()}")
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(poll_s)

    def kill(self) -> None:
        """SIGKILL everything at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_S)
        wait_for_group_end(self.process.pid)

    def printed(self) -> str:
        return self.output.read_text(errors="replace")[-6000:]

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()
        if self.process.stdin is not None:
            self.process.stdin.close()
        self._directory.cleanup()


class _Forked:
    """A child of the nursery, used as a ``Popen``."""

    stdin = None

    def __init__(self, child: Child) -> None:
        self._child = child
        self.pid = child.pid

    def poll(self) -> int | None:
        return self._code() if self._child.is_ended(0) else None

    def wait(self, seconds: float) -> int:
        if not self._child.is_ended(seconds):
            raise subprocess.TimeoutExpired("rank_launcher.launch", seconds)
        return self._code()

    def _code(self) -> int:
        end = self._child.end()
        return end.code or bool(end.error)


def wait_for_group_end(group: int) -> None:
    """Wait until no process of a process group is left."""
    deadline = time.monotonic() + PATIENCE_S
    while members := processes_of_group(group):
        if time.monotonic() > deadline:
            raise AssertionError(f"processes {members} of group {group} outlive SIGKILL")
        time.sleep(0.01)


def processes_of_group(group: int) -> list[int]:
    """Living processes of a process group."""
    import psutil

    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, psutil.Error):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The JSON lines of a log that may be half-written at its end."""
    if not path.exists():
        return []
    text = path.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


@contextlib.contextmanager
def jobs(*begun: Job) -> Iterator[tuple[Job, ...]]:
    """End several jobs together."""
    with contextlib.ExitStack() as stack:
        for job in begun:
            stack.enter_context(job)
        yield begun

"""Worker processes of a conversion: copies of this one or started anew, fed over pipes, watched for death."""

from __future__ import annotations

import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import IO, Any, Protocol

from streamshard.convert.copies import CopiedProcess, may_copy
from streamshard.convert.interrupts import interrupts_later
from streamshard.convert.places import forget_stores
from streamshard.convert.scan import Advance
from streamshard.convert.worker import DONE, FAILED, PROGRESS, run_task
from streamshard.errors import ConvertError, StreamshardError

_DIED = "died"
_SECONDS_TO_END = 10


class Task(Protocol):
    """One unit of work; ``label`` says what it does, for messages."""

    @property
    def label(self) -> str: ...


class WorkerTracebackError(Exception):
    """The traceback of an error in a worker process, as the cause of the same error here."""


class Workers:
    """Runs units of work in up to ``num_workers`` processes; with one, in this process.

    Processes are started when there is work for them and kept for the next batch of tasks.
    """

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._running: list[_Worker] = []

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._running:
            worker.stop(at_once=kind is not None)
        for worker in self._running:
            worker.wait()
        self._running = []
        forget_stores()

    def run(
        self, function: str, tasks: Sequence[Task], advance: Advance, finished: Callable[[int], None]
    ) -> None:
        """Run ``function`` (``"scan"`` or ``"write"``) on all tasks; ``finished`` gets each result.

        Both callbacks run in the calling thread.

        Raises:
            ConvertError: a worker died.
            Exception: the first error of a task; other tasks may be left undone.
        """
        if min(self._num_workers, len(tasks)) <= 1:
            for task in tasks:
                finished(run_task(function, task, advance))
            return
        while len(self._running) < min(self._num_workers, len(tasks)):
            with interrupts_later():
                self._running.append(_Worker())
        events: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        feed = _Feed(function, tasks)
        threads = [
            threading.Thread(target=worker.serve, args=(feed, events), daemon=True)
            for worker in self._running
        ]
        for thread in threads:
            thread.start()
        left = len(tasks)
        while left:
            kind, *values = events.get()
            if kind == PROGRESS:
                advance(*values)
            elif kind == DONE:
                left -= 1
                finished(*values)
            elif kind == FAILED:
                error, text = values
                if isinstance(error, StreamshardError):
                    raise error
                raise error from WorkerTracebackError(f"\n{text}")
            else:
                raise ConvertError(_death_text(*values))
        for thread in threads:
            thread.join()


class _Feed:
    """Hands out tasks to threads."""

    def __init__(self, function: str, tasks: Sequence[Task]) -> None:
        self.function = function
        self._tasks = iter(tasks)
        self._lock = threading.Lock()

    def take(self) -> Task | None:
        with self._lock:
            return next(self._tasks, None)


class _Process(Protocol):
    """What :class:`subprocess.Popen` and :class:`~streamshard.convert.copies.CopiedProcess` have in common."""

    @property
    def pid(self) -> int: ...

    @property
    def stdin(self) -> IO[bytes] | None: ...

    @property
    def stdout(self) -> IO[bytes] | None: ...

    def kill(self) -> None: ...

    def wait(self, timeout: float | None = None) -> int: ...


class _Worker:
    def __init__(self) -> None:
        self._process: _Process = CopiedProcess() if may_copy() else _start_anew()

    def serve(self, feed: _Feed, events: queue.SimpleQueue[tuple[Any, ...]]) -> None:
        """Pass tasks to the process until there are none, and its messages to ``events``."""
        while (task := feed.take()) is not None:
            try:
                self._send((feed.function, task))
                message = self._receive()
                while message[0] == PROGRESS:
                    events.put(message)
                    message = self._receive()
            except (EOFError, OSError, ValueError, pickle.UnpicklingError):
                self._process.kill()
                events.put((_DIED, self._process.pid, self._process.wait(), task.label))
                return
            events.put(message)
            if message[0] == FAILED:
                return

    def stop(self, *, at_once: bool) -> None:
        """Have the process end: at once, or when it has finished what it does."""
        if at_once:
            self._process.kill()
        else:
            try:
                self._send(None)
            except OSError:
                self._process.kill()

    def wait(self) -> None:
        """Wait for a process that was stopped to end."""
        try:
            self._process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue

    def _send(self, message: Any) -> None:
        pipe = self._process.stdin
        if pipe is None:
            raise EOFError
        pickle.dump(message, pipe)
        pipe.flush()

    def _receive(self) -> Any:
        pipe = self._process.stdout
        if pipe is None:
            raise EOFError
        return pickle.load(pipe)  # noqa: S301 written by our own child


def _start_anew() -> subprocess.Popen[bytes]:
    # The path is set before anything is imported: a module in the current directory must not come first.
    code = f"import sys; sys.path[:] = {sys.path!r}; from streamshard.convert.worker import main; main()"
    # A session of its own: Ctrl-C reaches the parent alone, which then ends its workers.
    return subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )


def _death_text(pid: int, code: int, label: str) -> str:
    if code == -signal.SIGKILL:
        how = (
            "was killed by SIGKILL (most often the kernel's out-of-memory killer: use fewer --workers or a smaller"
            " --size-limit)"
        )
    elif code < 0:
        how = f"was killed by {signal.Signals(-code).name}"
    else:
        how = f"ended with exit code {code}"
    return f"worker process {pid} {how} while {label}; run the same command again to go on from here"

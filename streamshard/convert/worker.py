"""What a worker process runs: tasks from its standard input, results to its standard output.

Messages are pickles between one parent and its own children. When the parent dies, however it dies, standard
input ends, and the worker ends with it at once: no worker outlives a killed conversion.
"""

from __future__ import annotations

import gc
import os
import pickle
import queue
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, BinaryIO

from streamshard.convert.scan import Advance, scan_chunk
from streamshard.convert.shards import write_planned_shard
from streamshard.convert.staging import stage_input
from streamshard.errors import ConvertError

FUNCTIONS: dict[str, Callable[[Any, Advance], int]] = {
    "stage": stage_input,
    "scan": scan_chunk,
    "write": write_planned_shard,
}

PROGRESS, DONE, FAILED = "progress", "done", "failed"
_SECONDS_BETWEEN_REPORTS = 0.1
# Records hold no circles, and dozens of them wait at a time.
_OBJECTS_BETWEEN_COLLECTIONS = 10_000


def run_task(name: str, task: Any, advance: Advance) -> int:
    """Carry out a unit of work.

    Raises:
        ConvertError: the memory of this machine did not suffice for it, among other things.
    """
    try:
        return FUNCTIONS[name](task, advance)
    except MemoryError as error:
        raise ConvertError(out_of_memory(task.label)) from error


def out_of_memory(label: str) -> str:
    """What to say where memory ran out in a unit of work."""
    return (
        f"no memory was left while {label}: use fewer --workers or a smaller --size-limit; the same command goes on"
        " from here"
    )


class Reports:
    """Adds up progress and passes it on a few times a second."""

    def __init__(self, send: Callable[[int, int], None]) -> None:
        self._send = send
        self._nbytes = self._samples = 0
        self._last = time.monotonic()

    def advance(self, nbytes: int, samples: int) -> None:
        self._nbytes += nbytes
        self._samples += samples
        if time.monotonic() - self._last >= _SECONDS_BETWEEN_REPORTS:
            self.flush()

    def flush(self) -> None:
        if self._nbytes or self._samples:
            self._send(self._nbytes, self._samples)
        self._nbytes = self._samples = 0
        self._last = time.monotonic()


def main() -> None:
    """Serve tasks until the parent says stop or is gone."""
    # A copy shares the memory of what was loaded before, which looking for garbage in it would change.
    gc.freeze()
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    # First: if standard error is closed, this takes its number.
    nothing = os.open(os.devnull, os.O_RDWR)
    replies = os.fdopen(os.dup(1), "wb")
    tasks = os.fdopen(os.dup(0), "rb")
    # Whatever a library prints must not get between the messages.
    os.dup2(2, 1)
    os.dup2(nothing, 0)
    if nothing > 2:
        os.close(nothing)
    received: queue.SimpleQueue[tuple[str, Any] | None] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(tasks, received), daemon=True).start()

    def send(*message: Any) -> None:
        try:
            pickle.dump(message, replies)
            replies.flush()
        except BrokenPipeError:
            os._exit(1)

    reports = Reports(lambda nbytes, samples: send(PROGRESS, nbytes, samples))
    while (task := received.get()) is not None:
        name, argument = task
        try:
            result = run_task(name, argument, reports.advance)
        except Exception as error:  # noqa: BLE001 it is raised again in the parent
            send(FAILED, *_portable(error))
        else:
            reports.flush()
            send(DONE, result)


def _receive(tasks: BinaryIO, received: queue.SimpleQueue[tuple[str, Any] | None]) -> None:
    while True:
        try:
            message = pickle.load(tasks)  # noqa: S301 written by our own parent
        except (EOFError, OSError, pickle.UnpicklingError):
            os._exit(1)
        received.put(message)
        if message is None:
            return


def _portable(error: Exception) -> tuple[Exception, str]:
    text = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 made here
    except Exception:  # noqa: BLE001 an error of any class whose pickling may fail in any way
        return RuntimeError(f"{type(error).__name__}: {error}"), text
    return error, text

"""Worker processes as copies of this one: they start in milliseconds, since nothing has to be imported again.

A copy has the memory of its parent and one thread alone. So it is made only where the parent has no other thread, of
Python or of a library, that could hold a lock which nobody would ever give back in the copy.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import traceback
from typing import BinaryIO

from streamshard.convert.worker import main


def may_copy() -> bool:
    """Whether this process can be copied safely: Linux, one thread in all, and a kernel with pidfd."""
    if not hasattr(os, "pidfd_open"):
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
        return len(os.listdir("/proc/self/task")) == 1  # noqa: PTH208 names are enough
    except OSError:
        return False


class CopiedProcess:
    """A worker that is a copy of this process, with as much of ``subprocess.Popen`` as is needed of it."""

    stdin: BinaryIO
    stdout: BinaryIO

    def __init__(self) -> None:
        tasks, to_tasks = os.pipe()
        from_replies, replies = os.pipe()
        # What waits in a buffer must not be written twice.
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if not self.pid:
            _serve(tasks, replies)
        os.close(tasks)
        os.close(replies)
        self.stdin = os.fdopen(to_tasks, "wb")
        self.stdout = os.fdopen(from_replies, "rb")
        self._reaping = threading.Lock()  # several threads may wait for one worker
        self._code: int | None = None

    def kill(self) -> None:
        """End it with SIGKILL."""
        with self._reaping:
            if self._code is None:
                os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and give its exit code, or the number of the signal that ended it, negative.

        Raises:
            subprocess.TimeoutExpired: it runs longer than ``timeout`` seconds.
        """
        with self._reaping:
            if self._code is not None:
                return self._code
            ended = os.pidfd_open(self.pid)
        try:
            if not select.select([ended], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("worker", timeout or 0)
        finally:
            os.close(ended)
        with self._reaping:
            if self._code is None:
                self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            return self._code


def _serve(tasks: int, replies: int) -> None:
    """Be a worker until there is nothing more to do; never returns."""
    code = 1
    try:
        # A session of its own: Ctrl-C reaches the parent alone, which then ends its workers.
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(tasks, 0)
        os.dup2(replies, 1)
        # Pipes of other workers and the lock of the journal must not outlive the parent. The numbers stay taken, so
        # that objects of the parent, when they are collected here, close nothing of ours.
        nothing = os.open(os.devnull, os.O_RDWR)
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 names are enough
            if int(name) > 2:
                os.dup2(nothing, int(name))
        main()
        code = 0
    except BaseException:  # noqa: BLE001 whatever it is: the parent's frames must not go on in a copy
        traceback.print_exc()
    finally:
        os._exit(code)

"""Workers whose trainer is gone."""

from __future__ import annotations

import os
import time
from multiprocessing.util import Finalize
from threading import Thread

_POLL_S = 0.5

_prepared_in: int | None = None


def end_without_trainer() -> None:
    """See to it that this worker process ends also when nobody takes its last batches; once a process.

    A process that ends waits until all that is in its queues is written. What a killed trainer has not taken nobody
    takes, and no error tells, since a forked worker holds the other end of that pipe as well: torch's worker sees that
    its trainer is gone, ends, and waits for ever. With it waits whoever follows the trainer by something that the
    worker has inherited, as ``torch.multiprocessing.spawn`` does.
    """
    global _prepared_in
    if _prepared_in != os.getpid():
        _prepared_in = os.getpid()
        # Of those with a priority of zero or more, which come before the queues are waited for.
        Finalize(None, _watch, args=(os.getppid(),), exitpriority=0)


def _watch(trainer: int) -> None:
    Thread(target=_end_with, args=(trainer,), daemon=True, name="streamshard-orphan").start()


def _end_with(trainer: int) -> None:
    while os.getppid() == trainer:  # as torch's workers look for it, too
        time.sleep(_POLL_S)
    os._exit(1)

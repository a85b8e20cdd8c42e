"""Interrupts that wait until something has been done as a whole."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def interrupts_later() -> Iterator[None]:
    """Have the handlers of SIGINT and SIGTERM run after the block, and not inside it.

    Python prints and drops what they raise in its hooks around a fork, which would lose a Ctrl-C; and a process that
    was started in an interrupted block would be known to nobody. Signals that Python does not handle, and those of
    other threads than the main one, are left as they are.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        if number not in came:
            came.append(number)

    def raise_again() -> None:
        for number in came:
            signal.raise_signal(number)

    with contextlib.ExitStack() as after:
        # Pushed first, so it is done last: each handler is in its place again.
        after.callback(raise_again)
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            if callable(handler):
                after.callback(signal.signal, number, handler)
                signal.signal(number, note)
        yield

"""Interrupts at a chosen line of a function, as a Ctrl-C may come between any two of them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


class Came:
    """Whether the interrupt has come."""

    def __init__(self) -> None:
        self.yes = False


@contextlib.contextmanager
def interrupted(function: Callable[..., Any], line: int) -> Iterator[Came]:
    """Raise KeyboardInterrupt once, before line number ``line`` (from 0) that calls of the function go through.

    It ends the block. Where the calls of the block have fewer lines, nothing is raised.
    """
    came, seen = Came(), 0

    def of_function(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal seen
        if event == "line":
            seen += 1
            if seen > line and not came.yes:
                came.yes = True
                raise KeyboardInterrupt
        return of_function

    def of_all(frame: FrameType, _event: str, _argument: Any) -> Any:
        return of_function if frame.f_code is function.__code__ else None

    before = sys.gettrace()
    sys.settrace(of_all)
    try:
        yield came
    except KeyboardInterrupt:
        if not came.yes:
            raise
    finally:
        sys.settrace(before)

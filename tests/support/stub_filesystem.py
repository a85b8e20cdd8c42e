"""A file system for fsspec that fails on command, registered as ``stub://``."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem


class StubFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """fsspec's memory file system, which remembers how it was made and asks ``behave`` before each call."""

    protocol = "stub"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    made_with: ClassVar[list[dict[str, Any]]] = []
    calls: ClassVar[list[str]] = []
    behave: ClassVar[Callable[[StubFileSystem, str, str], None] | None] = None
    released = threading.Event()

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.reads = 0
        StubFileSystem.made_with.append(options)

    @classmethod
    def reset(cls) -> None:
        cls.store.clear()
        cls.pseudo_dirs[:] = [""]
        cls.made_with.clear()
        cls.calls.clear()
        cls.behave = None
        cls.released = threading.Event()

    def _ask(self, call: str, path: str) -> None:
        StubFileSystem.calls.append(call)
        behave = StubFileSystem.behave
        if behave is not None:
            behave(self, call, path)

    def info(self, path: str, **options: Any) -> Any:
        self._ask("info", path)
        return super().info(path, **options)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> Any:
        self.reads += 1
        self._ask("read", path)
        return super().cat_file(path, start=start, end=end, **options)

    def put_file(self, lpath: str, rpath: str, **options: Any) -> Any:
        self._ask("put", rpath)
        return super().put_file(lpath, rpath, **options)


fsspec.register_implementation("stub", StubFileSystem, clobber=True)

"""A process of its own that uses a node cache: ``python -m tests.support.cache_client JSON``.

Reads the files ``names`` of the directory ``source`` through a cache in ``directory``, checks every byte, and prints
the names that it read, as one JSON list. Each download is appended to the file ``log``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from streamshard.errors import ChecksumError
from streamshard.storage import Blob, NodeCache, RetryPolicy
from streamshard.storage.local_store import LocalStore


def body_of(name: str, nbytes: int) -> bytes:
    """The content that the file ``name`` has in these tests."""
    seed = hashlib.sha256(name.encode()).digest()
    return (seed * (nbytes // len(seed) + 1))[:nbytes]


def fill(source: Path, count: int, nbytes: int) -> list[str]:
    """Write ``count`` files of ``nbytes`` into ``source`` and return their names."""
    source.mkdir(parents=True, exist_ok=True)
    names = [f"shard.{number:05}.mds" for number in range(count)]
    for name in names:
        (source / name).write_bytes(body_of(name, nbytes))
    return names


def check_of(name: str, nbytes: int) -> Callable[[Path], None]:
    """A check that the file ``name`` has its content, as a hash in an index gives one."""
    expected = hashlib.sha256(body_of(name, nbytes)).hexdigest()

    def check(path: Path) -> None:
        actual = hashlib.sha256(path.read_bytes()).hexdigest()
        if actual != expected:
            raise ChecksumError(f"file {name!r}: sha256 is {actual}, expected {expected}")

    return check


def blob_of(name: str, nbytes: int, *, checked: bool = True) -> Blob:
    return Blob(name, nbytes, name, nbytes, check=check_of(name, nbytes) if checked else None)


class SlowStore(LocalStore):
    """A directory that writes down each download, and takes ``seconds`` for it."""

    def __init__(self, root: Path, log: Path, seconds: float = 0.0) -> None:
        super().__init__(root)
        self.log = log
        self.seconds = seconds

    def fetch_to(self, key: str, path: Path, **options: Any) -> int:
        with open(self.log, "a") as log:
            log.write(f"{key}\n")
        progress = options.get("progress")
        end = time.monotonic() + self.seconds
        while time.monotonic() < end:
            time.sleep(min(0.02, self.seconds))
            if progress is not None:
                progress(0)
        return super().fetch_to(key, path, **options)


def main() -> None:
    order = json.loads(sys.argv[1])
    nbytes = order["nbytes"]
    store = SlowStore(Path(order["source"]), Path(order["log"]), order.get("seconds", 0.0))
    cache = NodeCache(
        Path(order["directory"]),
        store,
        digest="digest",
        retry=RetryPolicy(timeout_s=order.get("timeout_s", 20.0), backoff_s=0.01),
        limit_bytes=order.get("limit_bytes"),
    )
    read = []
    print("ready", flush=True)
    for name in order["names"]:
        with cache.open(blob_of(name, nbytes)) as file:
            if order.get("hold_s"):
                time.sleep(order["hold_s"])
            payload = os.pread(file.fileno(), nbytes + 1, 0)
            if payload != body_of(name, nbytes):
                raise SystemExit(f"{name}: wrong bytes")
            # The name is there as long as the file is held.
            if not file.path.exists():
                raise SystemExit(f"{name}: deleted while it was held")
        read.append(name)
    print(json.dumps(read), flush=True)


class Client:
    """A running client process."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 lives as long as the process
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.cache_client", json.dumps(order)],
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=Path(__file__).parents[2],
        )

    def wait_until_ready(self) -> None:
        """Wait until it has its cache and is about to read the first file."""
        if self._line() != "ready":
            raise RuntimeError(f"the client did not start:\n{self._end()}")

    def finish(self, timeout_s: float = 60.0) -> list[str]:
        """Wait for its end and return the names that it read; RuntimeError with its traceback if it failed."""
        timer = threading.Timer(timeout_s, self.process.kill)
        timer.start()
        try:
            line = self._line()
            if line == "ready":
                line = self._line()
        finally:
            timer.cancel()
            timer.join()
        errors = self._end()
        if self.process.returncode != 0 or not line:
            raise RuntimeError(f"client ended with {self.process.returncode}:\n{errors}")
        names: list[str] = json.loads(line)
        return names

    def kill(self) -> None:
        """End it as SIGKILL does."""
        self.process.kill()
        self._end()

    def _line(self) -> str:
        # Not communicate(), which would miss what an earlier readline() has taken out of the pipe.
        return self.process.stdout.readline().strip() if self.process.stdout is not None else ""

    def _end(self) -> str:
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._errors.seek(0)
        with self._errors:
            return self._errors.read()


def ours_in(directory: Path) -> int:
    """Bytes of all cached and partial files below ``directory``, markers and locks left out."""
    total = 0
    for folder, _, names in os.walk(directory):  # passes over what vanishes meanwhile
        parts = Path(folder).parts
        if ".streamshard" not in parts or "jobs" in parts:
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    total += os.lstat(os.path.join(folder, name)).st_size
    return total


if __name__ == "__main__":
    main()

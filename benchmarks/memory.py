"""Memory of this process in bytes, from the kernel's own books (Linux)."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path


def private_nbytes(pid: int | str = "self") -> int:
    """Bytes that only this process, or another one, has (USS): what ending it would free."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(
        int(line.split()[1]) * 1024
        for line in text.splitlines()
        if line.startswith(("Private_Clean:", "Private_Dirty:", "Private_Hugetlb:"))
    )


def resident_nbytes() -> int:
    """Bytes in memory now, shared libraries included."""
    return _status("VmRSS")


def forget_peak() -> None:
    """Begin to count the peak anew."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_nbytes() -> int:
    """Most bytes in memory since ``forget_peak``; its growth bounds that of private bytes from above."""
    return _status("VmHWM")


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {key}")


class Meter:
    """Seconds, those of CPU, and memory from its making until ``read``."""

    def __init__(self) -> None:
        forget_peak()
        self._private, self._resident = private_nbytes(), resident_nbytes()
        self._start, self._cpu = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        seconds = time.perf_counter() - self._start
        return {
            "seconds": seconds,
            "cpu_s": time.process_time() - self._cpu,
            "private_mb": (private_nbytes() - self._private) / 1e6,
            "peak_mb": (peak_nbytes() - self._resident) / 1e6,
        }


def private_nbytes_of_children() -> int:
    """Bytes that only the processes have that this one has started."""
    return sum(_private_or_none(pid) for pid in _children("self"))


def private_nbytes_of_all(pid: int | str) -> int:
    """Bytes that only a process has, or one that it has started, or one that such a one has."""
    return _private_or_none(pid) + sum(private_nbytes_of_all(child) for child in _children(pid))


def _children(pid: int | str) -> list[str]:
    listed = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            listed += path.read_text().split()
    return listed


def _private_or_none(pid: int | str) -> int:
    try:
        return private_nbytes(pid)
    except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        return 0

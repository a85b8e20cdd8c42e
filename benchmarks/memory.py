"""Memory of this process in bytes, from the kernel's own books (Linux)."""

from __future__ import annotations

from pathlib import Path


def private_nbytes() -> int:
    """Bytes that only this process has (USS): what ending it would free."""
    text = Path("/proc/self/smaps_rollup").read_text()
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

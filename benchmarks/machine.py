"""What a result was measured on: machine, versions, commit. Holds no host name and no path."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_PACKAGES = (
    *("streamshard", "mosaicml-streaming", "litdata", "zephon", "webdataset", "grain"),
    *("numpy", "torch", "pillow", "xxhash", "zstandard"),
)


def describe_machine(directory: Path) -> dict[str, Any]:
    """Describe this machine and the file system that ``directory`` is on."""
    return {
        "cpu": _field("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": num_cores(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "file_system": _file_system(directory),
        "load_before": round(os.getloadavg()[0], 2),
    }


def num_cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def versions() -> dict[str, str]:
    """Give the versions of Python and of what is installed of the packages that matter here."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str:
    """Give the commit of the working tree, with ``+changes`` where the package itself differs from it."""
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", "streamshard", "benchmarks")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+changes" if changed else "")


def now() -> str:
    """Give the time in UTC, to the minute."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def _field(path: str, key: str) -> str | None:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), None)


def _file_system(directory: Path) -> str:
    """Give the type of the file system with the longest mount point above ``directory``."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "unknown"
    above = {str(directory.resolve()), *map(str, directory.resolve().parents)}
    return max((len(point), kind) for point, kind in mounts if point in above)[1]


def memory_directory(otherwise: Path) -> Path:
    """A directory of a file system in memory, or ``otherwise`` where there is none."""
    memory = Path("/dev/shm")  # only directories with random names are made there
    return memory if memory.is_dir() and os.access(memory, os.W_OK) else otherwise

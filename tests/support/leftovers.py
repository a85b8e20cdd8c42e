"""What processes leave in shared memory and in the directory for temporary files, and hold of deleted files."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

_SHARED_MEMORY = Path("/dev/shm")


def left_in_shared_memory(pids: Collection[int]) -> list[str]:
    """Names in /dev/shm that bear the number of one of some processes, as torch's and multiprocessing's do."""
    if not _SHARED_MEMORY.is_dir():
        return []
    return sorted(
        path.name
        for path in _SHARED_MEMORY.iterdir()
        if any(int(digits) in pids for digits in re.findall(r"\d{1,9}", path.name))
    )


def left_in(directory: Path) -> list[str]:
    """Everything below a directory."""
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


def deleted_but_held(directory: Path, pids: Collection[int]) -> int:
    """Bytes on the disk of files below ``directory`` that are deleted, and that some processes have open or mapped."""
    found: dict[int, int] = {}
    for pid in pids:
        with suppress(OSError):  # the process has ended
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                if str(directory) in line and line.endswith("(deleted)"):
                    bounds, _, _, _, inode, *_ = line.split()
                    begin, end = (int(bound, 16) for bound in bounds.split("-"))
                    found[int(inode)] = max(found.get(int(inode), 0), end - begin)
            for name in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    link = f"/proc/{pid}/fd/{name}"
                    target = os.readlink(link)
                    if target.startswith(str(directory)) and target.endswith("(deleted)"):
                        found[os.stat(link).st_ino] = os.stat(link).st_size
    return sum(found.values())

"""What processes leave in shared memory and in the directory for temporary files."""

from __future__ import annotations

import re
from collections.abc import Collection
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

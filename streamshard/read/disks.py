"""Which files may be mapped into memory: only those on a file system that lives in this machine."""

from __future__ import annotations

import functools
import os
from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")
_LOCAL_TYPES = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"}
)


@functools.lru_cache(maxsize=256)
def is_local_device(device: int) -> bool:
    """Tell whether ``st_dev`` is a known local file system; ``False`` where that cannot be found out.

    Network and FUSE mounts, everything unknown, and systems without ``/proc`` count as not local: a mapped
    file whose server goes away ends the process by SIGBUS, and ``pread`` is right everywhere.
    """
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    return any(_parse_mount(line) == (wanted, True) for line in lines)


def _parse_mount(line: str) -> tuple[str, bool]:
    """Return (``major:minor``, is a local type) of one mountinfo line (proc(5): the type follows `` - ``)."""
    left, _, right = line.partition(" - ")
    fields, kind = left.split(), right.split()
    return (fields[2] if len(fields) > 2 else "", bool(kind) and kind[0] in _LOCAL_TYPES)

"""How much memory this process and what the system keeps of its files may take together."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def memory_nbytes() -> int:
    """Give the bytes of this machine's memory, or of the control groups (version 2) of this process, if less."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):
        own = _OWN.read_text().rpartition("0::")[2].strip()
        group = _GROUPS / own.strip("/")
        for each in (group, *group.parents):
            if each == _GROUPS.parent:
                break
            with contextlib.suppress(OSError, ValueError):  # "max", or no such file, as at the root
                found = min(found, int((each / "memory.max").read_text()))
    return found

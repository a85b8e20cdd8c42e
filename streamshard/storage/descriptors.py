"""How many files a process may have open at once: some systems, as macOS, start with 256."""

from __future__ import annotations

import resource

_UNLIMITED = 1 << 20


def most_open_files() -> int:
    """Give the limit of this process (``ulimit -n``), at most 2**20."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNLIMITED if files == resource.RLIM_INFINITY else min(files, _UNLIMITED)

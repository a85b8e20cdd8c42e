"""Where cached files go when the user names no directory."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from streamshard.errors import StorageError


def default_cache_directory(url: str, environ: Mapping[str, str] | None = None) -> Path:
    """Return this user's cache directory for one dataset.

    The first of ``$STREAMSHARD_CACHE``, ``$XDG_CACHE_HOME/streamshard``, ``~/.cache/streamshard`` and, where
    there is no home, ``streamshard-UID`` in the directory for temporary files; below it a name made from the URL.

    Args:
        url: the dataset's place; two datasets never share a directory.
        environ: read instead of ``os.environ``.

    Raises:
        StorageError: there is no home, and somebody else has made this user's directory for temporary files.
    """
    variables = os.environ if environ is None else environ
    name = hashlib.sha256(url.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    if variables.get("STREAMSHARD_CACHE"):
        return Path(variables["STREAMSHARD_CACHE"]).expanduser() / name
    if variables.get("XDG_CACHE_HOME"):
        return Path(variables["XDG_CACHE_HOME"]).expanduser() / "streamshard" / name
    try:
        home = Path.home() if environ is None else Path(variables["HOME"])
    except (RuntimeError, KeyError):
        return _own(Path(tempfile.gettempdir()) / f"streamshard-{os.getuid()}") / name
    return home / ".cache" / "streamshard" / name


def _own(directory: Path) -> Path:
    """Refuse a directory in a place where everybody may write, if it is another user's or a link."""
    try:
        status = directory.lstat()
    except OSError:
        return directory
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise StorageError(
            f"cache directory {directory}: was made by another user, who could put data of theirs into it; set HOME or "
            "STREAMSHARD_CACHE, or name a directory with local="
        )
    return directory

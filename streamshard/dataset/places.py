"""Where cached files go when the user names no directory."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path


def default_cache_directory(url: str, environ: Mapping[str, str] | None = None) -> Path:
    """Return this user's cache directory for one dataset.

    The first of ``$STREAMSHARD_CACHE``, ``$XDG_CACHE_HOME/streamshard``, ``~/.cache/streamshard`` and, where
    there is no home, ``streamshard-UID`` in the directory for temporary files; below it a name made from the URL.

    Args:
        url: the dataset's place; two datasets never share a directory.
        environ: read instead of ``os.environ``.
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
        return Path(tempfile.gettempdir()) / f"streamshard-{os.getuid()}" / name
    return home / ".cache" / "streamshard" / name

"""From a path or URL to the store behind it. Loads fsspec only for URLs that need it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamshard.errors import StorageError
from streamshard.storage.retry import RetryPolicy

if TYPE_CHECKING:
    from streamshard.storage.store import Store

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)(?:://|::)")
_MISSPELT = re.compile(
    r"(s3|s3a|gs|gcs|az|azure|azure-dl|abfs|abfss|hf|https?|sftp|oci|file|memory):/(?!/)", re.IGNORECASE
)


def open_store(
    url: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    retry: RetryPolicy | None = None,
) -> Store:
    """Open the place that ``url`` names. Nothing is contacted yet.

    A plain path (``~`` is expanded) or ``file://`` is a directory here, ``memory://NAME`` a dict in this
    process, any other scheme a file system of fsspec. Paths in a ``file://`` URL are taken as written, ``%``
    included.

    Args:
        storage_options: passed unchanged to the file system, such as ``{"endpoint_url": ..., "anon": True}``.
        retry: how often and how long to try; 6 attempts and 60 s by default.

    Raises:
        StorageError: an empty URL, ``s3:/x`` and the like, or ``~`` without a home directory.
    """
    policy = retry or RetryPolicy()
    if is_local(url):
        from streamshard.storage.local_store import LocalStore

        return LocalStore(local_directory(url), retry=policy)
    text = os.fspath(url)
    if text.startswith("memory://"):
        from streamshard.storage.memory_store import MemoryStore

        return MemoryStore(text)
    from streamshard.storage.fsspec_store import FsspecStore

    return FsspecStore(text, storage_options=storage_options, retry=policy)


def is_local(url: str | os.PathLike[str]) -> bool:
    """Whether ``url`` is a plain path or a ``file://`` URL."""
    match = _SCHEME.match(os.fspath(url))
    return match is None or match.group(1).lower() in ("file", "local")


def local_directory(url: str | os.PathLike[str]) -> Path:
    """The path that a local ``url`` means, ``~`` expanded; StorageError if it has none."""
    text = os.fspath(url)
    match = _SCHEME.match(text)
    if match is not None:
        text = text[match.end() :]
        host, slash, rest = text.partition("/")
        if host == "localhost":
            text = slash + rest
    if not text:
        raise StorageError(
            f"{os.fspath(url)!r} names no place; expected a path or a URL such as s3://bucket/prefix"
        )
    if "\0" in text:
        raise StorageError(f"{text!r}: a path cannot hold a NUL character")
    if match is None and (misspelt := _MISSPELT.match(text)):
        raise StorageError(
            f"{text!r} looks like a URL with one slash too few; expected {misspelt.group(1)}://…, or, for a directory"
            f" of that name, './{text}'"
        )
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise StorageError(
            f"{text!r}: there is no home directory to put for '~' (is HOME unset?); give a full path"
        ) from error


def join_url(url: str | os.PathLike[str], *parts: str) -> str:
    """Append ``parts`` to a path or URL with one ``/`` between them: ``s3://b/`` and ``x`` give ``s3://b/x``."""
    text = os.fspath(url)
    for part in parts:
        if part:
            text = text + part if text.endswith("/") else f"{text}/{part}"
    return text

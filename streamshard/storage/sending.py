"""Putting one file at a remote place: whole under its name or not there, of the right size."""

from __future__ import annotations

import contextlib
import posixpath
import secrets
from collections.abc import Callable
from typing import Any

from streamshard.storage.store import TEMPORARY_SUFFIX
from streamshard.storage.windows import remote_size

# Servers of real folders, where a file grows under its name while it is written, and a rename replaces.
FILE_SERVERS = frozenset({"sftp", "ssh"})


def send_file(fs: Any, target: str, nbytes: int, send: Callable[[str], Any]) -> None:
    """Let ``send(path)`` write a file of ``nbytes`` bytes, which is ``target`` afterwards.

    A bucket shows an object when all of it is there. Elsewhere it is written under a temporary name first. Folders that
    are missing are made.

    Raises:
        ConnectionError: the place has stored another number of bytes (B075: a throttled upload can leave an empty file
            without an error). An upload again may help.
        OSError, and what ``fs`` raises.
    """
    if not _is_file_server(fs):
        try:
            send(target)
        except FileNotFoundError:  # no bucket, but a file system with folders
            _make_folder(fs, posixpath.dirname(target))
            send(target)
        check_stored(fs, target, nbytes)
        return
    folder = posixpath.dirname(target)
    _make_folder(fs, folder)
    temporary = f"{folder}/.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}"
    try:
        send(temporary)
        check_stored(fs, temporary, nbytes)
        fs.mv(temporary, target)
    except BaseException:
        with contextlib.suppress(Exception):  # on its way already is an error that says more
            fs.rm_file(temporary)
        raise


def _is_file_server(fs: Any) -> bool:
    names = fs.protocol if isinstance(fs.protocol, (tuple, list)) else (fs.protocol,)
    return bool(FILE_SERVERS & set(names))


def _make_folder(fs: Any, folder: str) -> None:
    try:
        fs.makedirs(folder, exist_ok=True)
    except OSError:
        if not fs.isdir(folder):  # else another thread has made it meanwhile
            raise


def check_stored(fs: Any, path: str, expected: int) -> None:
    """Raise ConnectionError if a file has another size than was sent."""
    found = remote_size(fs, path)
    if found != expected:
        raise ConnectionError(f"the target stored {found} bytes of {expected}")

"""Hashes of whole files, by the names that the index uses."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, BinaryIO

from streamshard.errors import MissingDependencyError

HASHLIB_NAMES = (
    "blake2b",
    "blake2s",
    "md5",
    "sha1",
    "sha224",
    "sha256",
    "sha384",
    "sha3_224",
    "sha3_256",
    "sha3_384",
    "sha3_512",
    "sha512",
)
XXHASH_NAMES = ("xxh128", "xxh32", "xxh3_128", "xxh3_64", "xxh64")
_CHUNK = 1 << 20


def known_hashes() -> tuple[str, ...]:
    """List the hash names."""
    return HASHLIB_NAMES + XXHASH_NAMES


def check_hash_name(name: str) -> str:
    """Give the name back if it is known.

    Raises:
        ValueError: unknown; the message lists the known ones.
    """
    if name not in known_hashes():
        raise ValueError(f"hash {name!r}: expected one of {', '.join(known_hashes())}")
    return name


def new_hash(name: str) -> Any:
    """Start a hash object with ``update`` and ``hexdigest``."""
    check_hash_name(name)
    if name in HASHLIB_NAMES:
        # Told that it is no matter of security, a FIPS build gives md5 too.
        return hashlib.new(name, usedforsecurity=False)
    try:
        import xxhash
    except ImportError as error:
        raise MissingDependencyError(f"{name} needs xxhash; install it with: pip install xxhash") from error
    return getattr(xxhash, name)()


def hash_buffers(name: str, buffers: Iterable[bytes | memoryview]) -> str:
    """Hash buffers as if they were joined; hex digest."""
    state = new_hash(name)
    for buffer in buffers:
        state.update(buffer)
    digest: str = state.hexdigest()
    return digest


def hash_bytes(name: str, data: bytes | memoryview) -> str:
    """Hash a whole file's bytes; hex digest."""
    return hash_buffers(name, (data,))


def hash_file(name: str, fileobj: BinaryIO) -> str:
    """Hash an open file from where it stands to its end, in pieces; hex digest."""
    state = new_hash(name)
    while piece := fileobj.read(_CHUNK):
        state.update(piece)
    digest: str = state.hexdigest()
    return digest

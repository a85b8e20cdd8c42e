"""A digest of a multiset of samples: the same whatever the order, different if one sample is."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_MODULUS = 1 << 128


def digest_of_samples(samples: Iterable[Mapping[str, Any]]) -> str:
    """Add up the BLAKE2 hashes of all samples; values are compared by type family and content."""
    total = count = 0
    for sample in samples:
        state = hashlib.blake2b(digest_size=16)
        for name in sorted(sample):
            value = sample[name]
            content = value if isinstance(value, bytes) else repr(value).encode()
            kind = type(value).__name__
            state.update(f"{name}:{kind}:{len(content)}:".encode() + content)
        total = (total + int.from_bytes(state.digest(), "little")) % _MODULUS
        count += 1
    return f"{count}:{total:032x}"


def digest_of_files(directory: Path) -> str:
    """Hash names and contents of all files below a directory."""
    state = hashlib.blake2b(digest_size=16)
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            state.update(f"{path.relative_to(directory)}:{path.stat().st_size}:".encode() + path.read_bytes())
    return state.hexdigest()

"""A digest of a multiset of samples: the same whatever the order, different if one sample is."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

_MODULUS = 1 << 128


@overload
def digest_of_samples(samples: Iterable[Mapping[str, Any]]) -> str: ...
@overload
def digest_of_samples(samples: Iterable[Mapping[str, Any]], bounds: Sequence[int]) -> list[str]: ...
def digest_of_samples(
    samples: Iterable[Mapping[str, Any]], bounds: Sequence[int] | None = None
) -> str | list[str]:
    """Add up the BLAKE2 hashes of samples; values are compared by type family and content.

    Args:
        samples: all of them, in any order.
        bounds: give one digest for each of these: of the samples whose number is less. None: one, of all.
    """
    totals = [0] * len(bounds or [None])
    counts = list(totals)
    for sample in samples:
        state = hashlib.blake2b(digest_size=16)
        for name in sorted(sample):
            value = sample[name]
            if isinstance(value, memoryview):  # litdata's bytes, not copied
                value = bytes(value)
            content = value if isinstance(value, bytes) else repr(value).encode()
            kind = type(value).__name__
            state.update(f"{name}:{kind}:{len(content)}:".encode() + content)
        hashed = int.from_bytes(state.digest(), "little")
        for at in range(len(totals)):
            if bounds is None or sample["number"] < bounds[at] or bounds[at] == max(bounds):
                totals[at] = (totals[at] + hashed) % _MODULUS
                counts[at] += 1
    digests = [f"{count}:{total:032x}" for count, total in zip(counts, totals, strict=True)]
    return digests[0] if bounds is None else digests


def digest_of_files(directory: Path) -> str:
    """Hash names and contents of all files below a directory."""
    state = hashlib.blake2b(digest_size=16)
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            state.update(f"{path.relative_to(directory)}:{path.stat().st_size}:".encode() + path.read_bytes())
    return state.hexdigest()

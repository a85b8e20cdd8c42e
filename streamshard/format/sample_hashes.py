"""Hashes of single samples, in a side file beside each shard that other readers do not know of.

Under the key ``"streamshard"`` of an index: ``{"sample_hashes": {"algorithm": "xxh64", "digests": ["…", "…"]}}``.
The side file of ``shard.00000.mds`` is ``shard.00000.mds.samples``: the digest of each sample's encoded bytes, in
order, each as long as the algorithm's digests are, and nothing else. ``digests`` holds one hex digest for each
shard: that of its side file, by the same algorithm. So the index vouches for the side files, these for the samples.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamshard.errors import FormatError
from streamshard.format.hashing import HASHLIB_NAMES, check_hash_name, new_hash

SAMPLE_HASHES_KEY = "sample_hashes"
SIDE_SUFFIX = ".samples"


@dataclass(frozen=True, eq=False)
class SampleHashes:
    """What an index says of its side files.

    Attributes:
        algorithm: name of the hash.
        digests: digest of each shard's side file, uint8, shape (shards, bytes of a digest). Not to be changed.
    """

    algorithm: str
    digests: NDArray[np.uint8]

    def side_file(self, shard: int) -> str:
        """Give the hex digest of the side file of a shard."""
        return bytes(self.digests[shard]).hex()

    def entry(self) -> dict[str, Any]:
        """Give what stands under ``"sample_hashes"``."""
        return sample_hashes_entry(self.algorithm, [bytes(row).hex() for row in self.digests])


def side_basename(raw_basename: str) -> str:
    """Name the side file of a shard by the name of its raw file."""
    return raw_basename + SIDE_SUFFIX


def digest_nbytes(algorithm: str) -> int:
    """Give the bytes of one digest."""
    return int(new_hash(algorithm).digest_size)


def digest_function(algorithm: str) -> Callable[[bytes | memoryview], bytes]:
    """Give a function from the bytes of a sample to its digest.

    Raises:
        ValueError: an unknown algorithm; MissingDependencyError: its package is not installed.
    """
    check_hash_name(algorithm)
    if algorithm in HASHLIB_NAMES:
        return lambda sample: hashlib.new(algorithm, sample, usedforsecurity=False).digest()
    new_hash(algorithm)  # says what to install
    import xxhash

    one_shot: Callable[[bytes | memoryview], bytes] = getattr(xxhash, f"{algorithm}_digest")
    return one_shot


def side_bytes(algorithm: str, samples: Iterable[bytes | memoryview]) -> bytes:
    """Make the content of a side file."""
    return b"".join(map(digest_function(algorithm), samples))


def sample_hashes_entry(algorithm: str, digests: Sequence[str]) -> dict[str, Any]:
    """Give what stands under ``"sample_hashes"`` for these hex digests of side files."""
    return {"algorithm": algorithm, "digests": list(digests)}


def parse_sample_hashes(entry: object, num_shards: int) -> SampleHashes | None:
    """Check what stands under ``"sample_hashes"``; None for None.

    Raises:
        FormatError: not an object with a known algorithm and one digest of its length for each shard.
    """
    if entry is None:
        return None
    if not isinstance(entry, dict):
        raise FormatError(f"{SAMPLE_HASHES_KEY!r} is a {type(entry).__name__}, expected an object")
    algorithm, digests = entry.get("algorithm"), entry.get("digests")
    try:
        nbytes = digest_nbytes(algorithm if isinstance(algorithm, str) else repr(algorithm)[:40])
    except ValueError as error:
        raise FormatError(f"{SAMPLE_HASHES_KEY!r}: {error}") from error
    if not isinstance(digests, list) or len(digests) != num_shards:
        found = f"{len(digests)} digests" if isinstance(digests, list) else type(digests).__name__
        raise FormatError(f"{SAMPLE_HASHES_KEY!r}: {found} for {num_shards} shards; expected one of each")
    content = bytearray()
    for shard, digest in enumerate(digests):
        # Of hex digits alone: bytes.fromhex would also take spaces.
        if not isinstance(digest, str) or len(digest) != 2 * nbytes or not digest.isalnum():
            raise FormatError(
                f"{SAMPLE_HASHES_KEY!r} of shard {shard} is {digest!r:.80}, expected {2 * nbytes} hex digits"
            )
        try:
            content += bytes.fromhex(digest)
        except ValueError as error:
            raise FormatError(f"{SAMPLE_HASHES_KEY!r} of shard {shard}: {error}") from error
    return SampleHashes(str(algorithm), np.frombuffer(bytes(content), np.uint8).reshape(num_shards, nbytes))

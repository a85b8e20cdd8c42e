"""What identifies a stream's data: not its URL, its names or its compression."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from streamshard.format.index import Index

_DIGEST_NBYTES = 16


def fingerprints(index: Index) -> dict[str, str]:
    """Return hex digests of a stream's data by kind, for a training state to compare.

    ``layout`` covers the samples and raw bytes of each shard. Each hash algorithm that all shards have adds one
    digest of their raw hashes. A recompressed or renamed copy of a dataset has the same digests.
    """
    sizes = np.array([(info.num_samples, info.raw.nbytes) for info in index.shards], dtype="<i8")
    found = {"layout": hashlib.blake2b(sizes.tobytes(), digest_size=_DIGEST_NBYTES).hexdigest()}
    common = set.intersection(*(set(info.raw.hashes) for info in index.shards)) if index.shards else set()
    for algorithm in sorted(common):
        digest = hashlib.blake2b(digest_size=_DIGEST_NBYTES)
        for info in index.shards:
            digest.update(info.raw.hashes[algorithm].lower().encode("ascii", "replace"))
        found[algorithm] = digest.hexdigest()
    return found

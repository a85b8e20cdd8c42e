"""What identifies a stream's data: not its URL, its names or its compression."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, overload

import numpy as np

if TYPE_CHECKING:
    from streamshard.format.index import Index

_DIGEST_NBYTES = 16


def fingerprints(index: Index) -> dict[str, str]:
    """Return hex digests of a stream's data by kind, for a training state to compare.

    ``layout`` covers the samples and raw bytes of each shard. Each hash algorithm that all shards have adds one
    digest of their raw hashes. A recompressed or renamed copy of a dataset has the same digests.
    """
    table = index.table
    sizes = np.stack((table.num_samples, table.raw_nbytes), axis=1).astype("<i8")
    found = {"layout": hashlib.blake2b(sizes.tobytes(), digest_size=_DIGEST_NBYTES).hexdigest()}
    kinds = [kind for kind, _ in table.counts_of_kinds()]
    common = set.intersection(*(set(kind.raw_hashes) for kind in kinds)) if kinds else set()
    for algorithm in sorted(common):
        digest = hashlib.blake2b(digest_size=_DIGEST_NBYTES)
        for values in table.raw_hashes(algorithm):
            digest.update(values)
        found[algorithm] = digest.hexdigest()
    return found


class Fingerprints(Sequence[Mapping[str, str]]):
    """Those of some indexes, each made when it is first asked for: to begin a run takes none."""

    def __init__(self, indexes: Sequence[Index]) -> None:
        self._indexes = tuple(indexes)
        self._made: dict[int, dict[str, str]] = {}

    def __len__(self) -> int:
        return len(self._indexes)

    @overload
    def __getitem__(self, at: int) -> Mapping[str, str]: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[Mapping[str, str]]: ...

    def __getitem__(self, at: int | slice) -> Mapping[str, str] | Sequence[Mapping[str, str]]:
        """Return those of an index, or of some; IndexError beyond the last one."""
        numbers = range(len(self))[at]
        if isinstance(numbers, range):
            return [self[number] for number in numbers]
        found = self._made.get(numbers)
        if found is None:
            found = self._made[numbers] = fingerprints(self._indexes[numbers])
        return found

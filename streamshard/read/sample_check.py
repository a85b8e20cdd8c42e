"""Checking single samples with the hashes that a dataset has of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streamshard.errors import ChecksumError, FormatError
from streamshard.format.entries import FileInfo
from streamshard.format.hashing import hash_bytes
from streamshard.format.sample_hashes import digest_function, digest_nbytes, side_basename
from streamshard.read.keys import key_in

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from streamshard.format.index import Index
    from streamshard.format.sample_hashes import SampleHashes
    from streamshard.storage.store import Store


def reading_from(store: Store, split: str | None = None) -> Callable[[str, int], bytes]:
    """Give the ``read`` of ``sample_check`` for a dataset in a store."""

    def read(name: str, most_nbytes: int) -> bytes:
        return store.read(key_in(split, name), limit=most_nbytes)

    return read


class SampleCheck:
    """The digests of one shard's samples. Picklable; takes as much memory as they have bytes.

    Args:
        algorithm: name of the hash.
        digests: content of the side file, which the index vouches for.
    """

    def __init__(self, algorithm: str, digests: bytes) -> None:
        self.algorithm = algorithm
        self._digests = digests
        self._nbytes = digest_nbytes(algorithm)
        self._digest_of = digest_function(algorithm)

    def __len__(self) -> int:
        return len(self._digests) // self._nbytes

    def is_good(self, row: int, sample: bytes | memoryview) -> bool:
        """Say whether these are the bytes of the sample in ``row`` (0 <= row < len)."""
        begin = row * self._nbytes
        return self._digest_of(sample) == self._digests[begin : begin + self._nbytes]

    def one(self, row: int, sample: bytes | memoryview, place: Callable[[int], str]) -> None:
        """Raise ChecksumError if these are not the bytes of the sample in ``row``; ``place`` names rows."""
        if not self.is_good(row, sample):
            found, begin = self._digest_of(sample).hex(), row * self._nbytes
            expected = self._digests[begin : begin + self._nbytes].hex()
            raise ChecksumError(
                f"{place(row)}: {self.algorithm} of its {len(sample):,} bytes is {found}, expected {expected}; "
                "the shard was damaged or is another one: fetch it again, or see 'streamshard repair'"
            )

    def many(
        self,
        rows: NDArray[np.integer[Any]],
        buffer: bytes,
        begins: NDArray[np.int64],
        ends: NDArray[np.int64],
        place: Callable[[int], str],
    ) -> None:
        """Check several samples, sample i being ``buffer[begins[i]:ends[i]]``; raises as ``one``."""
        view = memoryview(buffer)
        count = len(self)
        for row, begin, end in zip(rows.tolist(), begins.tolist(), ends.tolist(), strict=True):
            self.one(row % count, view[begin:end], place)

    def __reduce__(self) -> tuple[Any, ...]:
        return SampleCheck, (self.algorithm, self._digests)


@dataclass(frozen=True, slots=True)
class SideFile:
    """The side file of one shard as the index describes it; picklable.

    Attributes:
        name: path below the index's directory.
        algorithm: name of the hash, of the samples and of the file itself.
        digest: hex digest of the file.
        num_samples: samples of the shard.
    """

    name: str
    algorithm: str
    digest: str
    num_samples: int

    @classmethod
    def of(cls, index: Index, shard: int) -> SideFile | None:
        """Give the side file of a shard; None where the index has no hashes of samples."""
        hashes = index.sample_hashes
        if hashes is None:
            return None
        name = side_basename(index.shards[shard].raw.basename)
        return cls(name, hashes.algorithm, hashes.side_file(shard), int(index.samples_per_shard[shard]))

    @property
    def nbytes(self) -> int:
        """Size that it must have."""
        return self.num_samples * digest_nbytes(self.algorithm)

    @property
    def file(self) -> FileInfo:
        """The same as the index describes other files."""
        return FileInfo(self.name, self.nbytes, {self.algorithm: self.digest})

    def load(self, read: Callable[[str, int], bytes]) -> SampleCheck:
        """Read it and see that it is the one the index means.

        Args:
            read: gives the content of a file by its path below the index's directory, which may have at most so
                many bytes.

        Raises:
            FormatError: it has another size, or (ChecksumError) other bytes.
            BlobNotFoundError, AccessDeniedError, StorageError: from ``read``.
        """
        content = read(self.name, self.nbytes)
        if len(content) != self.nbytes:
            raise FormatError(
                f"{self.name!r}, the hashes of a shard's samples: {len(content):,} bytes for {self.num_samples:,} "
                f"samples, expected {self.nbytes:,}: it was cut; copy it again, or read without validate_samples"
            )
        found = hash_bytes(self.algorithm, content)
        if found != self.digest:
            raise ChecksumError(
                f"{self.name!r}, the hashes of a shard's samples: {self.algorithm} is {found}, the index says "
                f"{self.digest}; it was damaged or is of another dataset: copy it again, or read without "
                "validate_samples"
            )
        return SampleCheck(self.algorithm, content)


def sample_check(index: Index, shard: int, read: Callable[[str, int], bytes]) -> SampleCheck:
    """Load the side file of a shard of an index that has hashes of samples; raises as ``SideFile.load``."""
    side = SideFile.of(index, shard)
    if side is None:
        raise ValueError(f"shard {shard}: the index has no hashes of samples")
    return side.load(read)


def require_sample_hashes(index: Index, where: str) -> SampleHashes:
    """Return the index's hashes of samples.

    Raises:
        ValueError: it has none; says how they are made.
    """
    if index.sample_hashes is None:
        raise ValueError(
            f"{where}: has no hashes of samples to check with; write it with sample_hash='xxh64' "
            "(convert --sample-hash xxh64), or leave out validate_samples"
        )
    return index.sample_hashes

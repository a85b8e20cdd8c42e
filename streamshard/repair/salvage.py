"""Which samples of a damaged shard are still good."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from streamshard.errors import BlobNotFoundError, FormatError, StorageError, StreamshardError
from streamshard.format.compression import decompress_file, parse_compression
from streamshard.format.hashing import hash_file, known_hashes
from streamshard.read.raw_file import open_regular

if TYPE_CHECKING:
    from streamshard.format.decoder import SampleDecoder
    from streamshard.format.index import ShardInfo
    from streamshard.read.sample_check import SampleCheck

_MANY_SAMPLES = 1 << 22


@dataclass(frozen=True, slots=True)
class Salvage:
    """What can be kept of one shard.

    Attributes:
        rows: rows of the good samples, ascending.
        is_proven: hashes say that they are what was written; else only that they decode does.
        is_explained: what is wrong with the file is more than that its hash is another: it is cut, or samples of
            it do not decode. Only then do unproven samples have anything to say for them.
    """

    rows: tuple[int, ...]
    is_proven: bool
    is_explained: bool


class DamagedShard:
    """The raw bytes that are left of a shard. A context manager.

    Args:
        path: raw file, of any size.
        info: the shard's entry in the index.
    """

    def __init__(self, path: Path, info: ShardInfo) -> None:
        self._fd = open_regular(path, shard=info.raw.basename)
        self.info = info
        self.nbytes = os.fstat(self._fd).st_size
        self._offsets: np.ndarray[tuple[int], np.dtype[np.int64]] | None = None

    def sample(self, row: int) -> bytes:
        """Return the encoded bytes of a row that ``salvage`` found to be good."""
        begin, end = self._bounds()[row], self._bounds()[row + 1]
        return self._read(int(begin), int(end))

    def salvage(self, decoder: SampleDecoder, check: SampleCheck | None) -> Salvage:
        """Find the good samples: within the file, with the right hash where there is one, and decodable.

        Raises:
            FormatError: nothing can be found, since the offsets are not there or the header is another shard's.
            MissingDependencyError, StorageError: decoding failed for a reason that is not the sample's.
        """
        bounds = self._bounds()
        head = 4 * (self.info.num_samples + 2)
        good: list[int] = []
        is_explained = self.nbytes != self.info.raw.nbytes
        for row in range(self.info.num_samples):
            begin, end = int(bounds[row]), int(bounds[row + 1])
            if not head <= begin <= end <= self.nbytes:
                is_explained = True
                continue
            sample = self._read(begin, end)
            if check is not None and not check.is_good(row, sample):
                is_explained = True
                continue
            try:
                decoder.one(sample)
            except FormatError:
                is_explained = True
                continue
            except (StreamshardError, MemoryError):
                raise  # of this machine, such as a package that is not installed: no reason to lose samples
            except Exception as error:  # a user's own encoding may raise anything
                raise StorageError(
                    f"row {row}: its column cannot be decoded here, and whether it is damaged is not known: "
                    f"{type(error).__name__}: {error}"
                ) from error
            good.append(row)
        return Salvage(tuple(good), check is not None, is_explained)

    def _bounds(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        if self._offsets is None:
            info = self.info
            end = 8 + 4 * info.num_samples
            if self.nbytes < end:
                raise FormatError(f"only {self.nbytes:,} bytes are there, and its offsets take {end:,}")
            first = int(np.frombuffer(self._read(4, 8), "<u4")[0])
            # Before a table of many megabytes is read, which may be a hole.
            if info.num_samples > _MANY_SAMPLES and not end <= first <= self.nbytes:
                raise FormatError(
                    f"its first sample is said to begin at {first}, behind a header of {end} bytes"
                )
            head = np.frombuffer(self._read(0, end), "<u4")
            if int(head[0]) != info.num_samples:
                raise FormatError(f"it says {head[0]} samples, the index {info.num_samples}")
            self._offsets = head[1:].astype(np.int64)
        return self._offsets

    def _read(self, begin: int, end: int) -> bytes:
        pieces, at = [b""], begin
        # One call gives at most 2 GiB on Linux.
        while at < end and (piece := os.pread(self._fd, end - at, at)):
            pieces.append(piece)
            at += len(piece)
        if at != end:
            raise FormatError(f"bytes [{begin:,}, {end:,}) cannot be read: {at - begin:,} came")
        return b"".join(pieces)

    def __enter__(self) -> DamagedShard:
        return self

    def __exit__(self, *_error: object) -> None:
        os.close(self._fd)


def inflate_what_is_left(source: Path, target: Path, info: ShardInfo) -> str | None:
    """Decompress as much of a damaged compressed shard as can be; return what stopped it, if anything did."""
    compression = parse_compression(info.compression)
    if compression is None:
        raise FormatError(f"shard {info.raw.basename!r}: the index names no compression for it")
    with os.fdopen(open_regular(source, shard=source.name), "rb") as compressed, target.open("wb") as raw:
        try:
            decompress_file(compressed, raw, compression.algorithm, raw_nbytes=info.raw.nbytes)
        except FormatError as error:
            return str(error)
    return None


def raw_file_of(info: ShardInfo, directory: Path, scratch: Callable[[], Path]) -> Path:
    """Give the path of what is left of the raw bytes, decompressed into ``scratch()`` if need be.

    Raises:
        BlobNotFoundError, AccessDeniedError, StorageError: nothing is there, or it cannot be read.
    """
    if info.compressed is None:
        return directory / info.raw.basename
    target = scratch()
    try:
        inflate_what_is_left(directory / info.compressed.basename, target, info)
    except BlobNotFoundError:
        if (directory / info.raw.basename).exists():
            return directory / info.raw.basename
        raise
    return target


def is_whole(path: Path, info: ShardInfo) -> bool:
    """Whether a raw file has all the hashes that the index has of it, and the index has some that is known here."""
    known = {name: digest for name, digest in info.raw.hashes.items() if name in known_hashes()}
    for name, digest in known.items():
        with path.open("rb") as opened:
            if hash_file(name, opened) != digest.lower():
                return False
    return bool(known)

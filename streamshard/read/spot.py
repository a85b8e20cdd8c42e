"""Spot reads: single samples of a dataset anywhere, without copying it here."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from streamshard.errors import FormatError
from streamshard.format.shard import parse_header
from streamshard.read.inflate import inflate_shard
from streamshard.read.keys import key_in
from streamshard.read.raw_file import RawFile
from streamshard.read.selection import out_of_range

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from streamshard.format.index import Index, ShardInfo
    from streamshard.format.shard import ShardHeader
    from streamshard.storage.store import Store


class SpotReader:
    """Encoded samples of a dataset in any store, one at a time.

    Of a raw shard only the header and the sample are read. A compressed shard is fetched and decompressed
    into a temporary directory that ``close()`` removes. The shard used last is kept open.
    """

    def __init__(self, store: Store, index: Index, *, split: str | None = None) -> None:
        self.store = store
        self.index = index
        self.split = split
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._file: RawFile | None = None
        self._shard_id = -1
        self._header: ShardHeader | None = None
        self._read: Callable[[int, int], bytes] | None = None

    def locate(self, sample_id: int) -> tuple[int, int]:
        """Return (shard, row) of a sample; negative ids count from the end. IndexError beyond."""
        num_samples = self.index.num_samples
        if not -num_samples <= sample_id < num_samples:
            raise IndexError(out_of_range(sample_id, num_samples))
        if sample_id < 0:
            sample_id += num_samples
        shard_id = int(self.index.begins.searchsorted(sample_id, side="right")) - 1
        return shard_id, sample_id - int(self.index.begins[shard_id])

    def raw(self, shard_id: int, row: int, *, limit: int | None = None) -> bytes:
        """Return the encoded bytes of one sample, or no more than its first ``limit``.

        Raises:
            FormatError: the shard contradicts the index or itself.
            StorageError: it cannot be read.
        """
        header, read = self._open(shard_id)
        begin, end = int(header.offsets[row]), int(header.offsets[row + 1])
        return read(begin, end if limit is None else min(end, begin + limit))

    def close(self) -> None:
        """Close files and remove temporary ones; a second call does nothing."""
        self._shard_id, self._header, self._read = -1, None, None
        file, self._file = self._file, None
        if file is not None:
            file.close()
        scratch, self._scratch = self._scratch, None
        if scratch is not None:
            scratch.cleanup()

    def __enter__(self) -> SpotReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self, shard_id: int) -> tuple[ShardHeader, Callable[[int, int], bytes]]:
        if self._header is not None and self._read is not None and shard_id == self._shard_id:
            return self._header, self._read
        self.close()
        info = self.index.shards[shard_id]
        key = key_in(self.split, info.raw.basename)
        nbytes = info.raw.nbytes
        if info.compressed is not None and not self.store.exists(key):
            self._file = self._fetch_inflated(info)
            read = self._file.read
        elif (path := self.store.local_path(key)) is not None:
            self._file = RawFile(path, nbytes, shard=info.raw.basename)
            read = self._file.read
        else:
            nbytes = self.store.size(key)
            read = RangeRead(self.store, key, info.raw.basename)
        header = parse_header(read, nbytes, shard=info.raw.basename, expected=info)
        self._shard_id, self._header, self._read = shard_id, header, read
        return header, read

    def _fetch_inflated(self, info: ShardInfo) -> RawFile:
        self._scratch = tempfile.TemporaryDirectory(prefix="streamshard-spot-")
        scratch = Path(self._scratch.name)
        if info.compressed is None:
            raise FormatError(f"shard {info.raw.basename!r}: the index names no compressed file for it")
        key = key_in(self.split, info.compressed.basename)
        source = self.store.local_path(key)
        if source is None:
            source = scratch / "compressed"
            self.store.fetch_to(key, source)
        raw = scratch / "raw"
        with raw.open("wb") as target:
            inflate_shard(source, target, info)
        return RawFile(raw, info.raw.nbytes, shard=info.raw.basename)


class RangeRead:
    """Exact reads of one key of a store."""

    def __init__(self, store: Store, key: str, shard: str) -> None:
        self._store = store
        self._key = key
        self._shard = shard

    def __call__(self, begin: int, end: int) -> bytes:
        if begin == end:
            return b""
        piece = self._store.read_range(self._key, begin, end)
        if len(piece) != end - begin:
            raise FormatError(
                f"shard {self._shard!r}: {end - begin:,} bytes asked from byte {begin:,}, {len(piece):,} came"
            )
        return piece

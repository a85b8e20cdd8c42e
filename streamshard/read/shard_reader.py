"""ShardReader: the samples of one raw shard file on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from streamshard.errors import FormatError
from streamshard.format.decoder import FEW, MALFORMED
from streamshard.read.head import ShardHead, offsets_of, read_head
from streamshard.read.identity import describe_sample
from streamshard.read.raw_file import RawFile

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable
    from types import TracebackType

    from numpy.typing import NDArray

    from streamshard.format.column import Buffer
    from streamshard.format.decoder import SampleDecoder
    from streamshard.format.index import ShardInfo
    from streamshard.read.sample_check import SampleCheck

T = TypeVar("T")
Place = tuple["NDArray[np.uint8]", int, int, int]
"""A file in memory: its map, the address at which that begins, bytes, and descriptor.

A plain tuple of what refers to nothing, which collections of garbage leave out.
"""

# Where the bytes of a batch come from, shard in the page cache: pread 1.0 us a row of 160 bytes, slices of a map
# 0.16 us; of 40 kB rows, of which a blob is cut out, 8.2 us and 4.8 us, beside 4.3 us for a slice of memory. So all
# rows on a local disk are taken from a guarded map, whose file is looked at afterwards: if it was cut meanwhile, what
# was taken is worth nothing. On network file systems rows come by pread, neighbouring ones joined.

# From this size on, rows of a file that is not in the page cache are asked for before a map is touched: page faults
# would read them 4 KiB at a time.
_ADVISED_ROW_NBYTES = 16 << 10


class ShardReader:
    """Random access to the samples of one raw (uncompressed) shard file.

    The header is parsed and checked once, when the reader is made, or when the one was whose head it is given; no
    sample is given before the size of the file, the number of samples and all offsets agree with the index. One
    reader may be used by several threads and survives ``fork``; a pickled reader opens the file again where it is
    unpickled.

    Args:
        path: the raw shard file; where thousands are open, a ``str`` is less for collections of garbage to go through.
        info: its entry in the index.
        decoder: made by ``info.schema.decoder(...)``.
        name: name for messages; default: the basename in the index.
        first_sample_id: number of the shard's first sample in its dataset, for messages.
        descriptor: an open file to own and read in place of ``path`` (such a reader cannot be pickled).
        check: hashes of the shard's samples, with which every sample is checked before it is given.
        known: the head of an earlier reader of this shard; a file that has not changed is not checked again.
        read_through: all of it will be read soon, and there is memory to keep it until then.

    Attributes:
        decoder: as given.
        head: what was found in front of the samples.

    Raises:
        FormatError: the file contradicts the index or itself. Reading raises ChecksumError, one of its kinds, for
            a sample that is not what ``check`` says.
        BlobNotFoundError, AccessDeniedError, StorageError: it cannot be opened.
    """

    def __init__(
        self,
        path: Path | str,
        info: ShardInfo,
        decoder: SampleDecoder,
        *,
        name: str | None = None,
        first_sample_id: int | None = None,
        descriptor: int | None = None,
        check: SampleCheck | None = None,
        known: ShardHead | None = None,
        read_through: bool = False,
    ) -> None:
        self.path = path
        self.info = info
        self.name = info.raw.basename if name is None else name
        self.first_sample_id = first_sample_id
        self.decoder = decoder
        self._check = check
        self._anonymous = descriptor is not None
        self._file = RawFile(
            path, info.raw.nbytes, shard=self.name, descriptor=descriptor, read_through=read_through
        )
        try:
            self.head = read_head(self._file, info, shard=self.name, known=known)
            self._table = offsets_of(self.head, self._file, info)
        except BaseException:
            self._file.close()
            raise
        self.num_samples = info.num_samples
        # In the map they may change under our hands, and go: nothing is taken on trust there.
        self._in_map = self.head.offsets is None
        self._places: memoryview | None = None
        self._nbytes = info.raw.nbytes
        self._quick_row = decoder.quick_row
        payload = info.raw.nbytes - self._table.item(0)
        is_large = payload >= _ADVISED_ROW_NBYTES * self.num_samples
        self._advises = self._file.is_local and is_large and not self._file.is_cached()

    def __len__(self) -> int:
        return self.num_samples

    def raw(self, row: int) -> bytes:
        """Return the encoded bytes of one sample. Negative rows count from the end; IndexError beyond."""
        sample = self._raw(row)
        if self._check is not None:
            self._check.one(row % self.num_samples, sample, self._place)
        return sample

    def _raw(self, row: int) -> bytes:
        num_samples = self.num_samples
        if not -num_samples <= row < num_samples:
            raise IndexError(f"row {row} of shard {self.name!r}: it has {num_samples:,} samples")
        if row < 0:
            row += num_samples
        if self._in_map:
            self._file.mapped()
        begin, end = self._span(row)
        if self._in_map:
            self._file.check_whole()
        return self._file.read(begin, end)

    def sample(self, row: int) -> dict[str, Any]:
        """Return one sample, decoded. Raises FormatError naming shard, row and, where known, sample id."""
        mapped = self._file.mapped() if self._check is None and 0 <= row < self.num_samples else None
        if mapped is None:
            encoded = self.raw(row)
            try:
                return self.decoder.one(encoded)
            except FormatError as error:
                raise FormatError(f"{self._where(row)}: {error}") from error
        offsets = self._offsets
        begin, end = offsets[row], offsets[row + 1]
        if not begin <= end <= self._nbytes:
            raise self._changed()
        try:
            sample = self._quick_row(mapped, begin, end)
        except MALFORMED:
            try:
                sample = self.decoder.row(mapped, begin, end)  # which says what is wrong
            except FormatError as error:
                self._file.check_whole()
                raise FormatError(f"{self._where(row)}: {error}") from error
        self._file.check_whole()
        return sample

    def samples(self, rows: NDArray[np.integer[Any]]) -> list[dict[str, Any]]:
        """Return several samples in the order of ``rows`` (int array, shape (n,); repeats are allowed).

        Raises:
            IndexError: a row outside [-len, len).
            FormatError: malformed bytes; names shard, row and, where known, sample id.
        """
        few = rows.tolist() if len(rows) < FEW and self._file.is_local else ()
        if few and self._check is None and min(few) >= 0 and max(few) < self.num_samples:
            return self._few(few, rows)
        return self._decoded(rows, self.decoder.many)

    def _few(self, numbers: list[int], rows: NDArray[np.integer[Any]]) -> list[dict[str, Any]]:
        offsets, decode = self._offsets, self.decoder.row
        mapped = self._file.mapped()
        if self._advises:
            for row in numbers:
                self._file.advise(*self._span(row))
        if mapped is None:
            return [self.sample(row) for row in numbers]
        try:
            if self._in_map:
                samples = [decode(mapped, *self._span(row)) for row in numbers]
            else:
                samples = [decode(mapped, offsets[row], offsets[row + 1]) for row in numbers]
        except FormatError as error:
            raise self._explained(error, rows) from error
        self._file.check_whole()
        return samples

    @property
    def asks_ahead(self) -> bool:
        """Whether rows are asked for before they are read: the file was not in the page cache when it was opened."""
        return self._advises

    def in_place(self) -> tuple[Callable[[Buffer, int, int], dict[str, Any]], mmap.mmap, memoryview] | None:
        """What many rows of several shards are decoded with in one loop: the decoder's ``quick_row``, the file's map,
        and where each row begins and the last one ends. What comes of it counts only after ``check_whole``.

        None where rows are to be read, asked for ahead, or checked with their hashes, or offsets are in the map.
        """
        takes_more = self._advises or self._in_map or self._check is not None
        mapped = None if takes_more else self._file.mapped()
        return None if mapped is None else (self.decoder.quick_row, mapped, self._offsets)

    def place(self) -> Place | None:
        """Say where the file is in memory. What is taken from there counts only after ``check_whole``.

        None where rows are to be read, asked for ahead, or checked with their hashes.
        """
        found = None if self._advises or self._check is not None else self._file.in_memory()
        return None if found is None else (*found, self._nbytes, self._file.descriptor)

    def check_whole(self) -> None:
        """Raise FormatError if the file was cut, so that what was just decoded ``in_place`` is worth nothing."""
        self._file.check_whole()

    def is_current(self) -> bool:
        """Whether the file at ``path`` is still the one that was opened, and was not written to since."""
        return self._file.is_current()

    def columns_of(self, rows: NDArray[np.integer[Any]]) -> dict[str, Any]:
        """Return samples column-wise: arrays for fixed-size columns, else lists. Raises as ``samples``."""
        return self._decoded(rows, self.decoder.columns_of)

    def gather(self, rows: NDArray[np.integer[Any]]) -> tuple[bytes, NDArray[np.int64], NDArray[np.int64]]:
        """Copy the bytes of samples: (buffer, begins, ends), sample i being buffer[begins[i]:ends[i]].

        Buffers of several shards with one schema can be joined and decoded by one ``SampleDecoder.many``.
        """
        begins, ends = self._spans(rows)
        mapped = self._mapped(begins, ends)
        if mapped is None:
            joined, begins, ends = self._file.read_rows(begins, ends)
        else:
            joined = b"".join([mapped[a:b] for a, b in zip(begins.tolist(), ends.tolist(), strict=True)])
            self._file.check_whole()
            lengths = ends - begins
            ends = lengths.cumsum()
            begins = ends - lengths
        if self._check is not None:
            self._check.many(rows, joined, begins, ends, self._place)
        return joined, begins, ends

    def pieces(self, rows: NDArray[np.integer[Any]]) -> list[bytes]:
        """Copy the bytes of samples, one after another. Raises as ``gather``."""
        few = rows.tolist() if self._check is None and not self._advises and len(rows) < FEW else ()
        if few and min(few) >= 0 and max(few) < self.num_samples:
            mapped = self._file.mapped()
            if mapped is not None:
                offsets = self._offsets
                pieces = [mapped[offsets[row] : offsets[row + 1]] for row in few]
                self._file.check_whole()
                return pieces
        joined, begins, ends = self.gather(rows)
        return [joined[a:b] for a, b in zip(begins.tolist(), ends.tolist(), strict=True)]

    def sample_nbytes(self) -> NDArray[np.int64]:
        """Return the encoded size of each sample, shape (num_samples,)."""
        if self._in_map:
            self._file.mapped()
        table = self._table.astype(np.int64)
        nbytes: NDArray[np.int64] = table[1:] - table[:-1]
        if self._in_map:
            self._file.check_whole()
        return nbytes

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()

    def __enter__(self) -> ShardReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ShardReader({self.name!r}, num_samples={self.num_samples})"

    def __reduce__(self) -> tuple[Any, ...]:
        if self._anonymous:
            raise TypeError(f"{self!r} reads an unnamed temporary file, which another process cannot open")
        return (
            _reopen,
            (self.path, self.info, self.decoder, self.name, self.first_sample_id, self._check),
        )

    @property
    def _offsets(self) -> memoryview:
        """The table as Python ints, which NumPy makes more slowly; for rows that are read one by one."""
        places = self._places
        if places is None:
            places = self._places = self._table.data
        return places

    def _span(self, row: int) -> tuple[int, int]:
        offsets = self._offsets
        begin, end = offsets[row], offsets[row + 1]
        if self._in_map and not begin <= end <= self._file.nbytes:
            raise self._changed()
        return begin, end

    def _spans(self, rows: NDArray[np.integer[Any]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if self._in_map:
            self._file.mapped()
        try:
            begins = self._table[:-1].take(rows).astype(np.int64)
            ends = self._table[1:].take(rows).astype(np.int64)
        except IndexError:
            raise IndexError(
                f"rows of shard {self.name!r}: {np.min(rows)} to {np.max(rows)} asked, "
                f"it has {self.num_samples:,} samples"
            ) from None
        if self._in_map:
            self._file.check_whole()
            if ((begins > ends) | (ends > self._file.nbytes)).any():
                raise self._changed()
        return begins, ends

    def _decoded(self, rows: NDArray[np.integer[Any]], decode: Callable[..., T]) -> T:
        buffer: Buffer | None = None
        if self._check is None:
            begins, ends = self._spans(rows)
            buffer = self._mapped(begins, ends)
        if buffer is None:
            # With hashes always: a map may change after the check, this copy does not.
            buffer, begins, ends = self.gather(rows)
        try:
            found = decode(buffer, begins, ends)
        except FormatError as error:
            raise self._explained(error, rows) from error
        self._file.check_whole()
        return found

    def _mapped(self, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> mmap.mmap | None:
        """The file's map; None where rows are to be read."""
        if self._advises:
            for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
                self._file.advise(begin, end)
        return self._file.mapped()

    def _explained(self, error: FormatError, rows: NDArray[np.integer[Any]]) -> FormatError:
        """Find the first of ``rows`` that does not decode alone and name it."""
        for row in rows.tolist():
            try:
                self.decoder.one(self._raw(row))
            except FormatError as cause:
                return FormatError(f"{self._where(row)}: {cause}")
        return FormatError(f"shard {self.name!r}: {error}")

    def _changed(self) -> FormatError:
        self._file.check_whole()
        return FormatError(
            f"shard {self.name!r}: {self.path} was good when it was opened, and its table of offsets is not any more: "
            "nothing may write into a dataset that is in use"
        )

    def _where(self, row: int) -> str:
        if row < 0:
            row += self.num_samples
        return self._place(row) + describe_sample(self.info.schema, self._raw(row))

    def _place(self, row: int) -> str:
        place = f"shard {self.name!r}, row {row}"
        if self.first_sample_id is not None:
            place += f", sample {self.first_sample_id + row} of the dataset"
        return place


def _reopen(
    path: Path | str,
    info: ShardInfo,
    decoder: SampleDecoder,
    name: str,
    first_sample_id: int | None,
    check: SampleCheck | None,
) -> ShardReader:
    return ShardReader(path, info, decoder, name=name, first_sample_id=first_sample_id, check=check)

"""Reading samples: one, many as rows, or many as columns.

``many`` is the hot path of the package. Lengths of all rows are gathered and checked at once, numbers of
fixed size come out by one gather for the whole column, and no function is called per value for int, str,
bytes and scalars.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from streamshard.errors import FormatError, UnsafeEncodingError
from streamshard.format.column import Buffer, Column, Ids, bind, gather_bytes
from streamshard.format.encodings import Encoding, parse_encoding
from streamshard.format.row_code import BYTES, TEXT, Value, row_function, rows_function
from streamshard.format.side_by_side import Memory
from streamshard.format.warmth import warmed

FEW = 32
"""Fewer rows than this are quicker one by one than through NumPy, whose some 20 calls cost as much as 40 rows."""
MALFORMED = (FormatError, UnicodeDecodeError, struct.error)
"""What ``SampleDecoder.quick_row`` raises."""


class SampleDecoder:
    """Decodes the wanted columns of samples of one schema. Immutable, thread-safe, picklable.

    Made by :meth:`streamshard.format.schema.Schema.decoder`. Values are those of mosaicml-streaming: ``int``
    gives Python ints, ``uint8`` ... ``float64`` NumPy scalars, arrays are read-only unless asked otherwise.
    Every length is checked against its sample's bounds before anything is cut out.

    Attributes:
        columns: names of the wanted columns.
        quick_row: does what ``row`` does, for bytes and maps only, but does not say what is wrong.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        encodings: tuple[str, ...],
        sizes: tuple[int | None, ...],
        columns: tuple[str, ...],
        *,
        allow_unsafe_types: bool,
        decode_images: bool,
        writeable_arrays: bool,
    ) -> None:
        self.columns = columns
        self._arguments = (
            names,
            encodings,
            sizes,
            columns,
            allow_unsafe_types,
            decode_images,
            writeable_arrays,
        )
        num_variable = sum(size is None for size in sizes)
        self._head = 4 * num_variable
        self._least = self._head + sum(size for size in sizes if size is not None)
        self._lengths = struct.Struct(f"<{num_variable}I").unpack_from
        self._num_variable = num_variable
        self._plan: list[Column] = []
        # (fixed size or -1, decode or None, column) up to the last wanted column
        self._steps: list[tuple[int, Callable[[Buffer, int, int], Any] | None]] = []
        self._step_names = list(zip(names, encodings, strict=True))
        before = variable_before = 0
        for name, encoding_name, size in zip(names, encodings, sizes, strict=True):
            step = None
            if name in columns:
                encoding = _checked_encoding(name, encoding_name, size, allow_unsafe_types)
                column = Column(name, size, before, variable_before)
                bind(column, encoding, decode_images=decode_images, writeable=writeable_arrays)
                self._plan.append(column)
                step = column.row
            self._steps.append((-1 if size is None else size, step))
            before += size or 0
            variable_before += size is None
        while self._steps[-1][1] is None:
            self._steps.pop()
        values = [
            Value(c.name, c.kind, c.size, self._head + c.before, c.variable_before, c.row) for c in self._plan
        ]
        self.quick_row = row_function(values, num_variable, self._least)
        self._build_rows = rows_function(tuple((c.name, c.kind) for c in self._plan))

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return _rebuild, self._arguments

    def one(self, sample: Buffer | memoryview) -> dict[str, Any]:
        """Decode one sample from its bytes.

        Raises:
            FormatError: lengths that do not add up, or a value that its encoding does not allow.
        """
        sample = _sliced_as_bytes(sample)
        return self.row(sample, 0, len(sample))

    def row(self, buffer: Buffer, begin: int, end: int) -> dict[str, Any]:
        """Decode the sample at ``buffer[begin:end]``, with 0 <= begin <= end <= len(buffer). Raises as ``one``."""
        try:
            return self.quick_row(buffer, begin, end)
        except MALFORMED:
            return self._step_by_step(buffer, begin, end)  # which says what is wrong

    def many(self, buffer: Buffer | memoryview, begins: Ids, ends: Ids) -> list[dict[str, Any]]:
        """Decode the samples at ``buffer[begins[i]:ends[i]]``, in any order, as a list of dicts.

        Raises:
            FormatError: as :meth:`one`; the message begins with ``row i``, i counting from 0 in this call.
        """
        buffer = _sliced_as_bytes(buffer)
        try:
            if len(begins) < FEW:
                self._check_bounds(buffer, begins, ends)
                return [self.row(buffer, a, b) for a, b in zip(begins.tolist(), ends.tolist(), strict=True)]
            lists: list[list[Any]] = []
            for column, starts, stops in zip(self._plan, *self._locate(buffer, begins, ends), strict=True):
                if column.kind in (TEXT, BYTES):
                    lists += starts.tolist(), stops.tolist()
                else:
                    lists.append(column.rows(buffer, starts, stops))
            found: list[dict[str, Any]] = []
            for part in warmed(buffer, begins, ends):
                found += self._build_rows(buffer, [each[part] for each in lists])
        except (FormatError, UnicodeDecodeError) as error:
            raise self._blame(buffer, begins, ends, error) from error
        return found

    def columns_of(self, buffer: Buffer | memoryview, begins: Ids, ends: Ids) -> dict[str, Any]:
        """Decode as :meth:`many`, column by column.

        Returns:
            For ``int``, scalars and arrays of fixed shape one NumPy array with a row per sample (of its
            own memory, writeable); for all others a list.
        """
        buffer = _sliced_as_bytes(buffer)
        try:
            places = self._locate(buffer, begins, ends)
            return {c.name: c.column(buffer, a, b) for c, a, b in zip(self._plan, *places, strict=True)}
        except (FormatError, UnicodeDecodeError) as error:
            raise self._blame(buffer, begins, ends, error) from error

    def columns_from(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Arrange decoded samples as ``columns_of`` does: for few samples of many shards."""
        return {c.name: c.join([row[c.name] for row in rows]) for c in self._plan}

    def _check_bounds(self, buffer: Buffer, begins: Ids, ends: Ids) -> None:
        if np.count_nonzero(begins < 0) or np.count_nonzero(ends > len(buffer)):
            raise FormatError(f"a sample outside of the {len(buffer)} bytes given")

    def _locate(self, buffer: Buffer, begins: Ids, ends: Ids) -> tuple[list[Ids], list[Ids]]:
        """Check all lengths and give where each wanted column begins and ends, an array per column."""
        self._check_bounds(buffer, begins, ends)
        spans = ends - begins
        if np.count_nonzero(spans < self._least):
            raise FormatError("a sample shorter than its columns take")
        if not self._num_variable:
            if np.count_nonzero(spans != self._least):
                raise FormatError("a sample longer than its columns take")
            starts = [begins + c.before for c in self._plan]
            return starts, [a + (c.size or 0) for c, a in zip(self._plan, starts, strict=True)]
        words = gather_bytes(buffer, begins, self._head).view("<u4").reshape(-1, self._num_variable)
        # Column j: bytes of the variable columns up to and with j. int64, so that no sum can wrap.
        sums = words.astype(np.int64) if self._num_variable == 1 else words.cumsum(axis=1, dtype=np.int64)
        if np.count_nonzero(sums[:, -1] != spans - self._least):
            raise FormatError("a sample whose column lengths do not add up to its size")
        starts, stops = [], []
        for c in self._plan:
            start = begins + (self._head + c.before)
            if c.variable_before:
                start += sums[:, c.variable_before - 1]
            starts.append(start)
            if c.size is not None:
                stops.append(start)  # not used: the size is known
            elif c.variable_before:
                stops.append(begins + (self._head + c.before) + sums[:, c.variable_before])
            else:
                stops.append(start + sums[:, 0])
        return starts, stops

    def _step_by_step(self, buffer: Buffer, begin: int, end: int) -> dict[str, Any]:
        nbytes = end - begin
        if nbytes < self._least:
            raise FormatError(
                f"a sample of {nbytes} bytes, shorter than the {self._least} that its columns take"
            )
        lengths = self._lengths(buffer, begin)
        if sum(lengths) + self._least != nbytes:
            raise FormatError(
                f"a sample of {nbytes} bytes whose columns take {sum(lengths) + self._least} by its "
                "length words"
            )
        variable = iter(lengths)
        at = begin + self._head
        values = []
        try:
            for size, decode in self._steps:
                stop = at + (size if size >= 0 else next(variable))
                if decode is not None:
                    values.append(decode(buffer, at, stop))
                at = stop
        except (FormatError, UnicodeDecodeError) as error:
            name, encoding = [s for s, (_, d) in zip(self._step_names, self._steps, strict=False) if d][
                len(values)
            ]
            raise FormatError(f"column {name!r} (encoding {encoding!r}): {_reason(error)}") from error
        return dict(zip(self.columns, values, strict=True))

    def _blame(self, buffer: Buffer, begins: Ids, ends: Ids, error: Exception) -> FormatError:
        """Find the first row that does not decode and name it."""
        for row, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
            if not 0 <= begin <= end <= len(buffer):
                return FormatError(f"row {row}: bytes {begin} to {end} of {len(buffer)} given")
            try:
                self._step_by_step(buffer, begin, end)
            except FormatError as cause:
                return FormatError(f"row {row}: {cause}")
        return FormatError(_reason(error))


def _rebuild(names: Any, encodings: Any, sizes: Any, columns: Any, *flags: bool) -> SampleDecoder:
    unsafe, images, writeable = flags
    return SampleDecoder(
        names,
        encodings,
        sizes,
        columns,
        allow_unsafe_types=unsafe,
        decode_images=images,
        writeable_arrays=writeable,
    )


def _checked_encoding(column: str, name: str, size: int | None, allow_unsafe_types: bool) -> Encoding:
    try:
        encoding = parse_encoding(name)
    except FormatError as error:
        raise FormatError(f"column {column!r}: {error}") from error
    if encoding.size != size:
        raise FormatError(
            f"column {column!r}: encoding {name!r} has size {encoding.size}, the index says {size}"
        )
    if encoding.unsafe and not allow_unsafe_types:
        raise UnsafeEncodingError(
            f"column {column!r} is stored as {name!r}, whose reading can run code that the data "
            "chooses; leave it "
            "out with columns=[...], or pass allow_unsafe_types=True if you trust who wrote it"
        )
    return encoding


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8: {error.reason} at byte {error.start}"
    return str(error)


def _sliced_as_bytes(buffer: Any) -> Buffer:
    return buffer if type(buffer) in (bytes, mmap.mmap, Memory) else bytes(buffer)

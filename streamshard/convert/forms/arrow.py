"""Parquet and Arrow files as input: rows decoded once, batch by batch, into a spool.

What has an exact MDS encoding keeps it: integers and floats of their width, lists of numbers as arrays, and lists of
lists whose shape is said, too. Text and binary stay; times and decimals become text; all else (booleans, structs,
other nested lists) becomes JSON. A column with nulls becomes JSON, too, whatever its type, and binary that is null is
stored as no bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from streamshard.convert.class_names import ClassNames, names_in_schema
from streamshard.convert.forms.nested_lists import (
    Shape,
    fixed_sizes,
    shape_of_type,
    shaped_arrays,
    shapes_in_schema,
)
from streamshard.convert.forms.packed import PackedForm, Spool
from streamshard.convert.sources import PACKED, Source
from streamshard.errors import ConvertError, MissingDependencyError
from streamshard.write.arrow_values import plain_json, python_values

if TYPE_CHECKING:
    from streamshard.convert.staging import StageTask

_PART_NBYTES = 1 << 27
_BATCH_ROWS = 1024
_BATCH_NBYTES = 1 << 25


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError:
        raise MissingDependencyError(
            "Parquet and Arrow files need pyarrow: pip install 'streamshard[parquet]'"
        ) from None
    return pyarrow


def row_group_spans(path: Path, name: str) -> list[tuple[tuple[int, int], int]]:
    """Divide a Parquet file: ``((first row group, end), rows before)`` for parts of about 128 MiB as decoded.

    Raises:
        ConvertError: not a Parquet file, or a cut one.
    """
    pa = _pyarrow()
    try:
        metadata = pa.parquet.read_metadata(path)
    except (pa.ArrowException, OSError) as error:
        raise _broken(name, "Parquet", error, path) from None
    spans: list[tuple[tuple[int, int], int]] = []
    first = before = rows = nbytes = 0
    for group in range(metadata.num_row_groups):
        found = metadata.row_group(group)
        rows += found.num_rows
        nbytes += found.total_byte_size
        if nbytes >= _PART_NBYTES or group == metadata.num_row_groups - 1:
            spans.append(((first, group + 1), before))
            first, before, nbytes = group + 1, rows, 0
    return spans or [((0, 0), 0)]


def stage_table(task: StageTask, path: Path, spool: Path, advance: Callable[[int], None]) -> Source:
    """Decode a Parquet file, its row groups ``task.span``, or an Arrow file into a spool.

    Raises:
        ConvertError: not such a file, a cut one, or a value that cannot be stored.
    """
    pa = _pyarrow()
    origin = task.origin
    kind = "Parquet" if origin.kind == "parquet" else "Arrow"
    typing = BatchTyping()
    row = task.before
    share = path.stat().st_size
    try:
        batches = _parquet_batches(pa, path, task.span) if kind == "Parquet" else _arrow_batches(pa, path)
        with Spool(spool) as out:
            for batch, nbytes in batches:
                columns = typing.columns(batch)
                names = batch.schema.names
                try:
                    out.add(dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True))
                except (TypeError, ValueError) as error:
                    raise ConvertError(
                        f"source {origin.name!r}: a row after row {row}: {error}; leave its column out with --drop"
                    ) from None
                row += batch.num_rows
                advance(min(nbytes, share))
                share -= min(nbytes, share)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk, not the data
        raise _broken(origin.name, kind, error, path) from None
    return Source(
        origin.name,
        str(spool),
        PackedForm(spool).nbytes,
        origin.image_folder,
        PACKED,
        "row",
        task.before,
        typing.declared(),
        class_names={} if task.before else typing.class_names,
    )


def table_rows(
    path: Path, name: str, kind: str, columns: Collection[str] | None = None
) -> Iterator[dict[str, Any]]:
    """The rows of a Parquet or Arrow file, with the values that :func:`stage_table` would lay down.

    Args:
        kind: ``"parquet"`` or ``"hf"``.
        columns: those wanted, where there are such; ``None``: all.

    Raises:
        ConvertError: not such a file, or a cut one.
    """
    pa = _pyarrow()
    typing = BatchTyping()
    try:
        batches = _parquet_batches(pa, path, None, columns) if kind == "parquet" else _arrow_batches(pa, path)
        for batch, _ in batches:
            kept = [one for one in batch.schema.names if columns is None or one in columns]
            for values in zip(*typing.columns(batch.select(kept)), strict=True):
                yield dict(zip(kept, values, strict=True))
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk, not the data
        raise _broken(name, "Parquet" if kind == "parquet" else "Arrow", error, path) from None


def _broken(name: str, kind: str, error: Exception, path: Path) -> ConvertError:
    text = " ".join(str(error).split())
    with path.open("rb") as file:
        is_json = file.read(1) in (b"{", b"[")
    advice = "it begins as JSON does: say --from jsonl" if is_json else "fetch or make it again"
    return ConvertError(f"source {name!r}: not a sound {kind} file: {text[:300]}; {advice}")


def _parquet_batches(
    pa: Any, path: Path, span: tuple[int, int] | None, columns: Collection[str] | None = None
) -> Iterator[tuple[Any, int]]:
    with pa.parquet.ParquetFile(path) as file:
        _check_names(file.schema_arrow, path)
        metadata = file.metadata
        wanted = None if columns is None else [name for name in file.schema_arrow.names if name in columns]
        groups = list(range(*(span or (0, metadata.num_row_groups))))
        for group in groups:
            found = metadata.row_group(group)
            stored = sum(found.column(number).total_compressed_size for number in range(found.num_columns))
            rows = _batch_rows(found.total_byte_size, found.num_rows)
            for batch in file.iter_batches(batch_size=rows, row_groups=[group], columns=wanted):
                yield batch, stored * batch.num_rows // max(1, found.num_rows)


def _arrow_batches(pa: Any, path: Path) -> Iterator[tuple[Any, int]]:
    with pa.memory_map(str(path)) as source:
        if source.read(6) == b"ARROW1":
            source.seek(0)
            reader = pa.ipc.open_file(source)
            _check_names(reader.schema, path)
            batches: Any = (reader.get_batch(number) for number in range(reader.num_record_batches))
        else:
            source.seek(0)
            batches = pa.ipc.open_stream(source)
            _check_names(batches.schema, path)
        for batch in batches:
            rows = _batch_rows(batch.nbytes, batch.num_rows)
            for begin in range(0, batch.num_rows, rows):
                part = batch.slice(begin, rows)
                yield part, part.nbytes


def _batch_rows(nbytes: int, rows: int) -> int:
    return max(1, min(_BATCH_ROWS, _BATCH_NBYTES * max(1, rows) // max(1, nbytes)))


def _check_names(schema: Any, path: Path) -> None:
    for name in schema.names:
        if schema.names.count(name) > 1:
            raise ConvertError(f"source {path.name!r}: it has column {name!r} twice")


class BatchTyping:
    """Turns columns of batches into values, and knows at the end which encodings hold all of them."""

    def __init__(self) -> None:
        self._pa = pa = _pyarrow()
        self._encodings: dict[str, str | None] = {}
        self.class_names: ClassNames = {}
        self._shapes: dict[str, Shape] = {}
        self._is_scalar = {
            pa.int8(): "int8", pa.int16(): "int16", pa.int32(): "int32", pa.int64(): "int",
            pa.uint8(): "uint8", pa.uint16(): "uint16", pa.uint32(): "uint32", pa.uint64(): "uint64",
            pa.float16(): "float16", pa.float32(): "float32", pa.float64(): "float64",
        }  # fmt: skip

    def declared(self) -> dict[str, str]:
        return {name: encoding for name, encoding in self._encodings.items() if encoding is not None}

    def columns(self, batch: Any) -> list[Sequence[Any]]:
        found = []
        if not self._encodings:
            self.class_names = names_in_schema(batch.schema.metadata)
            self._shapes = shapes_in_schema(batch.schema.metadata)
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            try:
                values, encoding = self._shaped(column, self._shapes.get(name)) or self._values(column)
            except ValueError as error:  # times that Python cannot hold, inside views and dictionaries
                raise ConvertError(f"column {name!r}: {error}") from None
            if self._encodings.setdefault(name, encoding) != encoding:
                self._encodings[name] = None
            found.append(values)
        return found

    def _shaped(self, column: Any, shape: Shape | None) -> tuple[Sequence[Any], str] | None:
        """A column of nested lists that have a shape."""
        pa = self._pa
        if isinstance(column, pa.ExtensionArray):
            if isinstance(column.type, pa.FixedShapeTensorType):
                return None
            column = column.storage
        shape = shape or shape_of_type(pa.types, column.type)
        found = None if shape is None else shaped_arrays(pa, column, shape)
        number = None if found is None else self._is_scalar.get(found[1])
        if shape is None or found is None or number is None:
            return None
        return found[0], f"ndarray:{'int64' if number == 'int' else number}{fixed_sizes(shape)}"

    def _values(self, column: Any) -> tuple[Sequence[Any], str | None]:
        """The values of one column of a batch, and the encoding that holds them if all values are like these."""
        pa = self._pa
        types = pa.types
        if isinstance(column, pa.ExtensionArray):
            if isinstance(column.type, pa.FixedShapeTensorType):
                number = self._is_scalar.get(column.type.value_type)
                if number is not None and not column.null_count and not column.storage.flatten().null_count:
                    return self._tensors(column, number)
                shape, order = column.type.shape, column.type.permutation or range(len(column.type.shape))
                return [
                    None
                    if value is None
                    else np.array(value, object).reshape(shape).transpose(order).tolist()
                    for value in self._values(column.storage)[0]
                ], None
            column = column.storage
        if types.is_dictionary(column.type):
            column = column.dictionary_decode()
        kind = column.type
        scalar = self._is_scalar.get(kind)
        if scalar is not None:
            return column.to_pylist(), scalar if not column.null_count else None
        if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
            number = self._is_scalar.get(kind.value_type)
            flat = column.flatten()
            if number is not None and not column.null_count and not flat.null_count:
                return self._arrays(column, flat, number)
        if types.is_duration(kind):
            counts = column.cast(pa.int64()).to_pylist()
            return [None if count is None else f"{count} {kind.unit}" for count in counts], None
        if types.is_temporal(kind):
            column = column.cast(pa.string())
        elif types.is_decimal(kind):
            return [None if value is None else str(value) for value in column.to_pylist()], None
        elif str(kind) in ("string_view", "binary_view"):  # pyarrow 14 has no test for them
            return column.to_pylist(), None
        values = python_values(column)
        return [plain_json(value) for value in values] if types.is_nested(kind) else values, None

    def _tensors(self, column: Any, number: str) -> tuple[Sequence[Any], str]:
        shape, order = column.type.shape, column.type.permutation or range(len(column.type.shape))
        flat = column.storage.flatten().to_numpy(zero_copy_only=False)
        rows = flat.reshape(len(column), *shape).transpose(0, *(place + 1 for place in order))
        dtype = "int64" if number == "int" else number
        return list(rows), f"ndarray:{dtype}:{','.join(map(str, rows.shape[1:]))}"

    def _arrays(self, column: Any, flat: Any, number: str) -> tuple[Sequence[Any], str]:
        values = flat.to_numpy(zero_copy_only=False)
        dtype = "int64" if number == "int" else number
        if self._pa.types.is_fixed_size_list(column.type):
            size = column.type.list_size
            rows = values.reshape(len(column), size)
            return list(rows), f"ndarray:{dtype}:{size}" if size else f"ndarray:{dtype}"
        lengths = self._pa.compute.list_value_length(column).to_numpy(zero_copy_only=False)
        return np.split(values, np.cumsum(lengths)[:-1]) if len(lengths) else [], f"ndarray:{dtype}"

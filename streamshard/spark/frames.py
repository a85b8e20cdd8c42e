"""A DataFrame's partitions as the parts of a dataset."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from streamshard.storage.opening import is_local
from streamshard.write.arrow_values import python_values, row_converter
from streamshard.write.parts import PartedDataset, WrittenPart

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_OPTIONS = ("compression", "hashes", "size_limit", "samples_per_shard", "costs", "sample_hash", "retry")
# Accepted since mosaicml-streaming's writer has them; executors keep no copies and show no bars.
_WITHOUT_EFFECT = ("keep_local", "progress_bar", "max_workers")
_RESULT = "number long, folder string, index binary, num_samples long"
_ENCODINGS = {
    "byte": "int8", "short": "int16", "integer": "int32", "long": "int64", "float": "float32", "double": "float64",
    "string": "str", "varchar": "str", "char": "str", "binary": "bytes", "decimal": "str_decimal",
}  # fmt: skip


def write_frame(
    frame: DataFrame,
    merge_index: bool,
    given: dict[str, Any],
    udf_iterable: Callable[..., Iterable[Mapping[str, Any]]] | None,
    udf_kwargs: Mapping[str, Any],
) -> tuple[str, str]:
    """See :func:`streamshard.spark.dataframe_to_mds`; ``given`` holds ``out``, ``columns`` and all options."""
    out = _place(given.pop("out", None))
    columns = given.pop("columns", None)
    exist_ok = given.pop("exist_ok", False)
    storage_options = given.pop("storage_options", None)
    for name in _WITHOUT_EFFECT:
        given.pop(name, None)
    unknown = sorted(set(given) - set(_OPTIONS))
    if unknown:
        raise ValueError(f"{unknown[0]}=: no such option; there are {', '.join(_OPTIONS)}")
    if columns is None:
        if udf_iterable is not None:
            raise ValueError("columns: must be given with udf_iterable, whose samples may have other columns")
        columns = columns_of_frame(frame)
    elif udf_iterable is None:
        missing = [name for name in columns if name not in frame.columns]
        if missing:
            raise ValueError(f"columns: {missing[0]!r} is no column; the DataFrame has {frame.columns}")
    row_converter(columns)  # an encoding that there is not is named here, before any task runs
    parts = PartedDataset.of(out, columns, {"compression": "zstd", **given}, storage_options)
    parts.begin(exist_ok=exist_ok)
    try:
        names = [f"`{name.replace('`', '``')}`" for name in columns]
        wanted = frame if udf_iterable is not None else frame.select(*names)
        rows = wanted.mapInArrow(_WritePartition(parts, udf_iterable, udf_kwargs), _RESULT).collect()
        written = [
            WrittenPart(row["number"], row["folder"], bytes(row["index"]), row["num_samples"]) for row in rows
        ]
        parts.commit(written, publish=merge_index)
    except BaseException:
        parts.abandon()
        raise
    return (parts.out, "") if is_local(parts.out) else ("", parts.out)


def columns_of_frame(frame: DataFrame) -> dict[str, str]:
    """The encodings for the types of a DataFrame's columns."""
    return {column.name: _encoding_of(column.dataType) for column in frame.schema.fields}


def _encoding_of(kind: Any) -> str:
    name = kind.typeName()
    if name == "array":
        number = _ENCODINGS.get(kind.elementType.typeName(), "")
        if number == "bytes":
            return "list[bytes]"
        return f"ndarray:{number}" if number.startswith(("int", "float")) else "json"
    # decimal(10,2), varchar(8) and char(8) have their sizes in their names in some versions.
    return _ENCODINGS.get(name.partition("(")[0], "json")


def _place(out: Any) -> str:
    places = out if isinstance(out, (tuple, list)) else (out,)
    if not 1 <= len(places) <= 2 or not all(
        isinstance(p, (str, os.PathLike)) and os.fspath(p) for p in places
    ):
        raise ValueError(f"out={out!r}: expected a directory or URL (of a pair, the second is used)")
    return os.fspath(places[-1])


@dataclass(frozen=True)
class _WritePartition:
    """What an executor runs on the batches of one partition."""

    parts: PartedDataset
    udf_iterable: Callable[..., Iterable[Mapping[str, Any]]] | None
    udf_kwargs: Mapping[str, Any] = field(repr=False)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        written = self.parts.write(
            context.partitionId() if context is not None else 0, self._samples(batches)
        )
        if written is not None:
            columns = [[written.number], [written.folder], [written.index], [written.num_samples]]
            types = (pa.int64(), pa.string(), pa.binary(), pa.int64())
            arrays = [pa.array(values, kind) for values, kind in zip(columns, types, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, ["number", "folder", "index", "num_samples"])

    def _samples(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Mapping[str, Any]]:
        convert = row_converter(self.parts.columns)
        for batch in batches:
            if self.udf_iterable is not None:
                yield from self.udf_iterable(batch.to_pandas(), **self.udf_kwargs)
            else:
                columns = [python_values(column) for column in batch.columns]
                for values in zip(*columns, strict=True):
                    yield convert(dict(zip(batch.schema.names, values, strict=True)))

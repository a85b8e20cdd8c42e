"""Rows from Python as input: dicts, an Arrow table, a Hugging Face dataset in memory."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from streamshard.convert.class_names import ClassNames, names_in_features
from streamshard.convert.forms.packed import COLUMNS_SUFFIX, Spool
from streamshard.convert.job import convert
from streamshard.convert.journal import work_directory
from streamshard.convert.kinds import ROWS
from streamshard.convert.options import ConvertOptions
from streamshard.convert.progress import Progress
from streamshard.convert.summary import Summary
from streamshard.errors import ConvertError

_BLOCK = 1 << 20
_ROWS_AT_ONCE = 1000


def convert_records(
    records: Any, out: str | os.PathLike[str], *, progress: Progress | None = None, **options: Any
) -> Summary:
    """Write rows as a dataset, with all that ``streamshard convert`` does: types, images, checks, shuffle.

    The rows are read once and laid down beside ``out`` (in the cache folder of the user where that is a URL), so they
    may be more than memory holds. After a kill, the same call with the same rows goes on where it stopped.

    Args:
        records: an iterable of dicts whose values are text, numbers, bytes, NumPy arrays, lists and dicts; a
            ``pyarrow`` table; or a ``datasets.Dataset`` with any selection.
        out: directory or URL of the new dataset.
        progress: told how far it is.
        options: fields of :class:`~streamshard.convert.options.ConvertOptions`, such as ``shuffle=0`` or
            ``image_root="images"``, where relative image paths start.

    Raises:
        ConvertError: a row that is no dict or holds a value that cannot be stored; as ``streamshard convert``.
    """
    place = os.fspath(out)
    folder = work_directory(place, options.get("work_dir"))
    folder = folder.with_name(f"{folder.name}-rows")
    spool = folder / "rows"
    checked = ConvertOptions(sources=(str(spool),), out=place, kind=ROWS, **options)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        columns, names = _spool(records, spool)
        spool.with_suffix(COLUMNS_SUFFIX).write_text(json.dumps([columns, names]), encoding="ascii")
        # The time tells runs of the same rows from others: it is one of their content.
        stamp = _digest(spool, columns)
        os.utime(spool, ns=(stamp, stamp))
        return convert(checked, progress)
    finally:
        # What an interrupted run has left is needed by the next one.
        if not work_directory(place, options.get("work_dir")).exists():
            shutil.rmtree(folder)


def _spool(records: Any, path: Path) -> tuple[dict[str, str], ClassNames]:
    """Lay rows down; gives the columns whose encoding all rows agree on, and the names of classes."""
    if hasattr(records, "features") and hasattr(records, "with_format"):
        tables = records.with_format("arrow").iter(batch_size=_ROWS_AT_ONCE)
        columns, names = _spool_batches((batch for table in tables for batch in table.to_batches()), path)
        # A selection may have lost what its schema said.
        return columns, names or names_in_features(records.features and records.features.to_dict())
    if hasattr(records, "to_batches"):
        return _spool_batches(records.to_batches(max_chunksize=_ROWS_AT_ONCE), path)
    return _spool_dicts(records, path), {}


def _spool_batches(batches: Iterable[Any], path: Path) -> tuple[dict[str, str], ClassNames]:
    from streamshard.convert.forms.arrow import BatchTyping

    typing = BatchTyping()
    with Spool(path) as out:
        for batch in batches:
            names = batch.schema.names
            try:
                out.add(
                    dict(zip(names, values, strict=True))
                    for values in zip(*typing.columns(batch), strict=True)
                )
            except (TypeError, ValueError) as error:
                raise ConvertError(f"the table holds a value that cannot be stored: {error}") from None
    return typing.declared(), typing.class_names


def _spool_dicts(records: Iterable[Mapping[str, Any]], path: Path) -> dict[str, str]:
    encodings: dict[str, str | None] = {}
    counts: dict[str, int] = {}
    number = 0
    rows = iter(records)
    with Spool(path) as out:
        while some := list(islice(rows, _ROWS_AT_ONCE)):
            for row in some:
                number += 1
                try:
                    out.add([_checked(row, encodings, counts)])
                except (TypeError, ValueError, RecursionError) as error:
                    raise ConvertError(f"row {number}: {error}") from None
    return {
        name: encoding
        for name, encoding in encodings.items()
        if encoding is not None and counts[name] == number
    }


def _checked(row: Any, encodings: dict[str, str | None], counts: dict[str, int]) -> Mapping[str, Any]:
    if not isinstance(row, Mapping):
        raise TypeError(f"expected a dict of columns, found {type(row).__name__}")
    for name, value in row.items():
        if not isinstance(name, str):
            raise TypeError(f"the key {name!r} is no text")
        counts[name] = counts.get(name, 0) + 1
        encoding = _own_encoding(value)
        if encodings.setdefault(name, encoding) != encoding:
            encodings[name] = None
    return row


def _own_encoding(value: Any) -> str | None:
    """The encoding of a NumPy value, which keeps its type."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "iuf":
        return f"ndarray:{value.dtype.name}"
    if isinstance(value, (np.integer, np.floating)):
        return str(value.dtype.name)
    return None


def _digest(spool: Path, columns: Mapping[str, str]) -> int:
    digest = xxhash.xxh64(json.dumps(columns, sort_keys=True).encode())
    with spool.open("rb") as file:
        for block in _blocks(file):
            digest.update(block)
    # Nanoseconds within the years that every file system knows.
    return digest.intdigest() % (1 << 60)


def _blocks(file: Any) -> Iterator[bytes]:
    while block := file.read(_BLOCK):
        yield block

"""Records of the files that ``streamshard convert`` takes, one after another."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from streamshard.convert.forms.form import open_form
from streamshard.convert.origins import Origin, find_origins
from streamshard.convert.problems import RecordProblem
from streamshard.convert.sources import Source
from streamshard.convert.staging import in_place, stage_input, stage_tasks
from streamshard.errors import ConvertError


def read_records(
    path: str | os.PathLike[str], *, kind: str | None = None, columns: Collection[str] | None = None
) -> Iterator[dict[str, Any]]:
    """Read JSONL, a JSON array (both also packed), CSV, TSV, Parquet, Arrow, a WebDataset tar, or a folder of these.

    Memory is bounded by the largest record (of Parquet and Arrow: by some records). What has to be unpacked is, into
    ``TMPDIR``.

    Args:
        path: file or folder.
        kind: as ``--from``; ``None``: told by what it holds.
        columns: the keys wanted, where a record has them; ``None``: all. Others of a Parquet file are not read.

    Raises:
        ConvertError: no such file, an unknown kind, or the first record that is broken, with its place.
    """
    for origin in find_origins((os.fspath(path),), None, kind):
        if origin.kind in ("parquet", "hf"):
            from streamshard.convert.forms.arrow import table_rows

            yield from table_rows(Path(origin.location), origin.name, origin.kind, columns)
            continue
        with tempfile.TemporaryDirectory(prefix="streamshard-recipe-") as folder:
            for source in _sources(origin, Path(folder)):
                for record in _records(source):
                    yield record if columns is None else _chosen(record, columns)


def _sources(origin: Origin, folder: Path) -> list[Source]:
    plain = in_place(origin)
    if plain is not None:
        return [plain]
    made: list[Source] = []
    for task in stage_tasks(origin, folder, 0, None):
        stage_input(task, lambda _nbytes, _records: None)
        made += task.sources()
    return made


def _records(source: Source) -> Iterator[dict[str, Any]]:
    form = open_form(source, {})
    for offset, _, text in form.spans(0, source.nbytes):
        if not text:
            continue
        try:
            yield form.parse(text, checked=False)
        except RecordProblem as problem:
            raise ConvertError(f"{source.place(form.number(offset))}: {problem}") from None


def _chosen(record: dict[str, Any], columns: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name in columns}

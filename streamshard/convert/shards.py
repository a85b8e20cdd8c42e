"""Making one shard of the plan: the unit of work that any process can do, at any time, with the same bytes."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamshard.convert.columns import ImageColumn, plain_values
from streamshard.convert.destination import open_destination
from streamshard.convert.forms.form import Form, open_form
from streamshard.convert.journal import Journal
from streamshard.convert.jsonl import read_span
from streamshard.convert.places import ImagePlace, Located, open_place
from streamshard.convert.plan import Plan
from streamshard.convert.problems import RecordProblem
from streamshard.convert.references import Embedded, Reference
from streamshard.convert.scan import (
    Advance,
    count_costs,
    digest_of,
    joined_digest,
    kept_references,
    locate_reference,
)
from streamshard.convert.shaping import Shaping
from streamshard.convert.sources import CELLS, LINES, Source
from streamshard.errors import ConvertError
from streamshard.format.sample_hashes import side_basename
from streamshard.format.schema import Schema
from streamshard.write.encode import shard_basename, write_shard, write_side_file

# Lines that follow one another are read together up to this many bytes.
_SPAN_NBYTES = 1 << 23
# Remote images are fetched ahead this many at a time.
_REMOTE_THREADS = 16
_STALE = "the input changed while it was converted: run again, with --no-resume"


@dataclass(frozen=True, slots=True)
class WriteTask:
    """One shard of a plan, by number, and where it belongs."""

    directory: str
    shard: int
    out: str
    image_root: str | None
    shaping: Shaping
    allow_outside_root: bool
    compression: str | None
    hashes: tuple[str, ...]
    size_limit: int | None
    storage_options: Mapping[str, Any] | None = None
    costs: tuple[tuple[str, str], ...] = ()
    sample_hash: str | None = None

    @property
    def label(self) -> str:
        return f"writing {shard_basename(self.shard)}"


def write_planned_shard(task: WriteTask, advance: Advance) -> int:
    """Make, publish and record one shard; gives its raw size in bytes.

    Raises:
        ConvertError: the input is no longer what was planned.
        StorageError: the output cannot be written.
    """
    plan = _loaded_plan(task.directory, (Path(task.directory) / "plan.json").stat().st_mtime_ns)
    samples: list[bytes] = []
    unreported = reported = 0
    source = _ShardSamples(plan, task)
    for sample in source.encoded():
        samples.append(sample)
        unreported += len(sample)
        if unreported >= _SPAN_NBYTES:
            advance(unreported, len(samples) - reported)
            unreported, reported = 0, len(samples)
    built = Path(task.directory) / "built" / f"{task.shard:05d}.{os.getpid()}"
    built.mkdir(parents=True, exist_ok=True)
    info = write_shard(
        built,
        shard_basename(task.shard),
        plan.schema(),
        samples,
        compression=task.compression,
        hashes=task.hashes,
        size_limit=task.size_limit,
    )
    basename = info.stored.basename
    destination = open_destination(task.out, task.storage_options)
    side_digest = None
    if task.sample_hash is not None:
        side_digest = write_side_file(built, info.raw.basename, samples, task.sample_hash)
        side = side_basename(info.raw.basename)
        destination.place(built / side, side)
    placed = destination.place(built / basename, basename)
    Journal(Path(task.directory)).record(task.shard, info, placed, source.costs, side_digest)
    for left in built.iterdir():
        left.unlink()
    built.rmdir()
    advance(unreported, len(samples) - reported)
    return info.raw.nbytes


@lru_cache(maxsize=1)
def _loaded_plan(directory: str, _version: int) -> Plan:
    return Plan.load(Path(directory))


@dataclass(slots=True)
class _Record:
    sample: dict[str, Any]
    row: Any
    images: list[tuple[ImageColumn, list[Located | Embedded]]]


class _ShardSamples:
    def __init__(self, plan: Plan, task: WriteTask) -> None:
        self._plan = plan
        self._task = task
        self._rows = plan.rows(task.shard)
        self._encode = Schema.from_columns(plan.columns.taken_encodings()).encoder()
        self._places: dict[str, ImagePlace] = {}
        self._forms: dict[int, Form] = {}
        self._shapings: dict[int, Shaping] = {}
        self.costs = [0] * len(task.costs)  # of the samples given so far

    def encoded(self) -> Iterator[bytes]:
        if not self._plan.columns.images:
            for row, line in self._lines():
                yield self._finish(self._prepared(row, line), [])
            return
        window: list[_Record] = []
        for row, line in self._lines():
            record = self._prepared(row, line)
            window.append(record)
            if not self._is_remote() or len(window) == _REMOTE_THREADS:
                yield from self._flush(window)
                window = []
        yield from self._flush(window)

    def _is_remote(self) -> bool:
        return any(place.remote for place in self._places.values())

    def _flush(self, window: list[_Record]) -> Iterator[bytes]:
        if len(window) > 1:
            with ThreadPoolExecutor(_REMOTE_THREADS) as threads:
                contents = list(threads.map(self._contents, window))
        else:
            contents = [self._contents(record) for record in window]
        for record, images in zip(window, contents, strict=True):
            yield self._finish(record, images)

    def _lines(self) -> Iterator[tuple[Any, bytes]]:
        """The lines of the shard's rows in output order, read in ascending runs where they are neighbours."""
        rows = self._rows
        files: dict[int, int] = {}
        try:
            begin = 0
            while begin < len(rows):
                end = _run_end(rows, begin)
                source = int(rows["source"][begin])
                if source not in files:
                    files[source] = os.open(self._plan.sources[source].path, os.O_RDONLY | os.O_CLOEXEC)
                first = int(rows["offset"][begin])
                last = int(rows["offset"][end - 1]) + int(rows["line_nbytes"][end - 1])
                span = read_span(files[source], first, last - first)
                for row in rows[begin:end]:
                    at = int(row["offset"]) - first
                    yield row, span[at : at + int(row["line_nbytes"])]
                begin = end
        finally:
            for file in files.values():
                os.close(file)
            for form in self._forms.values():
                form.close()

    def _prepared(self, row: Any, line: bytes) -> _Record:
        try:
            return self._with_references(self._form(row).parse(line, checked=True), row)
        except (ValueError, TypeError, AttributeError, LookupError, RecordProblem) as error:
            raise ConvertError(f"{self._where(row)}: {error}; {_STALE}") from error

    def _with_references(self, record: dict[str, Any], row: Any) -> _Record:
        counted = count_costs(record, self._task.costs)
        self.costs = [cost + more for cost, more in zip(self.costs, counted, strict=True)]
        source = self._source(row)
        shaped = self._shaping(int(row["source"])).apply(record, rich=source.kind not in (LINES, CELLS))
        sample = plain_values(self._plan.columns, shaped.values)
        images = []
        for column in self._plan.columns.images:
            located = [self._locate(reference, source) for reference in shaped.references.get(column.key, [])]
            if column.named:
                kept = kept_references(located)
                sample[column.path_column] = kept if column.listed else kept[0]
            images.append((column, located))
        return _Record(sample, row, images)

    def _shaping(self, number: int) -> Shaping:
        shaping = self._shapings.get(number)
        if shaping is None:
            shaping = self._shapings[number] = self._task.shaping.for_source(self._plan.sources[number])
        return shaping

    def _form(self, row: Any) -> Form:
        number = int(row["source"])
        form = self._forms.get(number)
        if form is None:
            names = self._task.shaping.before_names()
            form = self._forms[number] = open_form(self._plan.sources[number], names)
        return form

    def _locate(self, reference: Reference, source: Source) -> Located | Embedded:
        return locate_reference(reference, lambda: self._place_of(self._root(source)))

    def _place_of(self, root: str) -> ImagePlace:
        place = self._places.get(root)
        if place is None:
            place = self._places[root] = open_place(
                root,
                allow_outside_root=self._task.allow_outside_root,
                storage_options=self._task.storage_options,
            )
        return place

    def _root(self, source: Source) -> str:
        return source.image_folder if self._task.image_root is None else self._task.image_root

    def _contents(self, record: _Record) -> list[bytes]:
        place = self._places.get(self._root(self._source(record.row)))
        contents: list[bytes] = []
        try:
            for _, located in record.images:
                for image in located:
                    if isinstance(image, Embedded):
                        contents.append(image.content)
                    elif place is not None:
                        contents.append(place.read(image))
        except RecordProblem as problem:
            raise ConvertError(f"{self._where(record.row)}: {problem}; {_STALE}") from None
        return contents

    def _finish(self, record: _Record, contents: list[bytes]) -> bytes:
        planned = int(record.row["image_hash"])
        begin = 0
        for column, located in record.images:
            mine = contents[begin : begin + len(located)]
            begin += len(located)
            record.sample[column.key] = _listed(mine) if column.listed else mine[0]
        encoded = self._encode(record.sample)
        # Planned sizes are the proof that this shard is cut where the plan says.
        if len(encoded) != int(record.row["sample_nbytes"]) or (
            planned and joined_digest([digest_of(content) for content in contents]) != planned
        ):
            raise ConvertError(
                f"{self._where(record.row)}: the record or an image of it is not what it was when it was checked"
                f" ({len(encoded)} bytes, planned {int(record.row['sample_nbytes'])}); {_STALE}"
            )
        return encoded

    def _source(self, row: Any) -> Source:
        return self._plan.sources[int(row["source"])]

    def _where(self, row: Any) -> str:
        return self._source(row).place(self._form(row).number(int(row["offset"])))


def _listed(images: list[bytes]) -> bytes:
    """The stored form of ``list[jpeg]`` and ``list[png]``: u32 zero, u32 count, u32 sizes, files."""
    return b"".join([struct.pack(f"<{2 + len(images)}I", 0, len(images), *map(len, images)), *images])


def _run_end(rows: NDArray[Any], begin: int) -> int:
    """The end of the run of rows from ``begin`` whose lines follow one another closely in one source."""
    limit = min(len(rows), begin + 4096)
    offsets = rows["offset"][begin:limit].astype(np.int64)
    sizes = rows["line_nbytes"][begin:limit].astype(np.int64)
    gaps = offsets[1:] - (offsets[:-1] + sizes[:-1])
    near = (rows["source"][begin + 1 : limit] == rows["source"][begin]) & (gaps >= 0) & (gaps <= 4096)
    near &= offsets[1:] + sizes[1:] - offsets[0] <= _SPAN_NBYTES
    breaks = np.flatnonzero(~near)
    return begin + 1 + (int(breaks[0]) if len(breaks) else len(near))

"""Making one shard of the plan: the unit of work that any process can do, at any time, with the same bytes."""

from __future__ import annotations

import os
import struct
import uuid
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamshard.convert.columns import ImageColumn, plain_values
from streamshard.convert.destination import open_destination
from streamshard.convert.forms.form import Form, open_form
from streamshard.convert.images import own_pixel_limit
from streamshard.convert.journal import Journal
from streamshard.convert.jsonl import read_span
from streamshard.convert.located import digest_of, joined_digest, kept_references
from streamshard.convert.places import Located
from streamshard.convert.plan import Plan
from streamshard.convert.problems import RecordProblem
from streamshard.convert.references import Embedded
from streamshard.convert.scan import Advance, count_costs
from streamshard.convert.shaping import Shaping
from streamshard.convert.sources import CELLS, LINES, Source
from streamshard.convert.supply import ImageSettings, ImageSupply
from streamshard.errors import ConvertError
from streamshard.format.sample_hashes import side_basename
from streamshard.format.schema import Schema
from streamshard.format.shard import config_text, shard_head
from streamshard.write.encode import shard_basename, store_shard, write_side_file

# Lines that follow one another are read together up to this many bytes.
_SPAN_NBYTES = 1 << 23
# What is kept for the next shard is as much as a shard of the default size needs, and not gigabytes.
_KEPT_NBYTES = 1 << 27
_spare_memory: list[NDArray[np.uint8]] = []
_STALE = "the input changed while it was converted: run again, with --no-resume"


@dataclass(frozen=True, slots=True)
class WriteTask:
    """One shard of a plan, by number, and where it belongs; ``built``: where it is made, if not in ``directory``."""

    directory: str
    shard: int
    out: str
    image_root: str | None
    shaping: Shaping
    images: ImageSettings
    compression: str | None
    hashes: tuple[str, ...]
    size_limit: int | None
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    costs: tuple[tuple[str, str], ...] = ()
    sample_hash: str | None = None
    built: str = ""

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
    # Process numbers of several machines may be the same.
    name = f"{task.shard:05d}.{os.getpid()}.{uuid.uuid4().hex[:8]}"
    built = Path(task.built or f"{task.directory}/built") / name
    built.mkdir(parents=True, exist_ok=True)
    schema = plan.schema()
    config = config_text(schema, compression=task.compression, hashes=task.hashes, size_limit=task.size_limit)
    with own_pixel_limit(task.images.max_pixels), ImageSupply(task.images) as supply:
        return _write(task, plan, schema, config, built, supply, advance)


def _write(
    task: WriteTask,
    plan: Plan,
    schema: Schema,
    config: bytes,
    built: Path,
    supply: ImageSupply,
    advance: Advance,
) -> int:
    source = _ShardSamples(plan, task, supply)
    head = shard_head(source.sizes, config)
    with _room_for(len(head) + int(source.sizes.sum())) as content:
        content[: len(head)] = head
        end = len(head)
        reported_nbytes, reported = end, 0
        for number, parts in enumerate(source.encoded(), start=1):
            for part in parts:
                begin, end = end, end + len(part)
                content[begin:end] = part
            if end - reported_nbytes >= _SPAN_NBYTES:
                advance(end - reported_nbytes, number - reported)
                reported_nbytes, reported = end, number
        advance(end - reported_nbytes, len(source.sizes) - reported)
        side_digest = None
        if task.sample_hash is not None:
            ends = len(head) + np.cumsum(source.sizes)
            samples = [content[end - nbytes : end] for end, nbytes in zip(ends, source.sizes, strict=True)]
            side_digest = write_side_file(built, shard_basename(task.shard), samples, task.sample_hash)
        info = store_shard(
            built,
            shard_basename(task.shard),
            schema,
            [content],
            len(source.sizes),
            compression=task.compression,
            hashes=task.hashes,
            size_limit=task.size_limit,
        )
    basename = info.stored.basename
    destination = open_destination(task.out, task.storage_options)
    if side_digest is not None:
        side = side_basename(info.raw.basename)
        destination.place(built / side, side)
    placed = destination.place(built / basename, basename)
    Journal(Path(task.directory)).record(task.shard, info, placed, source.costs, side_digest)
    for left in built.iterdir():
        left.unlink()
    built.rmdir()
    return info.raw.nbytes


@contextmanager
def _room_for(nbytes: int) -> Iterator[memoryview]:
    """Lend memory for one shard; what the last shard had is lent again, since fresh memory costs as much as a copy."""
    memory = _spare_memory.pop() if _spare_memory else np.empty(0, np.uint8)
    if len(memory) < nbytes:
        memory = np.empty(nbytes, np.uint8)
    yield memory.data[:nbytes]
    if len(memory) <= _KEPT_NBYTES:
        _spare_memory.append(memory)


@lru_cache(maxsize=1)
def _loaded_plan(directory: str, _version: int) -> Plan:
    return Plan.load(Path(directory))


@dataclass(slots=True)
class _Record:
    place: int  # in the shard
    sample: dict[str, Any]
    images: list[tuple[ImageColumn, list[Located | Embedded]]]


class _ShardSamples:
    """The samples of one shard in order.

    Attributes:
        sizes: planned bytes of each, int64[num_samples].
        costs: sums over the samples given so far.
    """

    def __init__(self, plan: Plan, task: WriteTask, supply: ImageSupply) -> None:
        self._plan = plan
        self._task = task
        self._rows = plan.rows(task.shard)
        self.sizes = self._rows["sample_nbytes"].astype(np.int64)
        self._planned: list[tuple[int, int]] = list(
            zip(self.sizes.tolist(), self._rows["image_hash"].tolist(), strict=True)
        )
        self._sources: list[int] = self._rows["source"].tolist()
        self._encode = Schema.from_columns(plan.columns.taken_encodings()).parts_encoder()
        self._supply = supply
        self._forms: dict[int, Form] = {}
        self._shapings: dict[int, Shaping] = {}
        self.costs = [0] * len(task.costs)

    def encoded(self) -> Iterator[tuple[bytes, ...]]:
        """The bytes of each sample, in parts."""
        waiting: deque[_Record] = deque()
        waiting_images = 0
        for place, line in self._lines():
            record = self._prepared(place, line)
            root = self._root(place)
            for _, located in record.images:
                for image in located:
                    self._supply.begin(image, root)
                waiting_images += len(located)
            waiting.append(record)
            while waiting and waiting_images >= self._supply.wants_more:
                first = waiting.popleft()
                waiting_images -= sum(len(located) for _, located in first.images)
                yield self._finish(first, self._contents(first))
        for record in waiting:
            yield self._finish(record, self._contents(record))

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        """The lines of the shard's rows in output order, read in ascending runs where they are neighbours."""
        rows = self._rows
        offsets, sizes = rows["offset"].tolist(), rows["line_nbytes"].tolist()
        files: dict[int, int] = {}
        try:
            begin = 0
            while begin < len(rows):
                end = _run_end(rows, begin)
                source = int(rows["source"][begin])
                if source not in files:
                    files[source] = os.open(self._plan.sources[source].path, os.O_RDONLY | os.O_CLOEXEC)
                first = offsets[begin]
                span = read_span(files[source], first, offsets[end - 1] + sizes[end - 1] - first)
                for place in range(begin, end):
                    at = offsets[place] - first
                    yield place, span[at : at + sizes[place]]
                begin = end
        finally:
            for file in files.values():
                os.close(file)
            for form in self._forms.values():
                form.close()

    def _prepared(self, place: int, line: bytes) -> _Record:
        try:
            return self._with_references(self._form(place).parse(line, checked=True), place)
        except (ValueError, TypeError, AttributeError, LookupError, RecordProblem) as error:
            raise ConvertError(f"{self._where(place)}: {error}; {_STALE}") from error

    def _with_references(self, record: dict[str, Any], place: int) -> _Record:
        source = self._source(place)
        shaping = self._shaping(self._sources[place])
        shaped = shaping.apply(record, rich=source.kind not in (LINES, CELLS))
        if self._task.costs:
            counted = count_costs({**shaping.opened(record), **shaped.token_counts}, self._task.costs)
            self.costs = [cost + more for cost, more in zip(self.costs, counted, strict=True)]
        sample = plain_values(self._plan.columns, shaped.values)
        root = self._root(place)
        images = []
        for column in self._plan.columns.images:
            located = [
                self._supply.locate(reference, root) for reference in shaped.references.get(column.key, ())
            ]
            if column.named:
                kept = kept_references(located)
                sample[column.path_column] = kept if column.listed else kept[0]
            images.append((column, located))
        return _Record(place, sample, images)

    def _shaping(self, number: int) -> Shaping:
        shaping = self._shapings.get(number)
        if shaping is None:
            shaping = self._shapings[number] = self._task.shaping.for_source(self._plan.sources[number])
        return shaping

    def _form(self, place: int) -> Form:
        number = self._sources[place]
        form = self._forms.get(number)
        if form is None:
            names = self._task.shaping.before_names()
            form = self._forms[number] = open_form(self._plan.sources[number], names, self._task.shaping.drop)
        return form

    def _root(self, place: int) -> str:
        return self._source(place).image_folder if self._task.image_root is None else self._task.image_root

    def _contents(self, record: _Record) -> list[bytes]:
        contents: list[bytes] = []
        root = self._root(record.place)
        try:
            for _, located in record.images:
                contents += [self._supply.get(image, root).content for image in located]
        except RecordProblem as problem:
            raise ConvertError(f"{self._where(record.place)}: {problem}; {_STALE}") from None
        return contents

    def _finish(self, record: _Record, contents: list[bytes]) -> tuple[bytes, ...]:
        begin = 0
        for column, located in record.images:
            mine = contents[begin : begin + len(located)]
            begin += len(located)
            record.sample[column.key] = _listed(mine) if column.listed else mine[0]
        parts = self._encode(record.sample)
        nbytes, image_hash = self._planned[record.place]
        # Planned sizes are the proof that this shard is cut where the plan says.
        if sum(map(len, parts)) != nbytes or (
            image_hash and joined_digest([digest_of(content) for content in contents]) != image_hash
        ):
            raise ConvertError(
                f"{self._where(record.place)}: the record or an image of it is not what it was when it was checked"
                f" ({sum(map(len, parts))} bytes, planned {nbytes}); {_STALE}"
            )
        return parts

    def _source(self, place: int) -> Source:
        return self._plan.sources[self._sources[place]]

    def _where(self, place: int) -> str:
        return self._source(place).place(self._form(place).number(int(self._rows["offset"][place])))


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

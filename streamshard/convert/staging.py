"""Bringing an input into a form whose records can be read in any order, in the work directory where need be.

Plain local JSONL and raw local MDS shards are read in place. A URL is fetched, ``.gz``, ``.bz2``, ``.zst`` and
``.xz`` (told by their first bytes) are unpacked, JSON in UTF-16 or UTF-32 becomes UTF-8, a JSON array or a table of
text is rewritten as one record a line, and columnar files become a spool of rows; each such copy lives in the work
directory until the conversion is done, because shards are made in any order and need random access to records.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from streamshard.convert.forms.fetching import local_copy
from streamshard.convert.forms.packed import COLUMNS_SUFFIX, PackedForm
from streamshard.convert.json_array import array_to_lines
from streamshard.convert.jsonl import BOM
from streamshard.convert.kinds import RECIPE, ROWS
from streamshard.convert.origins import Origin
from streamshard.convert.scan import Advance
from streamshard.convert.sources import CELLS, PACKED, TAR, Source
from streamshard.convert.unpacking import packing_of, unpack
from streamshard.convert.wide_text import HEAD_NBYTES, narrow, wide_encoding, wide_encoding_of
from streamshard.storage.opening import is_local
from streamshard.storage.store import sync_file

_BLOCK = 1 << 20


class StageTask(NamedTuple):
    """One input, or one part of it, and the folder for its copy."""

    origin: Origin
    directory: str
    number: int
    part: int = 0
    span: tuple[int, int] | None = None
    before: int = 0
    storage_options: Mapping[str, Any] | None = None

    @property
    def label(self) -> str:
        return f"reading {self.origin.name}"

    @property
    def stem(self) -> str:
        return f"{self.number:05d}-{self.part:05d}"

    @property
    def listed(self) -> Path:
        """The file that lists the sources made; it is there when they are."""
        return Path(self.directory) / f"{self.stem}.json"

    def sources(self) -> list[Source]:
        """What was made."""
        return [Source(*row) for row in json.loads(self.listed.read_text(encoding="ascii"))]


def stage_tasks(
    origin: Origin, directory: Path, number: int, storage_options: Mapping[str, Any] | None
) -> list[StageTask]:
    """Divide the staging of an input into tasks for several processes."""
    spans: Sequence[tuple[tuple[int, int] | None, int]] = [(None, 0)]
    if origin.kind == "parquet" and is_local(origin.location):
        from streamshard.convert.forms.arrow import row_group_spans

        spans = row_group_spans(Path(origin.location), origin.name)
    return [
        StageTask(origin, str(directory), number, part, span, before, storage_options)
        for part, (span, before) in enumerate(spans)
    ]


def stage_input(task: StageTask, advance: Advance) -> int:
    """Carry out a task, and list what was made; gives the number of sources.

    Raises:
        ConvertError: compressed data that is cut or broken, broken UTF-16, a broken JSON array or table.
        StorageError: a URL that cannot be read.
    """
    sources = _Staging(task, advance).run()
    part = task.listed.with_name(f"{task.listed.name}.{os.getpid()}.part")
    part.write_text(json.dumps([source.to_json() for source in sources]), encoding="ascii")
    part.replace(task.listed)
    return len(sources)


def in_place(origin: Origin) -> Source | None:
    """The source that a plain local JSONL file is as it lies there; ``None`` for any other input."""
    if origin.kind != "jsonl" or origin.detail or not is_local(origin.location):
        return None
    path = Path(origin.location)
    with path.open("rb") as file:
        head = file.read(8)
        if packing_of(head) is not None or wide_encoding(head[:HEAD_NBYTES]) is not None:
            return None
    if first_character(path) == "[":
        return None
    return Source(origin.name, str(path), origin.nbytes, origin.image_folder)


class _Staging:
    def __init__(self, task: StageTask, advance: Advance) -> None:
        self._task = task
        self._origin = task.origin
        self._directory = Path(task.directory)
        self._advance = advance

    def run(self) -> list[Source]:
        origin, task = self._origin, self._task
        if origin.kind == "mds":
            from streamshard.convert.forms.mds_stage import stage_shard

            return [stage_shard(task, self._read)]
        if origin.kind == "imagefolder":
            from streamshard.convert.forms.folder import stage_folder

            return [stage_folder(origin, self._directory / f"{task.stem}.lines", task.storage_options)]
        if origin.kind == ROWS:
            return [self._rows()]
        if origin.kind == RECIPE:
            from streamshard.convert.recipe import stage_recipe

            return [stage_recipe(origin, self._directory / f"{task.stem}.spool", self._read)]
        if origin.kind == "litdata":
            from streamshard.convert.forms.litdata_stage import stage_chunk

            return [stage_chunk(task, self._read)]
        path, temporary = self._plain_file()
        sources = self._of_file(path, temporary)
        if temporary and all(path not in (Path(source.path), Path(source.aside)) for source in sources):
            path.unlink(missing_ok=True)
        return sources

    def _rows(self) -> Source:
        origin = self._origin
        path = Path(origin.location)
        columns, names = json.loads(path.with_suffix(COLUMNS_SUFFIX).read_text(encoding="ascii"))
        nbytes = PackedForm(path).nbytes
        self._read(origin.nbytes)
        return Source(
            origin.name, str(path), nbytes, origin.image_folder, PACKED, "row", 0, columns, class_names=names
        )

    def _read(self, nbytes: int) -> None:
        self._advance(nbytes, 0)

    def _plain_file(self) -> tuple[Path, bool]:
        """The input as a local, uncompressed file, JSON in UTF-8, and whether it is ours."""
        origin, task = self._origin, self._task
        path, temporary = local_copy(task)
        with path.open("rb") as file:
            packing = packing_of(file.read(8))
        if packing is not None:
            unpacked = self._directory / f"{task.stem}.unpacked"
            unpack(path, unpacked, packing, origin.name, self._read)
            if temporary:
                path.unlink()
            path, temporary = unpacked, True
        encoding = wide_encoding_of(path) if origin.kind == "jsonl" else None
        if encoding is not None:
            plain = self._directory / f"{task.stem}.utf8"
            narrow(path, plain, encoding, origin.name, self._read)
            if temporary:
                path.unlink()
            path, temporary = plain, True
        return path, temporary

    def _of_file(self, path: Path, temporary: bool) -> list[Source]:
        origin, task = self._origin, self._task
        if origin.kind in ("csv", "tsv"):
            from streamshard.convert.forms.table import table_to_lines

            lines = self._directory / f"{task.stem}.lines"
            table_to_lines(path, lines, origin.name, tabs=origin.kind == "tsv", advance=self._read)
            return [self._lines(lines, kind=CELLS, unit="row")]
        if origin.kind in ("parquet", "hf"):
            from streamshard.convert.forms.arrow import stage_table

            return [stage_table(task, path, self._directory / f"{task.stem}.spool", self._read)]
        if origin.kind == "webdataset":
            from streamshard.convert.forms.tar import tar_to_lines

            lines = self._directory / f"{task.stem}.lines"
            tar_to_lines(path, lines, origin.name, self._read)
            return [self._lines(lines, kind=TAR, unit="sample", aside=str(path))]
        first = first_character(path)
        if origin.detail:
            from streamshard.convert.json_members import members_to_lines

            lines = self._directory / f"{task.stem}.lines"
            members_to_lines(path, lines, origin.name, origin.detail, self._read)
            return [self._lines(lines, unit="record")]
        if first == "[":
            lines = self._directory / f"{task.stem}.lines"
            array_to_lines(path, lines, origin.name, self._read)
            return [self._lines(lines, unit="element")]
        if temporary:
            lines = self._directory / f"{task.stem}.lines"
            path.replace(lines)
            return [self._lines(lines)]
        return [self._lines(path)]

    def _lines(self, path: Path, **more: Any) -> Source:
        sync_file(path)  # it is on the disk before a list says that it is there
        return Source(self._origin.name, str(path), path.stat().st_size, self._origin.image_folder, **more)


def first_character(path: Path) -> str:
    """The first character of a UTF-8 text that is not white space; ``""`` where there is none."""
    with path.open("rb") as file:
        head = file.read(_BLOCK)
        head = head.removeprefix(BOM)
        while head:
            text = head.lstrip()
            if text:
                return chr(text[0])
            head = file.read(_BLOCK)
    return ""

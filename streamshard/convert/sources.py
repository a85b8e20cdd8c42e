"""Sources: inputs that are ready to be scanned, each one local file of records in one form."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from streamshard.errors import ConvertError

LINES, CELLS, PACKED, MDS, TAR, LITDATA = "lines", "cells", "packed", "mds", "tar", "litdata"
"""The forms of records, see :mod:`streamshard.convert.forms.form`."""

STALE = "the input changed while it was converted: run again, with --no-resume"


class Source(NamedTuple):
    """A source ready to be scanned.

    Attributes:
        name: of the input, for messages.
        path: the local file with the records.
        nbytes: the bytes of ``path`` that hold records.
        image_folder: where relative image references start.
        kind: the form of the records.
        unit: what a record is called in messages (``"row"``); empty: a physical line.
        before: how many records of the same input lie in front of this file.
        columns: column → encoding, where the input itself says so for every record.
        aside: another local file that records point into.
        class_names: column → what its numbers stand for, where the input says so.
        stamp: size in bytes and modification time in nanoseconds of a file of the user's that records are read from,
            before it was scanned; empty: there is none, or nobody can tell.
        image_keys: the keys that hold images, where the input itself says so; empty: it does not.
    """

    name: str
    path: str
    nbytes: int
    image_folder: str
    kind: str = LINES
    unit: str = ""
    before: int = 0
    columns: Mapping[str, str] = {}
    aside: str = ""
    class_names: Mapping[str, Sequence[str]] = {}
    stamp: Sequence[int] = ()
    image_keys: Sequence[str] = ()

    @property
    def is_text(self) -> bool:
        """Whether the records are JSON or text, with no binary, arrays or pictures in them."""
        return self.kind in (LINES, CELLS)

    def place(self, record: int) -> str:
        """Where a record stands, for messages: ``train.jsonl:4``, ``train.parquet: row 4``. Counted from 1."""
        if self.unit:
            return f"{self.name}: {self.unit} {self.before + record}"
        return f"{self.name}:{self.before + record}"

    @property
    def read_file(self) -> str:
        """The file that records are read from while shards are made, and that ``stamp`` is of."""
        return self.aside or self.path

    def stamped(self, location: str, nbytes: int, mtime_ns: int | None) -> Source:
        """As this, with what was known of the input at ``location`` before it was read, if that very file is read."""
        if mtime_ns is None or Path(self.read_file) != Path(location):
            return self
        return self._replace(stamp=(nbytes, mtime_ns))

    def refuse_changed(self) -> None:
        """Refuse a file that was written to since it was scanned, be it to the same size; costs one look at it.

        Raises:
            ConvertError: size or modification time are others, or the file is not there.
        """
        if not self.stamp:
            return
        try:
            found = os.stat(self.read_file)  # noqa: PTH116 many sources, many shards
        except OSError as error:
            raise ConvertError(f"{self.name}: cannot be read ({error.strerror}); {STALE}") from error
        if [found.st_size, found.st_mtime_ns] != list(self.stamp):
            sizes = f"from {self.stamp[0]} to {found.st_size} bytes"
            how = sizes if found.st_size != self.stamp[0] else f"its {found.st_size} bytes have another time"
            raise ConvertError(f"{self.name}: the file was written to since it was scanned ({how}); {STALE}")

    def to_json(self) -> list[Any]:
        return [
            self.name, self.path, self.nbytes, self.image_folder,
            self.kind, self.unit, self.before, dict(self.columns), self.aside,
            dict(self.class_names), list(self.stamp), list(self.image_keys),
        ]  # fmt: skip


def agreed_columns(sources: Sequence[Source]) -> dict[str, str]:
    """The columns that every source with records declares, with one encoding for all of them."""
    agreed: dict[str, str] | None = None
    for source in sources:
        if not source.nbytes:
            continue
        mine = source.columns
        if agreed is None:
            agreed = dict(mine)
        else:
            agreed = {name: encoding for name, encoding in agreed.items() if mine.get(name) == encoding}
    return agreed or {}

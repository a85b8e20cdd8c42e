"""Sources: inputs that are ready to be scanned, each one local file of records in one form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

LINES, CELLS, PACKED, MDS, TAR, LITDATA = "lines", "cells", "packed", "mds", "tar", "litdata"
"""The forms of records, see :mod:`streamshard.convert.forms.form`."""


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

    @property
    def is_text(self) -> bool:
        """Whether the records are JSON or text, with no binary, arrays or pictures in them."""
        return self.kind in (LINES, CELLS)

    def place(self, record: int) -> str:
        """Where a record stands, for messages: ``train.jsonl:4``, ``train.parquet: row 4``. Counted from 1."""
        if self.unit:
            return f"{self.name}: {self.unit} {self.before + record}"
        return f"{self.name}:{self.before + record}"

    def to_json(self) -> list[Any]:
        return [
            self.name, self.path, self.nbytes, self.image_folder,
            self.kind, self.unit, self.before, dict(self.columns), self.aside,
            dict(self.class_names),
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

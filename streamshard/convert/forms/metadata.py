"""The file that describes the images of a folder, as ``ImageFolder`` of Hugging Face ``datasets`` has it.

``file_name`` names the image of a row, which becomes column ``image``, and ``file_names`` a list of them (``images``);
``mask_file_name`` and ``frame_file_names`` become columns ``mask`` and ``frame``, where they name images of the folder.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from streamshard.convert.jsonl import BOM, parse_record
from streamshard.convert.listed_text import listed_in_text
from streamshard.convert.listing import Place
from streamshard.convert.problems import RecordProblem
from streamshard.convert.wide_text import narrowed
from streamshard.errors import ConvertError

METADATA = ("metadata.jsonl", "metadata.csv", "metadata.parquet")
"""The names that such a file may have, the first one there is taken."""

_FILE_NAME = "file_name"


class Metadata:
    """One such file.

    Args:
        place: the folder.
        name: of the file.
        images: the names of all images of the folder.

    Raises:
        ConvertError: broken content, or no row that names a file.
    """

    def __init__(self, place: Place, name: str, images: Collection[str]) -> None:
        self._place = place
        self._name = name
        self._where = f"{place.name}/{name}"
        self._columns = self._columns_of_images(images)

    @property
    def image_keys(self) -> tuple[str, ...]:
        """The columns of images, where they are others than ``image`` alone."""
        columns = tuple(sorted(self._columns.values()))
        return () if columns == ("image",) else columns

    def records(self) -> Iterator[dict[str, Any]]:
        """The rows, with the keys of files as columns of images."""
        for number, row in enumerate(self._rows(), 1):
            named = {column: row.pop(key, None) for key, column in self._columns.items()}
            if all(value in (None, "", []) for value in named.values()):
                keys = " or ".join(map(repr, self._columns))
                raise ConvertError(
                    f"{self._where}: row {number} has nothing under {keys}, expected the name of its image; take the"
                    " row out, or name the image"
                )
            twice = sorted(named.keys() & row.keys())
            if twice:
                raise ConvertError(
                    f"{self._where}: row {number} has a key {twice[0]!r}, which is the name of the column for its"
                    " images; rename it in all rows"
                )
            yield {**{column: value or None for column, value in named.items()}, **row}

    def _columns_of_images(self, images: Collection[str]) -> dict[str, str]:
        """Key → column, of the keys that name images."""
        seen: dict[str, Any] = {}
        columns: dict[str, str] = {}
        for row in self._rows():
            for key, value in row.items():
                column = _column_of(key)
                if column is None or key in columns:
                    continue
                seen.setdefault(key, value)
                if key in (_FILE_NAME, f"{_FILE_NAME}s") or _names_one(value, images):
                    columns[key] = column
        if not columns:
            some = f"; {min(seen)!r} names no image of the folder" if seen else ""
            raise ConvertError(
                f"{self._where}: no row has a key 'file_name' (or 'file_names', 'mask_file_name', …) that names an"
                f" image of this folder{some}; name the images so, or say --from jsonl (csv, parquet) if the rows are"
                " the records as they are"
            )
        for key, column in columns.items():
            other = next((one for one in columns if columns[one] == column and one != key), None)
            if other is not None:
                raise ConvertError(
                    f"{self._where}: keys {key!r} and {other!r} would both be column {column!r}; rename one of them"
                )
        return columns

    def _rows(self) -> Iterator[dict[str, Any]]:
        if self._name.endswith(".parquet"):
            yield from self._rows_of_table()
        elif self._name.endswith(".jsonl"):
            content = narrowed(self._place.read(self._name), self._where)
            for line, text in enumerate(content.removeprefix(BOM).split(b"\n"), 1):
                if text.strip():
                    try:
                        yield parse_record(text.strip())
                    except RecordProblem as problem:
                        raise ConvertError(f"{self._where}:{line}: {problem}") from None
        else:
            yield from self._rows_of_text(narrowed(self._place.read(self._name), self._where))

    def _rows_of_text(self, content: bytes) -> Iterator[dict[str, Any]]:
        try:
            table = csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True)
            for row in table:
                if None in row or None in row.values():
                    raise ConvertError(
                        f"{self._where}: line {table.line_num} has another number of values than the header"
                    )
                yield dict(row)
        except (csv.Error, UnicodeDecodeError) as error:
            raise ConvertError(f"{self._where}: {error}") from None

    def _rows_of_table(self) -> Iterator[dict[str, Any]]:
        from streamshard.convert.forms.arrow import table_rows
        from streamshard.convert.shaping import plain_json

        if not self._place.local:
            raise ConvertError(
                f"{self._where}: a table of a folder at a URL is not read; write it as metadata.jsonl there"
            )
        for number, row in enumerate(
            table_rows(Path(self._place.location, self._name), self._where, "parquet"), 1
        ):
            try:
                yield {key: plain_json(value) for key, value in row.items()}
            except RecordProblem as problem:
                raise ConvertError(f"{self._where}: row {number}: {problem}") from None


def _column_of(key: str) -> str | None:
    """The column that a key of files stands for; ``None`` for any other key."""
    for ending, alone in ((_FILE_NAME, "image"), (f"{_FILE_NAME}s", "images")):
        if key == ending:
            return alone
        if key.endswith(f"_{ending}"):
            return key.removesuffix(f"_{ending}") or alone
    return None


def _names_one(value: Any, images: Collection[str]) -> bool:
    items = listed_in_text(value) if type(value) is str and value[:1] == "[" else value
    names = items if type(items) is list else [items]
    return any(type(name) is str and name.removeprefix("./") in images for name in names)

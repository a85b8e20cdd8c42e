"""CSV and TSV: rows of text under a header, rewritten as one JSON object a line.

All values stay text. A row that does not fit the header becomes a JSON list with one message, which the scan reports as
a bad record with the number of its row.
"""

from __future__ import annotations

import csv
import io
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from streamshard.errors import ConvertError

_BLOCK = 1 << 20
_SEPARATORS = (",", ";", "\t", "|")
_LONGEST_VALUE = sys.maxsize >> 32  # what csv's C long takes on every machine
_limit_lock = threading.Lock()


def table_to_lines(
    path: Path, target: Path, name: str, *, tabs: bool, advance: Callable[[int], None]
) -> None:
    """Rewrite a table. Quotes are those of RFC 4180: a quoted value may hold separators, quotes (twice), line ends.

    Raises:
        ConvertError: not UTF-8, no header, a column name that is empty or stands twice, an open quote.
    """
    with path.open("rb") as file, _long_values(), target.open("w", encoding="ascii", newline="") as lines:
        rows = csv.reader(
            _text_lines(file, name, advance),
            delimiter="\t" if tabs else _separator(path),
            strict=True,
        )
        try:
            header = next((row for row in rows if row), None)
            if header is None:
                return
            _check_header(header, name)
            for row in rows:
                if not row:
                    continue
                if len(row) == len(header):
                    lines.write(json.dumps(dict(zip(header, row, strict=True))))
                else:
                    text = f"{len(row)} values under a header of {len(header)} names (line {rows.line_num} of the file)"
                    lines.write(json.dumps([text]))
                lines.write("\n")
        except csv.Error as error:
            raise ConvertError(f"source {name!r}: line {rows.line_num}: {error}") from None


class _long_values:  # noqa: N801 used as a statement
    """Lift csv's limit of 128 KiB a value, which belongs to the whole process, and put it back."""

    def __enter__(self) -> None:
        _limit_lock.acquire()
        self._before = csv.field_size_limit(_LONGEST_VALUE)

    def __exit__(self, *_: object) -> None:
        csv.field_size_limit(self._before)
        _limit_lock.release()


def _check_header(header: list[str], name: str) -> None:
    for place, column in enumerate(header):
        if not column.strip():
            raise ConvertError(
                f"source {name!r}: column {place + 1} of the header has no name; the first line must name all columns"
            )
        if column in header[:place]:
            raise ConvertError(f"source {name!r}: the header names column {column!r} twice")


def _separator(path: Path) -> str:
    """The separator of the header: a comma, or where there is none, the most frequent of ``;``, tab and ``|``."""
    with path.open("rb") as file:
        head = file.readline(_BLOCK).decode("utf-8", "replace")
    if "," in head:
        return ","
    return max(_SEPARATORS, key=head.count)


def _text_lines(file: BinaryIO, name: str, advance: Callable[[int], None]) -> Iterator[str]:
    text = io.TextIOWrapper(io.BufferedReader(_Counted(file, advance), _BLOCK), "utf-8-sig", newline="")
    try:
        yield from text
    except UnicodeDecodeError as error:
        raise ConvertError(f"source {name!r}: not UTF-8: {error.reason}; convert it to UTF-8") from None


class _Counted(io.RawIOBase):
    def __init__(self, file: BinaryIO, advance: Callable[[int], None]) -> None:
        self._file = file
        self._advance = advance

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # any writable buffer
        block = self._file.read(len(buffer))
        buffer[: len(block)] = block
        self._advance(len(block))
        return len(block)

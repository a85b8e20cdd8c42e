"""CSV and TSV: rows of text under a header, rewritten as one JSON object a line.

All values stay text. A row that does not fit the header becomes a JSON list with one message, which the scan reports as
a bad record with the number of its row.
"""

from __future__ import annotations

import csv
import io
import json
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from streamshard.convert.problems import shorten
from streamshard.convert.wide_text import HEAD_NBYTES, marked_encoding
from streamshard.errors import ConvertError

_BLOCK = 1 << 20
INDEX_COLUMN = "index"
"""The name of a first column whose name is empty."""

_DECLARATION = re.compile(r'"?sep=([^"])"?')
_HINTS = {
    "expected after": '; a quote inside a quoted value is written twice ("")',
    "end of data": "; a quote at the start of a value opens it, and one is never closed; where quotes are characters of"
    ' the text, the value is quoted and they are written twice ("""so"" it is")',
}
_QUOTED = re.compile(r'"[^"]*"')
_SEPARATORS = (",", ";", "\t", "|")
_LONGEST_VALUE = sys.maxsize >> 32  # what csv's C long takes on every machine
_limit_lock = threading.Lock()


def table_to_lines(
    path: Path, target: Path, name: str, *, tabs: bool, advance: Callable[[int], None]
) -> None:
    """Rewrite a table. Quotes are those of RFC 4180: a quoted value may hold separators, quotes (twice), line ends.

    Raises:
        ConvertError: neither UTF-8 nor UTF-16 with its mark, no header, a column name inside it that is empty or stands
            twice, an open quote.
    """
    with path.open("rb") as file, _long_values(), target.open("w", encoding="ascii", newline="") as lines:
        encoding = _encoding(path)
        separator, declared = ("\t", False) if tabs else _separator(path, encoding)
        text = _text_lines(file, name, encoding, advance)
        if declared:
            next(text)
        rows = csv.reader(text, delimiter=separator, strict=True)
        try:
            header = next((row for row in rows if row), None)
            if header is None:
                return
            width = len(header)
            names = _column_names(header, name)
            for row in rows:
                if not row:
                    continue
                if len(row) == width and not any(row[len(names) :]):
                    lines.write(json.dumps(dict(zip(names, row, strict=False))))
                else:
                    what = f"{len(row)} values under a header of {width} names"
                    if len(row) == width:
                        what = "a value in a column without a name"
                    lines.write(json.dumps([f"{what} (line {rows.line_num + declared} of the file)"]))
                lines.write("\n")
        except csv.Error as error:
            hint = next((what for found, what in _HINTS.items() if found in str(error)), "")
            raise ConvertError(f"source {name!r}: line {rows.line_num}: {error}{hint}") from None


class _long_values:  # noqa: N801 used as a statement
    """Lift csv's limit of 128 KiB a value, which belongs to the whole process, and put it back."""

    def __enter__(self) -> None:
        _limit_lock.acquire()
        self._before = csv.field_size_limit(_LONGEST_VALUE)

    def __exit__(self, *_: object) -> None:
        csv.field_size_limit(self._before)
        _limit_lock.release()


def _column_names(header: list[str], name: str) -> list[str]:
    """The names of the columns: those behind the last name have none, and hold nothing.

    A first column without a name is the row numbers that pandas writes.
    """
    names = list(header)
    if names[0].lstrip().startswith(('{"', "{'")):
        raise ConvertError(
            f"source {name!r}: the first line is a JSON object, and must name the columns: say --from jsonl"
        )
    while names and not names[-1].strip():
        names.pop()
    if len(names) > 1 and not names[0].strip() and INDEX_COLUMN not in names:
        names[0] = INDEX_COLUMN
    for place, column in enumerate(names):
        if "\0" in column:
            raise ConvertError(
                f"source {name!r}: NUL characters in the header: UTF-16? convert it to UTF-8"
                " (iconv -f UTF-16LE -t UTF-8)"
            )
        if not column.strip():
            raise ConvertError(
                f"source {name!r}: column {place + 1} of the header has no name; the first line must name all columns"
            )
        if column.startswith(("http://", "https://")):
            raise ConvertError(
                f"source {name!r}: the first line has {shorten(column, 60)}, and must name the columns; put such a line"
                " in front of the data"
            )
        if column in names[:place]:
            raise ConvertError(f"source {name!r}: the header names column {column!r} twice")
    return names


def _encoding(path: Path) -> str:
    """UTF-8, unless a byte order mark says UTF-16, as Excel's "Unicode text" has it, or UTF-32."""
    with path.open("rb") as file:
        return marked_encoding(file.read(HEAD_NBYTES)) or "utf-8-sig"


def _separator(path: Path, encoding: str) -> tuple[str, bool]:
    """The separator, and whether a first line of its own declares it, as Excel takes it: ``sep=;``.

    Else that of the header: a comma, or where there is none, the most frequent of ``;``, tab and ``|``.
    """
    with path.open(encoding=encoding, errors="replace", newline="\n") as file:
        head = file.readline(_BLOCK)
    declared = _DECLARATION.fullmatch(head.rstrip("\r\n"))
    if declared:
        return declared.group(1), True
    head = _QUOTED.sub("", head)
    if "," in head:
        return ",", False
    return max(_SEPARATORS, key=head.count), False


def _text_lines(file: BinaryIO, name: str, encoding: str, advance: Callable[[int], None]) -> Iterator[str]:
    text = io.TextIOWrapper(io.BufferedReader(_Counted(file, advance), _BLOCK), encoding, newline="")
    number = 1
    try:
        for number, line in enumerate(text, 2):  # noqa: B007 the number of the line behind it
            yield line
    except UnicodeDecodeError as error:
        number += error.object.count(b"\n", 0, error.start)
        found = error.object[error.start : error.start + 1].hex()
        raise ConvertError(
            f"source {name!r}: line {number}: byte 0x{found} is not {error.encoding.upper()}: {error.reason}; convert"
            " it to UTF-8 (iconv -f WINDOWS-1252 -t UTF-8, if it comes from Windows)"
        ) from None


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

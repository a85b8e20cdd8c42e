"""What scanning and writing need of any input: records as spans of bytes in one local file.

A span has an offset and a length, so that a plan can put records into any order, any process can read any of them
again, and a killed run goes on where it was. Six forms cover all kinds of input:

    lines    JSONL, JSON arrays, image folders      a line each
    cells    CSV, TSV                               a line each, whose values are text
    packed   Parquet, Arrow, rows from Python       JSON with its binary values behind it
    mds      MDS shards                             the stored sample
    tar      WebDataset                             a line that says where in the tar file the members lie
    litdata  LitData chunks                         the stored item
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from streamshard.convert.jsonl import BOM, chunk_lines, parse_record
from streamshard.convert.problems import BAD_ROW, RecordProblem
from streamshard.convert.sources import CELLS, LINES, LITDATA, MDS, PACKED, TAR, Source

_BLOCK = 1 << 20
_BLANKS = b" \t\r\n"
_decode = json.JSONDecoder().raw_decode


class Form(Protocol):
    """The records of one source; made anew in each process that needs it.

    Between two calls it holds no file open: some orders need all sources at once, and there may be any number of them.
    """

    def spans(self, begin: int, end: int) -> Iterator[tuple[int, int, bytes]]:
        """``(offset, taken, text)`` of each record that starts in bytes ``[begin, end)`` of the file, in order.

        ``taken`` counts the bytes that the record takes with what parts it from the next; ``text`` is empty where
        there is nothing but that (a blank line).
        """

    def parse(self, text: bytes, *, checked: bool) -> dict[str, Any]:
        """The record of a span; ``checked`` ones were parsed before without a problem.

        Raises:
            RecordProblem: it cannot be used.
        """

    def number(self, offset: int) -> int:
        """Which record of the source, from 1, lies at ``offset``."""


def open_form(source: Source, declared: Mapping[str, str], dropped: frozenset[str] = frozenset()) -> Form:
    """Open the records of a source.

    Args:
        declared: column → encoding where they are settled before any record is read. A source that stores a column
            with that very encoding gives its stored bytes, see :mod:`~streamshard.convert.shaping`.
        dropped: columns that nobody wants, which some forms need not decode.

    Raises:
        OSError: the file cannot be opened.
        FormatError: it is not what it was when it was staged.
    """
    if source.kind == LINES:
        return LinesForm(Path(source.path))
    if source.kind == CELLS:
        return CellsForm(Path(source.path), declared)
    if source.kind == PACKED:
        from streamshard.convert.forms.packed import PackedForm

        return PackedForm(Path(source.path))
    if source.kind == MDS:
        from streamshard.convert.forms.mds import ShardForm

        return ShardForm(source, declared)
    if source.kind == TAR:
        from streamshard.convert.forms.tar import TarForm

        return TarForm(Path(source.path), Path(source.aside))
    if source.kind == LITDATA:
        from streamshard.convert.forms.litdata import ChunkForm

        return ChunkForm(source, declared, dropped)
    raise ValueError(f"source {source.name!r}: unknown form {source.kind!r}")


class LinesForm:
    """One JSON object a line."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def spans(self, begin: int, end: int) -> Iterator[tuple[int, int, bytes]]:
        for offset, line in chunk_lines(self._path, begin, end):
            if line[:1] == b"{":
                yield offset, len(line), line.rstrip(_BLANKS)
                continue
            # What is stored of a line, whatever its line end.
            text = line.strip(_BLANKS)
            begin = line.index(text[:1])
            # Where files were joined, the byte order mark of each is at the start of a line.
            if text.startswith(BOM):
                left = text[len(BOM) :].lstrip(_BLANKS)
                begin += len(text) - len(left)
                text = left
            yield offset + begin, len(line), text

    def parse(self, text: bytes, *, checked: bool) -> dict[str, Any]:
        if not checked:
            return parse_record(text)
        # Duplicate keys and the like were refused by the scan; if the line is another one by now, sizes tell.
        record: dict[str, Any] = _decode(text.decode("utf-8"))[0]
        return record

    def number(self, offset: int) -> int:
        lines = 1
        with self._path.open("rb") as file:
            while offset > 0 and (block := file.read(min(offset, _BLOCK))):
                lines += block.count(b"\n")
                offset -= len(block)
        return lines


class CellsForm(LinesForm):
    """Rows of a table of text: one JSON object a line whose values are text, or a list that says what is bad."""

    def __init__(self, path: Path, declared: Mapping[str, str]) -> None:
        super().__init__(path)
        self._declared = dict(declared)

    def parse(self, text: bytes, *, checked: bool) -> dict[str, Any]:
        row = json.loads(text)
        if isinstance(row, list):
            raise RecordProblem(BAD_ROW, row[0])
        record: dict[str, Any] = row
        for name, encoding in self._declared.items():
            if name in record:
                record[name] = _cast(name, record[name], encoding)
        return record


def _cast(name: str, text: str, encoding: str) -> Any:
    try:
        if encoding == "json":
            return json.loads(text) if text else None
        if encoding.startswith(("int", "uint", "str_int")):
            return int(text)
        if encoding.startswith(("float", "str_float")):
            return float(text)
        if encoding == "str_decimal":
            from decimal import Decimal

            return Decimal(text)
        if encoding.startswith("ndarray"):
            return json.loads(text)
    except (ValueError, ArithmeticError, RecursionError):
        hint = "" if text else f"; --column {name}=json stores null for an empty value"
        raise RecordProblem(
            BAD_ROW,
            f"column {name!r} holds {text[:60]!r}, which is no value for --column {name}={encoding}{hint}",
        ) from None
    return text.encode() if encoding == "bytes" else text

"""Lines of a JSONL file: found by chunk, parsed strictly."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from streamshard.convert.problems import (
    BROKEN_JSON,
    DUPLICATE_KEY,
    NOT_AN_OBJECT,
    NOT_UTF8,
    TOO_LARGE,
    RecordProblem,
    shorten,
)

_LONGEST_LINE = (1 << 32) - 1
_READ_BUFFER = 1 << 20
# Python's parser gives up at a depth that depends on its caller's. This one is far below that, and always the same.
_DEEPEST = 500
_SMALLEST_CHUNK = 1 << 18
_LARGEST_CHUNK = 1 << 23
BOM = b"\xef\xbb\xbf"


class _DuplicateKeyError(Exception):
    """Carries a key out of the JSON parser; becomes a RecordProblem at once."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _DuplicateKeyError(key)
            seen.add(key)
    return made


strict_decoder = json.JSONDecoder(object_pairs_hook=_object)
"""Refuses an object, at any depth, that has one key twice."""


def chunk_nbytes(total_nbytes: int, *, check: bool) -> int:
    """The size of a unit of scanning for sources of this many bytes: enough units to share, not too many files.

    Where images are checked, a line can stand for milliseconds of decoding: units are a quarter as large, and up to
    4,096, so that no worker is left alone with a large one at the end.
    """
    smallest, units = (_SMALLEST_CHUNK // 4, 4096) if check else (_SMALLEST_CHUNK, 256)
    return min(_LARGEST_CHUNK, max(smallest, total_nbytes // units))


def chunk_lines(path: Path, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield ``(offset, line)`` for each line that *starts* in ``[begin, end)``; the line may end behind it.

    Every line of a file starts in exactly one of the chunks that tile it. A chunk inside one long line
    reads no more than itself. Lines come with their line end, if they have one. A byte order mark at
    the start of the file belongs to no line.
    """
    with path.open("rb", buffering=_READ_BUFFER) as file:
        offset = begin
        if begin:
            file.seek(begin - 1)
            rest = file.readline(end - begin + 1)
            if not rest.endswith(b"\n"):
                return
            offset = begin - 1 + len(rest)
        elif file.read(3) == BOM:
            offset = 3
        else:
            file.seek(0)
        while offset < end:
            line = file.readline()
            if not line:
                return
            yield offset, line
            offset += len(line)


def read_span(file: int, offset: int, nbytes: int) -> bytes:
    """Read exactly these bytes, or fewer at the end of the file, from a file descriptor."""
    parts = []
    while nbytes:
        part = os.pread(file, min(nbytes, 1 << 30), offset)
        if not part:
            break
        parts.append(part)
        offset += len(part)
        nbytes -= len(part)
    return b"".join(parts)


def parse_record(line: bytes) -> dict[str, Any]:
    """Parse one line into an object.

    Raises:
        RecordProblem: not UTF-8, not JSON, not an object, more than 500 levels deep, or a key that an object has twice.
    """
    if len(line) > _LONGEST_LINE:
        raise RecordProblem(TOO_LARGE, f"a line of {len(line)} bytes; a shard ends at 4 GiB")
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RecordProblem(
            NOT_UTF8, f"byte {error.start + 1} of the line is not UTF-8 ({error.reason}); JSONL must be UTF-8"
        ) from None
    try:
        record, end = strict_decoder.raw_decode(text)
        if end != len(text):
            record = strict_decoder.decode(text)  # tells what is wrong, unless it is but white space
    except json.JSONDecodeError as error:
        raise RecordProblem(BROKEN_JSON, broken_json_text(error)) from None
    except _DuplicateKeyError as error:
        raise RecordProblem(
            DUPLICATE_KEY, f"key {shorten(str(error), 80)} stands twice in one object; keep one of them"
        ) from None
    except RecursionError:
        raise RecordProblem(BROKEN_JSON, f"JSON nested more than {_DEEPEST} levels deep") from None
    except ValueError as error:  # an integer of more digits than Python parses
        raise RecordProblem(BROKEN_JSON, f"a value that cannot be parsed: {error}") from None
    if type(record) is not dict:
        raise RecordProblem(
            NOT_AN_OBJECT,
            f"found {_JSON_NAMES.get(type(record), 'a value')} ({shorten(text.strip(), 60)}),"
            " expected one JSON object {…} a line",
        )
    # Every level takes two characters.
    if len(line) > 2 * _DEEPEST and line.count(b"[") + line.count(b"{") > _DEEPEST:
        _check_depth(record)
    return record


def _check_depth(record: dict[str, Any]) -> None:
    level: list[Any] = [record]
    for _ in range(_DEEPEST):
        level = [
            item
            for holder in level
            for item in (holder.values() if type(holder) is dict else holder)
            if type(item) is dict or type(item) is list
        ]
        if not level:
            return
    raise RecordProblem(BROKEN_JSON, f"JSON nested more than {_DEEPEST} levels deep")


def broken_json_text(error: json.JSONDecodeError) -> str:
    """Say what the parser found, with the column (counted in characters from 1), and what the text may have meant."""
    return f"broken JSON at column {error.colno}: {error.msg}{_meant(error.doc, error.pos)}"


def _meant(text: str, place: int) -> str:
    rest = text[place:].strip(" \t\r\n")
    if not place and rest:
        hint = ""
        if rest[0].isalnum():
            hint = (
                "; a table? say --from tsv"
                if "\t" in rest
                else "; lines of text? `jq -Rc '{text: .}' FILE` makes records of them"
            )
        return f"; expected an object, and the line is {shorten(rest, 40)}{hint}"
    if _is_open(text, rest):
        return (
            "; a file that was cut, or an object over several lines? JSONL has one a line (`jq -c . FILE` writes it"
            " so); --records KEY takes the records that one object holds under a key, --records . those under all of"
            " its keys"
        )
    if rest == ",":
        return "; JSONL has one object a line and no comma behind it"
    if rest.startswith("{"):
        return "; another object follows on the same line"
    if text.lstrip().startswith(("{'", "{ '")):
        return "; Python's notation? JSON has double quotes (`json.dumps` writes it)"
    return ""


def _is_open(text: str, rest: str) -> bool:
    """Whether a text looks like a piece of an object that goes on in other lines."""
    return not rest and text.lstrip().startswith(("{", "["))


_JSON_NAMES: dict[type, str] = {
    list: "a list",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}

"""WebDataset tar files as input: members that share a key are one record, and nothing is ever extracted.

The key of ``a/b.c/0001.seg.png`` is ``a/b.c/0001`` (up to the first dot of the file's own name), its column is
``seg.png``. Staging reads the headers alone and writes one line for each record that says where its members lie:

    {"k": key, "m": [[column, offset, size, time, checksum of the header], …]}        or        [what is wrong]
"""

from __future__ import annotations

import json
import shlex
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from streamshard.convert.forms.form import LinesForm
from streamshard.convert.jsonl import read_span
from streamshard.convert.problems import BAD_ROW, RecordProblem, shorten
from streamshard.convert.unpacking import PACKED_SUFFIXES
from streamshard.errors import ConvertError

KEY = "__key__"
_BLOCK_NBYTES = 512
# As WebDataset decodes them; every other member stays bytes. Pickles are never read.
_TEXTS = frozenset(("txt", "text", "transcript"))
_INTEGERS = frozenset(("cls", "cls2", "class", "count", "index", "inx", "id"))
_DIGITS = 40
# Files with many records each: what a tar packs for its way, and no sample.
_OBJECT = "json"
_FEWEST = 3
_OF_MANY_RECORDS = frozenset(
    ("jsonl", "ndjson", "jsonlines", "csv", "tsv", "parquet", "pq", "arrow", "tar", "tgz", "zip", "mds")
)


def tar_to_lines(path: Path, target: Path, name: str, advance: Callable[[int], None]) -> None:
    """List the records of a tar file.

    Raises:
        ConvertError: not a tar file, a broken header, one that ends before its end mark, or one of files that hold
            records themselves.
    """
    packed = _PackedFiles()
    with target.open("w", encoding="ascii") as lines:
        for line in _grouped(_members(path, name, advance)):
            lines.write(json.dumps(line, separators=(",", ":")) + "\n")
            packed.look_at(line)
    packed.refuse(name)


class _PackedFiles:
    """Files that hold records themselves: alone under a name, of a kind that no sample of several files has.

    A single ``.json`` is one, too, where no other sample has any: it describes all the others.
    """

    def __init__(self) -> None:
        self._alone: dict[str, list[Any]] = {}  # kind → the first such file, how many there are
        self._together: set[str] = set()
        self._num_samples = 0

    def look_at(self, line: dict[str, Any] | list[str]) -> None:
        self._num_samples += 1
        columns = [member[0] for member in line["m"]] if isinstance(line, dict) else []
        kinds = {_unpacked_ending(column) for column in columns} & {*_OF_MANY_RECORDS, _OBJECT}
        if isinstance(line, dict) and len(columns) == 1 and kinds:
            self._alone.setdefault(min(kinds), [f"{line['k']}.{columns[0]}", 0])[1] += 1
        else:
            self._together |= kinds

    def refuse(self, name: str) -> None:
        found = {kind: file for kind, file in self._alone.items() if kind not in self._together}
        if _OBJECT in found and (found[_OBJECT][1] > 1 or self._num_samples < _FEWEST):
            del found[_OBJECT]
        if found:
            file, _ = min(found.values())
            all_are = sum(count for _, count in found.values()) == self._num_samples
            raise ConvertError(
                f"source {name!r}: a tar {'of files' if all_are else 'with a file'} of records ({shorten(file, 80)})"
                f"{'' if all_are else ' beside other files'}, and not one of samples; unpack it (tar -xf"
                f" {shlex.quote(name)} -C FOLDER), and name what is inside"
            )


def _unpacked_ending(column: str) -> str:
    for suffix in PACKED_SUFFIXES:
        column = column.removesuffix(suffix)
    return column.rpartition(".")[2]


def _members(path: Path, name: str, advance: Callable[[int], None]) -> Iterator[tarfile.TarInfo]:
    try:
        with path.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            before = 0
            for member in tar:
                yield member
                advance(tar.offset - before)
                before = tar.offset
                # The list of members that tarfile keeps would grow with the file.
                tar.members = []  # type: ignore[attr-defined]  # the stub does not know it
            end = read_span(file.fileno(), tar.offset, _BLOCK_NBYTES)
            if end != bytes(_BLOCK_NBYTES):
                what = (
                    "ends without an end mark: it was cut"
                    if len(end) < _BLOCK_NBYTES
                    else "has a broken header"
                )
                raise ConvertError(
                    f"source {name!r}: the tar file {what} (byte {tar.offset}); fetch or make it again"
                )
    except tarfile.TarError as error:
        raise ConvertError(
            f"source {name!r}: not a sound tar file: {error}; fetch or make it again"
        ) from None


def _grouped(members: Iterator[tarfile.TarInfo]) -> Iterator[dict[str, Any] | list[str]]:
    key: str | None = None
    record: dict[str, list[Any]] = {}
    problem = ""

    def finished() -> dict[str, Any] | list[str]:
        return [problem] if problem else {"k": key, "m": list(record.values())}

    for member in members:
        found = _split(member)
        if found is None:
            continue
        mine, column = found
        if mine != key:
            if key is not None:
                yield finished()
            key, record, problem = mine, {}, ""
        if not member.isreg() or member.issparse():
            problem = problem or f"member {shorten(member.name)} is no regular file but a link or the like"
        elif column in record:
            problem = problem or f"member {shorten(member.name)} stands twice in the sample"
        elif not _is_text(mine) or not _is_text(column):
            problem = problem or f"member {shorten(member.name)} has a name that is not UTF-8"
        record[column] = [column, member.offset_data, member.size, int(member.mtime), member.chksum]
    if key is not None:
        yield finished()


def _split(member: tarfile.TarInfo) -> tuple[str, str] | None:
    """Key and column of a member; ``None`` for a folder, a hidden file, and one without an ending."""
    if member.isdir():
        return None
    folder, slash, base = member.name.removeprefix("./").rpartition("/")
    stem, dot, ending = base.partition(".")
    if not dot or not stem or not ending or (stem.startswith("__") and stem.endswith("__")):
        return None
    return f"{folder}{slash}{stem}", ending.lower()


def _is_text(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


class TarForm(LinesForm):
    """The records of one tar file, by their list."""

    def __init__(self, path: Path, tar: Path) -> None:
        super().__init__(path)
        self._tar = tar

    def parse(self, text: bytes, *, checked: bool) -> dict[str, Any]:
        line = json.loads(text)
        if isinstance(line, list):
            raise RecordProblem(BAD_ROW, line[0])
        record: dict[str, Any] = {KEY: line["k"]}
        with self._tar.open("rb", buffering=0) as file:
            for column, offset, size, _, _ in line["m"]:
                content = read_span(file.fileno(), offset, size)
                if len(content) != size:
                    raise RecordProblem(BAD_ROW, f"member {column!r} of {line['k']!r}: the tar file was cut")
                record[column] = _decoded(content, column, line["k"])
        return record


def _decoded(content: bytes, column: str, key: str) -> Any:
    kind = column.rpartition(".")[2]
    try:
        if kind in _TEXTS:
            return content.decode("utf-8")
        if kind in _INTEGERS and len(content) <= _DIGITS:
            return int(content)
        if kind == "json":
            return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise RecordProblem(BAD_ROW, f"member {column!r} of {key!r} is no {kind}: {error}") from None
    return content

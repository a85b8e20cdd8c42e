"""The JSONL inputs: found, fingerprinted, and where needed staged as one plain local file of lines.

A plain local JSONL file is read in place. A URL is fetched, ``.gz``/``.bz2``/``.zst`` (told by their first bytes)
are unpacked, and a JSON array is rewritten as one element a line; each such copy lives in the work directory
until the conversion is done, because shards are made in any order and need random access to lines.
"""

from __future__ import annotations

import bz2
import json
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from streamshard._sizes import format_bytes
from streamshard.convert.jsonl import BOM
from streamshard.convert.places import local_path
from streamshard.errors import ConvertError, MissingDependencyError
from streamshard.storage.opening import is_local, open_store
from streamshard.storage.redact import public_url

_BLOCK = 1 << 20
# A zstandard decompressor returns all that its input unpacks to at once; small inputs bound that.
_PACKED_BLOCK = 1 << 12
_MAGICS = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\x28\xb5\x2f\xfd": "zstandard"}
_WIDE_BOMS = (b"\xff\xfe", b"\xfe\xff")
# An error this far before the end of the window is one of the text, not of a token that the window has cut.
_TORN_TOKEN = 64
_WHITESPACE = " \t\r\n"


@dataclass(frozen=True, slots=True)
class Origin:
    """A source as the user named it: its size, and where relative image references in it start."""

    name: str
    location: str
    image_folder: str
    nbytes: int
    mtime_ns: int | None

    def fingerprint(self) -> list[Any]:
        """What must be equal for the work of an interrupted run to be still good."""
        return [self.location, self.nbytes, self.mtime_ns]


@dataclass(frozen=True, slots=True)
class Source:
    """A source ready to be scanned: a local file of lines."""

    name: str
    path: str
    nbytes: int
    image_folder: str
    elements: bool = False

    def place(self, line: int) -> str:
        """Where a record stands, for messages: ``train.jsonl:4``."""
        return f"{self.name}: element {line}" if self.elements else f"{self.name}:{line}"


def find_origin(source: str, storage_options: Mapping[str, Any] | None) -> Origin:
    """Look a source up without reading it.

    Raises:
        ConvertError: it does not exist or is not a file.
        StorageError: a URL that cannot be reached.
    """
    if is_local(source):
        path = local_path(source)
        try:
            found = path.stat()
        except FileNotFoundError:
            raise ConvertError(f"source {source!r}: no such file ({path})") from None
        if not path.is_file():
            raise ConvertError(f"source {source!r}: not a regular file; name the JSONL files themselves")
        return Origin(path.name, str(path), str(path.parent), found.st_size, found.st_mtime_ns)
    folder, _, name = source.rpartition("/")
    shown = public_url(source)
    if "?" in source and source.lower().startswith(("http://", "https://")):
        raise ConvertError(
            f"source {shown!r}: a URL with a query ('?') is not fetched; download it, and name the file"
        )
    if not name or folder.endswith(":/"):
        raise ConvertError(f"source {shown!r}: names no file; name the JSONL files themselves")
    nbytes = open_store(folder, storage_options=storage_options).size(name)
    return Origin(shown.rpartition("/")[2], source, folder, nbytes, None)


def find_origins(sources: Sequence[str], storage_options: Mapping[str, Any] | None) -> list[Origin]:
    """Look all sources up; where two have one file name, their names are as much of their paths as tells them apart.

    Raises:
        ConvertError, StorageError: as :func:`find_origin`.
    """
    origins = [find_origin(source, storage_options) for source in sources]
    names = _short_names({public_url(origin.location) for origin in origins})
    return [replace(origin, name=names[public_url(origin.location)]) for origin in origins]


def _short_names(places: Iterable[str]) -> dict[str, str]:
    """For each path or URL, the least number of its last parts that no other one ends with."""
    names: dict[str, str] = {}
    left = list(places)
    num_parts = 0
    while left:
        num_parts += 1
        tails = {place: "/".join(place.split("/")[-num_parts:]) for place in left}
        shared = Counter(tails.values())
        # A path that is the end of another one cannot get longer.
        names.update((place, tail) for place, tail in tails.items() if shared[tail] == 1 or tail == place)
        left = [place for place in left if place not in names]
    return names


def stage(
    origin: Origin,
    directory: Path,
    number: int,
    *,
    storage_options: Mapping[str, Any] | None,
    advance: Callable[[int], None],
) -> Source:
    """Make a source a local file of lines; read in place where it is one already.

    ``advance`` is called with numbers of input bytes as they are read.

    Raises:
        ConvertError: compressed data that is cut or broken, UTF-16, a broken JSON array.
    """
    staged = directory / f"{number:05d}.jsonl"
    elements_mark = directory / f"{number:05d}.elements"
    if staged.exists():
        return Source(
            origin.name, str(staged), staged.stat().st_size, origin.image_folder, elements_mark.exists()
        )
    path = Path(origin.location)
    fetched: Path | None = None
    if not is_local(origin.location):
        fetched = path = directory / f"{number:05d}.fetched"
        folder, _, name = origin.location.rpartition("/")
        open_store(folder, storage_options=storage_options).fetch_to(name, fetched)
    packing = _packing(path)
    if packing is not None:
        unpacked = directory / f"{number:05d}.unpacked"
        _unpack(path, unpacked, packing, origin.name, advance)
        if fetched is not None:
            fetched.unlink()
        fetched = path = unpacked
    if _first_character(path, origin.name) == "[":
        part = directory / f"{number:05d}.part"
        _array_to_lines(path, part, origin.name, advance)
        elements_mark.touch()
        _keep(part, staged)
        if fetched is not None:
            fetched.unlink()
    elif fetched is not None:
        _keep(fetched, staged)
    else:
        return Source(origin.name, str(path), origin.nbytes, origin.image_folder)
    return Source(
        origin.name, str(staged), staged.stat().st_size, origin.image_folder, elements_mark.exists()
    )


def _keep(made: Path, staged: Path) -> None:
    """Give a file its final name, by which another run takes it for complete, once it is on the disk."""
    with made.open("rb") as file:
        os.fsync(file.fileno())
    made.replace(staged)


def _packing(path: Path) -> str | None:
    with path.open("rb") as file:
        head = file.read(4)
    return next((name for magic, name in _MAGICS.items() if head.startswith(magic)), None)


class _Unpacker(Protocol):
    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


def _unpacker(packing: str) -> Callable[[], _Unpacker]:
    if packing == "gzip":
        return lambda: zlib.decompressobj(wbits=31)
    if packing == "bzip2":
        return bz2.BZ2Decompressor
    try:
        import zstandard
    except ImportError:
        raise MissingDependencyError("unpacking .zst needs zstandard: pip install zstandard") from None
    context = zstandard.ZstdDecompressor()
    return lambda: context.decompressobj()


def _unpack(path: Path, target: Path, packing: str, name: str, advance: Callable[[int], None]) -> None:
    new = _unpacker(packing)
    unpacker: _Unpacker | None = None
    with path.open("rb", buffering=_BLOCK) as packed, target.open("wb", buffering=_BLOCK) as plain:
        while block := packed.read(_PACKED_BLOCK):
            advance(len(block))
            while block:
                if unpacker is None:
                    # gzip files may be padded with zeros behind their last member.
                    if not block.strip(b"\0") and packing == "gzip":
                        break
                    unpacker = new()
                try:
                    plain.write(unpacker.decompress(block))
                except Exception as error:
                    if not isinstance(error, (zlib.error, OSError, ValueError, EOFError)) and (
                        type(error).__name__ != "ZstdError"
                    ):
                        raise
                    if isinstance(error, OSError) and error.errno is not None:
                        raise  # the disk, not the data
                    raise ConvertError(
                        f"source {name!r}: broken {packing} data after {format_bytes(plain.tell())} of text: {error}"
                    ) from None
                block = unpacker.unused_data if unpacker.eof else b""
                if unpacker.eof:
                    unpacker = None
        nbytes = plain.tell()
    if unpacker is not None:
        raise ConvertError(
            f"source {name!r}: the {packing} data ends before its end mark, after {format_bytes(nbytes)} of text;"
            " the file was cut: fetch or make it again"
        )


def _first_character(path: Path, name: str) -> str:
    with path.open("rb") as file:
        head = file.read(_BLOCK)
        if head.startswith(_WIDE_BOMS):
            raise ConvertError(
                f"source {name!r}: starts with a UTF-16 or UTF-32 byte order mark; convert it to UTF-8"
            )
        head = head.removeprefix(BOM)
        while head:
            text = head.lstrip()
            if text:
                return chr(text[0])
            head = file.read(_BLOCK)
    return ""


def _array_to_lines(path: Path, target: Path, name: str, advance: Callable[[int], None]) -> None:
    with path.open("rb") as source, target.open("wb", buffering=_BLOCK) as lines:
        for element in _array_elements(source, name, advance):
            # Line ends between tokens mean nothing; inside strings the parser has refused them.
            lines.write(element.replace("\r", " ").replace("\n", " ").encode("utf-8") + b"\n")


def _array_elements(source: BinaryIO, name: str, advance: Callable[[int], None]) -> Iterator[str]:
    """The texts of the elements of one JSON array, read in blocks: memory is bounded by the longest element."""
    text = _TextWindow(source, name, advance)
    if text.next_character() != "[":
        raise ConvertError(f"source {name!r}: expected a JSON array")
    text.skip(1)
    number = 0
    if text.next_character() == "]":
        text.skip(1)
    else:
        while True:
            number += 1
            yield text.element(number)
            mark = text.next_character()
            if mark == ",":
                text.skip(1)
            elif mark == "]":
                text.skip(1)
                break
            else:
                raise ConvertError(
                    f"source {name!r}: the JSON array is broken after element {number}:"
                    f" expected ',' or ']', found {mark!r}" + ("" if mark else " (the file was cut)")
                )
    if text.next_character():
        raise ConvertError(
            f"source {name!r}: text follows the end of the JSON array ({number} elements); expected one JSON array, or"
            " one JSON object {…} a line"
        )


class _TextWindow:
    """The part of a UTF-8 file around the parser's position."""

    def __init__(self, source: BinaryIO, name: str, advance: Callable[[int], None]) -> None:
        import codecs

        self._source = source
        self._name = name
        self._advance = advance
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._text = ""
        self._at = 0
        self._ended = False

    def _more(self, nbytes: int) -> bool:
        if self._ended:
            return False
        block = self._source.read(nbytes)
        self._ended = len(block) < nbytes
        try:
            self._text = self._text[self._at :] + self._decoder.decode(block, final=self._ended)
        except UnicodeDecodeError as error:
            raise ConvertError(f"source {self._name!r}: not UTF-8: {error.reason}") from None
        self._at = 0
        self._advance(len(block))
        return True

    def next_character(self) -> str:
        """The next character that is not white space, without taking it; ``""`` at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in _WHITESPACE:
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more(_BLOCK):
                return ""

    def skip(self, count: int) -> None:
        self._at += count

    def element(self, number: int) -> str:
        """Take one JSON value."""
        self.next_character()
        while True:
            try:
                _, end = json.JSONDecoder().raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                failure = f"broken JSON in element {number} of the array: {error.msg}"
                if error.pos < len(self._text) - _TORN_TOKEN and not error.msg.startswith("Unterminated"):
                    raise ConvertError(f"source {self._name!r}: {failure}") from None
            except (RecursionError, ValueError) as error:
                raise ConvertError(
                    f"source {self._name!r}: element {number} cannot be parsed: {error}"
                ) from None
            else:
                # A number at the very end of the window may go on in the next block.
                if end < len(self._text) or self._ended:
                    element = self._text[self._at : end]
                    self._at = end
                    return element
                failure = ""
            # As much again as is there: each character is parsed a bounded number of times.
            if not self._more(max(_BLOCK, len(self._text) - self._at)):
                raise ConvertError(f"source {self._name!r}: {failure or f'element {number} is cut'}")

"""Texts in UTF-16 and UTF-32, as Windows writes them: told by their first bytes, and rewritten in UTF-8."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable
from pathlib import Path

from streamshard.errors import ConvertError

HEAD_NBYTES = 4
_BLOCK = 1 << 20
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",  # before UTF-16, whose mark it begins with
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


def marked_encoding(head: bytes) -> str | None:
    """The encoding that a byte order mark at the start of a text says, ``None`` where there is none, or UTF-8's.

    Args:
        head: the first four bytes.
    """
    return next((encoding for mark, encoding in _MARKS.items() if head.startswith(mark)), None)


def wide_encoding(head: bytes) -> str | None:
    """The encoding of a JSON text in UTF-16 or UTF-32 by its first four bytes, ``None`` for any other.

    Without a mark, the zeros beside the first two characters tell, which JSON has in ASCII (RFC 4627, section 3).
    """
    marked = marked_encoding(head)
    if marked is not None or b"\0" not in head:
        return marked
    encoding = json.detect_encoding(head)
    return encoding if head.strip(b"\0")[:1] in (b"{", b"[", b" ", b"\t", b"\r", b"\n") else None


def wide_encoding_of(path: Path) -> str | None:
    """As :func:`wide_encoding`, of a file."""
    with path.open("rb") as file:
        return wide_encoding(file.read(HEAD_NBYTES))


def narrowed(content: bytes, where: str) -> bytes:
    """A small text in UTF-8, whichever of these encodings it has; one in another encoding as it is.

    Raises:
        ConvertError: it is broken.
    """
    encoding = wide_encoding(content[:HEAD_NBYTES])
    if encoding is None:
        return content
    try:
        return content.decode(encoding).encode()
    except UnicodeError as error:
        raise ConvertError(f"{where}: {_broken(encoding, error)}") from None


def narrow(path: Path, target: Path, encoding: str, name: str, advance: Callable[[int], None]) -> None:
    """Rewrite a file in UTF-8, line for line.

    Raises:
        ConvertError: it is broken, naming the line.
    """
    decoder = codecs.getincrementaldecoder(encoding)()
    line = 1
    with path.open("rb") as wide, target.open("wb", buffering=_BLOCK) as plain:
        while True:
            block = wide.read(_BLOCK)
            try:
                text = decoder.decode(block, final=not block)
                content = text.encode()
            except UnicodeError as error:
                raise ConvertError(f"source {name!r}: {_broken(encoding, error, line)}") from None
            plain.write(content)
            line += content.count(b"\n")
            advance(len(block))
            if not block:
                return


def _broken(encoding: str, error: UnicodeError, line: int | None = None) -> str:
    where = ""
    if line is not None and isinstance(error, UnicodeDecodeError):
        before = error.object[: error.start].decode(error.encoding, "ignore")
        where = f"line {line + before.count(chr(10))}: "
    reason = error.reason if isinstance(error, UnicodeDecodeError | UnicodeEncodeError) else str(error)
    return (
        f"{where}not {encoding.upper()}, as which it begins: {reason}; the file was cut, or put together from several:"
        " make it again, in UTF-8"
    )

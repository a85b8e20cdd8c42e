"""A file that is one JSON array, rewritten as its elements, one a line; memory is bounded by the longest element."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from streamshard.errors import ConvertError

_BLOCK = 1 << 20
# An error this far before the end of the window is one of the text, not of a token that the window has cut.
_TORN_TOKEN = 64
_WHITESPACE = " \t\r\n"
_CLOSING = {"[": "]", "{": "}", '"': '"'}
_MARK = re.compile(r'["\[\]{}]')
_IN_STRING = re.compile(r'\\.|"', re.DOTALL)


def array_to_lines(path: Path, target: Path, name: str, advance: Callable[[int], None]) -> None:
    with path.open("rb") as source, target.open("wb", buffering=_BLOCK) as lines:
        text = TextWindow(source, name, advance)
        number = 0
        for number in text.places("[]"):
            lines.write(as_line(text.element(number)))
        if text.next_character():
            raise ConvertError(
                f"source {name!r}: text follows the end of the JSON array ({number} elements); expected one JSON array,"
                " or one JSON object {…} a line"
            )


def as_line(element: str) -> bytes:
    """The text of a JSON value as a line: line ends between tokens mean nothing, and strings have none."""
    return element.replace("\r", " ").replace("\n", " ").encode("utf-8") + b"\n"


class TextWindow:
    """The part of a UTF-8 file around the parser's position; the file is read in blocks, and only once."""

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

    def places(self, brackets: str) -> Iterator[int]:
        """Go through an array (``"[]"``) or object (``"{}"``): the number of each element, which the caller takes."""
        what = "array" if brackets == "[]" else "object"
        if self.next_character() != brackets[0]:
            raise ConvertError(f"source {self._name!r}: expected a JSON {what}")
        self.skip(1)
        number = 0
        while self.next_character() != brackets[1] or number:
            number += 1
            yield number
            mark = self.next_character()
            if mark == brackets[1]:
                break
            if mark != ",":
                raise ConvertError(
                    f"source {self._name!r}: the JSON {what} is broken after element {number}:"
                    f" expected ',' or {brackets[1]!r}, found {mark!r}{'' if mark else ' (the file was cut)'}"
                )
            self.skip(1)
        self.skip(1)

    def key(self, number: int) -> str:
        """Take the key of a member and the colon behind it; gives its JSON text."""
        mark = self.next_character()
        key = self.element(number) if mark == '"' else ""
        if not key or self.next_character() != ":":
            raise ConvertError(
                f"source {self._name!r}: the JSON object is broken at element {number}: expected a key in double quotes"
                f" and a colon, found {mark!r}{'' if mark else ' (the file was cut)'}"
            )
        self.skip(1)
        return key

    def skip_value(self, number: int) -> None:
        """Pass over one JSON value, of any size, without keeping it; what is inside is not checked."""
        begins = self.next_character()
        if begins not in _CLOSING:
            self.element(number)
            return
        depth = 0
        in_string = False
        while True:
            mark = (_IN_STRING if in_string else _MARK).search(self._text, self._at)
            if mark is None:
                # A backslash at the end of the window belongs to what comes next.
                self._at = len(self._text) - self._text.endswith("\\", self._at)
                if not self._more(_BLOCK):
                    raise ConvertError(f"source {self._name!r}: element {number} is cut")
                continue
            self._at = mark.end()
            if mark.group() == '"':
                in_string = not in_string
            elif not in_string:
                depth += 1 if mark.group() in "[{" else -1
            if not depth and not in_string:
                break
        if mark.group() != _CLOSING[begins]:
            raise ConvertError(
                f"source {self._name!r}: broken JSON in element {number}: {begins!r} is closed by {mark.group()!r}"
            )

    def element(self, number: int) -> str:
        """Take one JSON value."""
        self.next_character()
        while True:
            try:
                _, end = json.JSONDecoder().raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                failure = f"broken JSON in element {number}: {error.msg}"
                if error.pos < len(self._text) - _TORN_TOKEN and not error.msg.startswith("Unterminated"):
                    raise ConvertError(f"source {self._name!r}: {failure}") from None
            except (RecursionError, ValueError) as error:
                raise ConvertError(
                    f"source {self._name!r}: element {number} cannot be parsed: {error}"
                ) from None
            else:
                # A number at the very end of the window, or before a point or "e+" there, may go on in the next block.
                if end + 2 < len(self._text) or self._ended:
                    element = self._text[self._at : end]
                    self._at = end
                    return element
                failure = ""
            # As much again as is there: each character is parsed a bounded number of times.
            if not self._more(max(_BLOCK, len(self._text) - self._at)):
                raise ConvertError(f"source {self._name!r}: {failure or f'element {number} is cut'}")

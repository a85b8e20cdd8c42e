"""A file that is one JSON array, rewritten as its elements, one a line; memory is bounded by the longest element."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from streamshard.errors import ConvertError

_BLOCK = 1 << 20
# An error this far before the end of the window is one of the text, not of a token that the window has cut.
_TORN_TOKEN = 64
_WHITESPACE = " \t\r\n"


def array_to_lines(path: Path, target: Path, name: str, advance: Callable[[int], None]) -> None:
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

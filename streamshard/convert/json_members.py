"""Records inside one JSON object, rewritten one a line: ``{"data": [{…}, …]}``, or an object with a key for each.

Memory is bounded by the longest record; what stands beside the records is passed over.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from streamshard.convert.json_array import TextWindow, as_line
from streamshard.convert.problems import shorten
from streamshard.errors import ConvertError

WHOLE = "."
"""The way to records that are the members of the object itself."""

BY_COLUMN = ""
"""In the place of such a way: each key of the object holds a column of a table, as far as one can see."""

KEY_COLUMN = "__key__"
"""What holds the key of a record that has one in the object."""

VALUE_COLUMN = "value"
"""What holds a value that is no object."""

_BLOCK = 1 << 20
_LISTED_KEYS = 30


def members_to_lines(path: Path, target: Path, name: str, way: str, advance: Callable[[int], None]) -> None:
    """Write the records at the end of a way of keys (``"data"``, ``"result/items"``, ``"."``), one a line.

    Raises:
        ConvertError: there is nothing at the end of the way, or no array or object; broken or cut JSON.
    """
    steps = [] if way == WHOLE else way.split("/")
    with path.open("rb") as source, target.open("wb", buffering=_BLOCK) as lines:
        text = TextWindow(source, name, advance)
        _descend(text, name, steps, way, lines.write)
        if text.next_character():
            raise ConvertError(
                f"source {name!r}: text follows the end of the JSON object; --records takes one object in a file"
            )


def _descend(
    text: TextWindow, name: str, steps: list[str], way: str, write: Callable[[bytes], object]
) -> None:
    mark = text.next_character()
    if not steps and mark == "[":
        for number in text.places("[]"):
            write(as_line(text.element(number)))
        return
    if mark != "{":
        place = (
            "the file"
            if way == WHOLE or len(steps) == len(way.split("/"))
            else f"what --records {way} leads to"
        )
        raise ConvertError(
            f"source {name!r}: {place} begins with {mark!r}, expected a JSON object{'' if steps else ' or array'}"
        )
    met: list[str] = []
    found = False
    for number in text.places("{}"):
        key = text.key(number)
        if not steps:
            write(as_line(_member(key, text.element(number))))
        elif json.loads(key) == steps[0]:
            if found:
                raise ConvertError(f"source {name!r}: key {shorten(steps[0], 80)} stands twice in one object")
            found = True
            _descend(text, name, steps[1:], way, write)
        else:
            if len(met) < _LISTED_KEYS:
                met.append(json.loads(key))
            text.skip_value(number)
    if steps and not found:
        known = ", ".join(shorten(key, 80) for key in met)
        raise ConvertError(
            f"source {name!r}: --records {way}: no key {steps[0]!r}; there are: {known or 'none'}"
        )


def _member(key: str, value: str) -> str:
    """The record of a member: the object with its key in front, or key and value."""
    if not value.startswith("{"):
        return f'{{"{KEY_COLUMN}": {key}, "{VALUE_COLUMN}": {value}}}'
    rest = value[1:]
    comma = "" if rest.lstrip().startswith("}") else ", "
    return f'{{"{KEY_COLUMN}": {key}{comma}{rest}'

"""Column types from the values of all records, and the exact stored size of each value.

A scan meets the values in chunks, in many processes, before anybody knows the final types. So it keeps, for
each value, its size under every type that its key may still get: that makes types and sizes of the
whole input a merge of small arrays, and no line has to be parsed again for it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamshard.convert.problems import NOT_UTF8, RecordProblem, shorten
from streamshard.errors import ConvertError
from streamshard.format.encodings import parse_encoding
from streamshard.format.json_text import json_text

MAX_COLUMNS = 256

# What a key's values have been so far; a set of bits, so that merging is "or".
STR, INT, FLOAT, OTHER, NULL, BYTES, DECLARED, EMPTY_LIST, BYTES_LIST = 1, 2, 4, 8, 16, 32, 64, 128, 256
_SINGLE = {STR: "str", INT: "int", FLOAT: "float64", BYTES: "bytes"}

_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1
_LONGEST = (1 << 32) - 1
_NULL_NBYTES = 4
_LIST_HEAD_NBYTES = 8


class KeyTally:
    """Sizes of one key's values in one chunk, in record order.

    ``utf8_nbytes`` is the size of a value as it is: of text in UTF-8, of bytes, of a list of bytes with a u32 for each,
    of what a declared column stores.
    """

    __slots__ = ("json_nbytes", "kinds", "rows", "utf8_nbytes")

    def __init__(self) -> None:
        self.kinds = 0
        self.rows = array("I")
        self.json_nbytes = array("I")
        self.utf8_nbytes = array("I")

    def add(self, row: int, value: Any) -> None:
        kind = type(value)
        utf8_nbytes = 0
        if kind is str:
            json_nbytes = len(encode_basestring_ascii(value))
            utf8_nbytes = len(value) if value.isascii() else _utf8_nbytes(value)
            if utf8_nbytes < 0:
                self.kinds |= OTHER
                utf8_nbytes = 0
            else:
                self.kinds |= STR
        elif kind is int:
            json_nbytes = len(int.__repr__(value))
            self.kinds |= INT if _INT64_MIN <= value <= _INT64_MAX else OTHER
        elif kind is bytes:
            utf8_nbytes, json_nbytes = len(value), 0
            self.kinds |= BYTES
        elif value is None:
            utf8_nbytes, json_nbytes = 0, _NULL_NBYTES
            self.kinds |= NULL
        elif value == [] and kind is list:
            utf8_nbytes, json_nbytes = 0, 2
            self.kinds |= EMPTY_LIST
        elif kind is list and type(value[0]) is bytes:
            utf8_nbytes, json_nbytes = 4 * len(value) + sum(map(len, value)), 0
            self.kinds |= BYTES_LIST
        else:
            json_nbytes = len(json_text(value))
            self.kinds |= FLOAT if kind is float else OTHER
        self._append(row, json_nbytes, utf8_nbytes)

    def add_stored(self, row: int, nbytes: int) -> None:
        """Add a value of a declared column by the size of its stored form."""
        self.kinds |= DECLARED
        self._append(row, 0, nbytes)

    def add_images(self, rows: range) -> None:
        """Add values that are images, whose sizes are kept elsewhere."""
        nothing = array("I", bytes(4 * len(rows)))
        self.rows.extend(rows)
        self.json_nbytes.extend(nothing)
        self.utf8_nbytes.extend(nothing)

    def add_all(self, rows: range, values: list[Any]) -> list[str] | None:
        """Add the values of some rows; all at once where they are plain text, or lists of objects, as chats are.

        Gives the values as JSON where they had to be made that.
        """
        texts = None
        kinds = set(map(type, values))
        if kinds == {str} and all(map(str.isascii, values)):
            kind, json_nbytes = STR, list(map(len, map(encode_basestring_ascii, values)))
            utf8_nbytes = list(map(len, values))
        elif kinds == {list} and all(values) and {type(value[0]) for value in values} == {dict}:
            texts = list(map(json_text, values))
            kind, json_nbytes, utf8_nbytes = OTHER, list(map(len, texts)), [0] * len(values)
        else:
            kind, json_nbytes, utf8_nbytes = 0, [], []
        if kind and max(json_nbytes) <= _LONGEST:
            self.kinds |= kind
            self.rows.extend(rows)
            self.json_nbytes.extend(json_nbytes)
            self.utf8_nbytes.extend(utf8_nbytes)
            return texts
        for row, value in zip(rows, values, strict=True):
            self.add(row, value)
        return texts

    def _append(self, row: int, json_nbytes: int, utf8_nbytes: int) -> None:
        if json_nbytes > _LONGEST:
            json_nbytes, utf8_nbytes = _LONGEST, min(utf8_nbytes, _LONGEST)
        self.rows.append(row)
        self.json_nbytes.append(json_nbytes)
        self.utf8_nbytes.append(utf8_nbytes)


def _utf8_nbytes(text: str) -> int:
    try:
        return len(text.encode("utf-8"))
    except UnicodeEncodeError:
        return -1


def check_key(key: str) -> None:
    """Refuse a key that cannot be the name of a column.

    Raises:
        RecordProblem: the key is empty or holds a lone surrogate.
    """
    if not key:
        raise RecordProblem(NOT_UTF8, "a key is the empty string, which cannot name a column")
    if _utf8_nbytes(key) < 0:
        raise RecordProblem(NOT_UTF8, f"key {shorten(key, 80)} is not valid Unicode and cannot name a column")


@dataclass(slots=True)
class KeySummary:
    """One key over the whole input: in how many records, with what kinds of value."""

    count: int = 0
    kinds: int = 0


class ImageColumn(NamedTuple):
    """One key that holds images: ``listed`` where a record may have none or several.

    ``named`` says whether any of them has a path or the like, so that there is a column for these.
    """

    key: str
    encoding: str
    listed: bool
    named: bool = True

    @property
    def path_column(self) -> str:
        return f"{self.key}_path"

    @property
    def path_encoding(self) -> str:
        return "json" if self.listed else "str"


class ColumnPlan(NamedTuple):
    """All columns of the dataset: plain keys with their encoding, image keys, and the keys joined into one column.

    ``declared`` are those of the plain keys whose values come in their stored form (see :mod:`shaping`).
    """

    plain: Mapping[str, str]
    images: tuple[ImageColumn, ...]
    rest: str | None = None
    rest_keys: frozenset[str] = frozenset()
    declared: Mapping[str, str] = {}

    def encodings(self) -> dict[str, str]:
        """Column name → encoding, for ``Schema.from_columns``."""
        made = dict(self.plain)
        for image in self.images:
            made[image.key] = image.encoding
            if image.named:
                made[image.path_column] = image.path_encoding
        if self.rest is not None:
            made[self.rest] = "json"
        return made

    def taken_encodings(self) -> dict[str, str]:
        """Column → encoding that takes the values as they come: images and declared columns are stored bytes already.

        The layout of a sample is the same.
        """
        made = self.encodings()
        made.update({image.key: "bytes" for image in self.images})
        made.update(
            {name: "bytes" for name, encoding in self.declared.items() if not _fixed_nbytes(encoding)}
        )
        return made

    def to_json(self) -> dict[str, Any]:
        return {
            "plain": dict(self.plain),
            "images": [[image.key, image.encoding, image.listed, image.named] for image in self.images],
            "rest": self.rest,
            "rest_keys": sorted(self.rest_keys),
            "declared": dict(self.declared),
        }

    @classmethod
    def from_json(cls, shown: Mapping[str, Any]) -> ColumnPlan:
        return cls(
            dict(shown["plain"]),
            tuple(ImageColumn(*row) for row in shown["images"]),
            shown["rest"],
            frozenset(shown["rest_keys"]),
            dict(shown["declared"]),
        )


def plan_columns(
    keys: Mapping[str, KeySummary],
    images: tuple[ImageColumn, ...],
    num_records: int,
    *,
    json_rest: str | None,
    declared: Mapping[str, str] | None = None,
) -> ColumnPlan:
    """Choose the columns: as declared; else ``str``, ``int``, ``float64``, ``bytes`` where all agree, or ``json``.

    Raises:
        ConvertError: a name clash, or more than 256 columns and no ``json_rest``; binary beside other values.
    """
    settled = dict(declared or {})
    for image in images:
        if image.named and image.path_column in keys:
            raise ConvertError(
                f"the references of image key {image.key!r} belong into column {image.path_column!r}, but the"
                f" records have a key of that name; rename it in the input, or name the image keys with --image-key"
            )
    plain_keys = [key for key in keys if key not in {image.key for image in images}]
    room = MAX_COLUMNS - 2 * len(images)
    rest: str | None = None
    rest_keys: frozenset[str] = frozenset()
    if len(plain_keys) > room:
        common = sorted(plain_keys, key=lambda key: (-keys[key].count, key))
        if settled or any(keys[key].kinds & (BYTES | BYTES_LIST) for key in plain_keys):
            raise ConvertError(
                f"{len(plain_keys)} columns, more than the {room} there is room for; leave some out with --drop"
            )
        if json_rest is None and num_records == 1:
            raise ConvertError(
                f"the only record is an object of {len(plain_keys)} keys, more than the {room} columns there is room"
                " for; if each of them is a record, say --records ."
            )
        if json_rest is None:
            rarest = ", ".join(f"{key!r} ({keys[key].count} records)" for key in reversed(common[-10:]))
            raise ConvertError(
                f"the records have {len(plain_keys)} different keys, more than the {room} columns there is room for;"
                f" the rarest: {rarest}; --json-rest COLUMN joins the rarest into one JSON column"
            )
        taken = {name for image in images for name in (image.key, image.path_column)}
        if json_rest in keys or json_rest in taken:
            raise ConvertError(
                f"--json-rest {json_rest!r}: a column of that name exists already; choose another name"
            )
        rest = json_rest
        rest_keys = frozenset(common[room - 1 :])
    plain = {
        key: settled[key] if key in settled else _encoding(key, keys[key], num_records)
        for key in sorted(plain_keys)
        if key not in rest_keys
    }
    return ColumnPlan(
        plain, images, rest, rest_keys, {key: settled[key] for key in sorted(settled) if key in plain}
    )


def _encoding(name: str, key: KeySummary, num_records: int) -> str:
    for binary, empty, encoding in (
        (BYTES, NULL, "bytes"),
        (BYTES_LIST, NULL | EMPTY_LIST, "list[bytes]"),
    ):
        if key.kinds & binary:
            if key.kinds & BYTES and key.kinds & BYTES_LIST:
                raise ConvertError(
                    f"key {name!r} holds one piece of binary in some records and a list of it in others; make a list of"
                    f" each in the input, or leave the key out with --drop {name}"
                )
            if key.kinds & ~(binary | empty):
                raise ConvertError(
                    f"key {name!r} holds binary in some records and other values in others; mend the input, or leave"
                    f" the key out with --drop {name}"
                )
            return encoding
    return _SINGLE.get(key.kinds, "json") if key.count == num_records else "json"


def _fixed_nbytes(encoding: str) -> int | None:
    return parse_encoding(encoding).size


class ChunkKey(NamedTuple):
    """The sizes of one key in one chunk, loaded again: arrays uint32[values], in record order."""

    rows: NDArray[np.uint32]
    json_nbytes: NDArray[np.uint32]
    utf8_nbytes: NDArray[np.uint32]


def plain_nbytes(plan: ColumnPlan, chunk: Mapping[str, ChunkKey], num_records: int) -> NDArray[np.int64]:
    """The stored bytes of all columns but the images', for each record of a chunk: int64[num_records].

    Length words are included.
    """
    constant = 0
    nbytes = np.zeros(num_records, np.int64)
    for name, encoding in plan.plain.items():
        fixed = _fixed_nbytes(encoding)
        if fixed is not None:
            constant += fixed
            continue
        constant += 4
        key = chunk.get(name)
        constant += _LIST_HEAD_NBYTES * (encoding == "list[bytes]" and name not in plan.declared)
        if encoding in ("str", "bytes", "list[bytes]") or name in plan.declared:
            if key is not None:
                nbytes[key.rows] += key.utf8_nbytes
            continue
        constant += _NULL_NBYTES
        if key is not None:
            nbytes[key.rows] += key.json_nbytes.astype(np.int64) - _NULL_NBYTES
    if plan.rest is not None:
        constant += 4 + 2
        members = np.zeros(num_records, np.int64)
        for name in plan.rest_keys & chunk.keys():
            key = chunk[name]
            # "key": value, and a ", " before all but the first
            nbytes[key.rows] += key.json_nbytes.astype(np.int64) + len(encode_basestring_ascii(name)) + 4
            members[key.rows] += 1
        nbytes[members > 0] -= 2
    return nbytes + constant


def plain_values(plan: ColumnPlan) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """The function from a record to the values of all columns but the images', as a sample holds them."""
    names = list(plan.plain)
    empty = [
        (name, b"" if encoding == "bytes" else [])
        for name, encoding in plan.plain.items()
        if encoding in ("bytes", "list[bytes]")
    ]
    rest, rest_keys = plan.rest, plan.rest_keys

    def values_of(record: Mapping[str, Any]) -> dict[str, Any]:
        values = {name: record.get(name) for name in names}
        for name, nothing in empty:
            if values[name] is None:
                values[name] = nothing
        if rest is not None:
            values[rest] = {key: value for key, value in record.items() if key in rest_keys}
        return values

    return values_of

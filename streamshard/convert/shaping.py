"""From a record as its input has it to the values of a sample: columns chosen, named, typed, and images taken out.

The scan and the making of shards both pass every record through here, so that both see the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamshard.convert.conditions import Condition
from streamshard.convert.images import HEAD_NBYTES, UNKNOWN, sniff_format
from streamshard.convert.problems import BAD_VALUE, RecordProblem, shorten
from streamshard.convert.references import (
    KNOWN_IMAGE_KEYS,
    NESTED_KEY,
    NO_IMAGES,
    Reference,
    References,
    basename_of,
    is_file_value,
    references_of,
)
from streamshard.convert.sources import LITDATA, MDS, Source
from streamshard.convert.tokenizing import TokenColumn
from streamshard.errors import FormatError, StreamshardError
from streamshard.format.encodings import Encoding, parse_encoding
from streamshard.format.ndarray import NdarrayEncoding

# Whatever has a value here is an image, or a problem.
_PLAIN_KEYS = frozenset(KNOWN_IMAGE_KEYS) - {NESTED_KEY}
_NO_COUNTS: Mapping[str, int] = MappingProxyType({})
EMPTY: Mapping[str, bytes | list[bytes]] = MappingProxyType({"bytes": b"", "list[bytes]": []})
"""Of some encodings, the value that is none."""


class Shaping(NamedTuple):
    """What is to be made of the keys of every record.

    Attributes:
        image_keys: the keys that hold images; empty: found.
        declared: key → encoding, where it is settled before any record is read; such a key holds no images to look for.
        passed: the declared keys whose values come as stored bytes (from MDS).
        drop: keys left out, by their name in the input.
        rename: name in the input → name in the dataset.
        tokens: the columns that are tokens of others.
        where: conditions on records, by keys of the input.
        asked: keys of the input whose values costs and conditions ask for.
        stored: of these, name in the input → encoding, where values come as stored bytes.
        file_keys: the keys that hold files which are stored as they are.
        looks_for_files: nobody has said which keys do, so that names of such files are pointed out.
        emptied: keys whose binary is no bytes where it is null or absent: columns of the dataset that is added to,
            unless somebody has declared them.
        searched: declared keys whose messages are looked at for images all the same.
    """

    image_keys: tuple[str, ...] = ()
    declared: Mapping[str, str] = {}
    passed: frozenset[str] = frozenset()
    drop: frozenset[str] = frozenset()
    rename: Mapping[str, str] = {}
    tokens: tuple[TokenColumn, ...] = ()
    where: tuple[Condition, ...] = ()
    asked: frozenset[str] = frozenset()
    stored: Mapping[str, str] = {}
    file_keys: tuple[str, ...] = ()
    looks_for_files: bool = True
    emptied: frozenset[str] = frozenset()
    searched: frozenset[str] = frozenset()

    def for_source(self, source: Source) -> Shaping:
        """As this, for the records of one source."""
        if source.image_keys and not self.image_keys:
            keys = (self.rename.get(key, key) for key in source.image_keys if key not in self.drop)
            return self._replace(image_keys=tuple(keys) or NO_IMAGES)
        if source.kind not in (MDS, LITDATA):
            return self
        before = self.before_names()
        passed = {
            self.rename.get(name, name)
            for name, encoding in source.columns.items()
            if before.get(name) == encoding
        }
        stored = {
            name: encoding
            for name, encoding in source.columns.items()
            if name in self.asked and before.get(name) == encoding and parse_encoding(encoding).size is None
        }
        return self._replace(passed=frozenset(passed), stored=stored, searched=self.searched - passed)

    def with_images_under(self, keys: Sequence[str]) -> Shaping:
        """As this, for records in which a scan has found images under these keys alone, or none.

        Nothing else has to be looked at then. Left as it is where the keys tell too little: images inside messages, or
        values that are images in some records only.
        """
        if self.image_keys or self.file_keys or not _PLAIN_KEYS.issuperset(keys):
            return self
        return self._replace(image_keys=tuple(keys) or NO_IMAGES)

    def before_names(self) -> dict[str, str]:
        """``declared`` by the names of the input."""
        old = {new: name for name, new in self.rename.items()}
        return {old.get(name, name): encoding for name, encoding in self.declared.items()}

    def apply(self, record: dict[str, Any], *, rich: bool) -> Shaped:
        """Shape one record; a ``rich`` one may hold binary and arrays, which no JSON has.

        Raises:
            RecordProblem: a value that a declared encoding cannot hold, two keys that get one name, an image reference
                that cannot be used.
        """
        arrays = self._token_arrays(record) if self.tokens else {}
        if self.drop or self.rename:
            record = self._chosen(record)
        if arrays:
            record = self._with_tokens(record, arrays)
        found = references_of(
            _unfolded(record, self.file_keys) if rich else record,
            self.image_keys,
            self.declared.keys() - self.searched if self.searched else self.declared,
            self.file_keys,
        )
        if self.declared:
            found.record = self._typed(found.record)
        if rich:
            found.record = {
                key: value
                if key in found.images or key in self.declared or _is_binary(value)
                else plain_json(value)
                for key, value in found.record.items()
            }
        counts = {name: len(array) for name, array in arrays.items()} if arrays else _NO_COUNTS
        return Shaped(found.record, found, counts)

    def wants(self, record: Mapping[str, Any]) -> bool:
        """Whether all conditions hold.

        Raises:
            RecordProblem: a value that has no order with a condition's.
        """
        return not self.where or self._all_hold(self.opened(record))

    def _all_hold(self, record: Mapping[str, Any]) -> bool:
        return all(condition.holds(record) for condition in self.where)

    def opened(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """The record, with the values decoded that costs and conditions ask for.

        Raises:
            RecordProblem: stored bytes that cannot be decoded.
        """
        if not self.stored:
            return record
        made = dict(record)
        for name, encoding in self.stored.items():
            try:
                made[name] = parse_encoding(encoding).decode(record[name])
            except (FormatError, LookupError) as error:
                raise RecordProblem(BAD_VALUE, f"key {name!r} cannot be decoded: {error}") from None
        return made

    def _token_arrays(self, record: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        old = {new: name for name, new in self.rename.items()}
        return {
            column.column: column.tokens(self._text(record, old.get(column.field, column.field)))
            for column in self.tokens
        }

    def _text(self, record: Mapping[str, Any], key: str) -> Any:
        value = record.get(key)
        # Text that passes as it is stored.
        if type(value) is bytes and self.before_names().get(key) in ("str", "json"):
            return parse_encoding(self.before_names()[key]).decode(value)
        return value

    def _with_tokens(self, record: Mapping[str, Any], arrays: Mapping[str, Any]) -> dict[str, Any]:
        for name in arrays:
            if name in record:
                raise RecordProblem(
                    BAD_VALUE,
                    f"key {name!r} has the name of the column for tokens (--tokenize); rename or drop it",
                )
        return {**record, **arrays}

    def _chosen(self, record: dict[str, Any]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for key, value in record.items():
            if key in self.drop:
                continue
            name = self.rename.get(key, key)
            if name in made:
                old = next(first for first, new in self.rename.items() if new == name)
                raise RecordProblem(
                    BAD_VALUE, f"two keys would be column {name!r} (--rename {old}={name}); drop one of them"
                )
            made[name] = value
        return made

    def _typed(self, record: dict[str, Any]) -> dict[str, Any]:
        made = dict(record)
        for name, encoding_name in self.declared.items():
            if name in self.passed and name in record:
                continue
            encoding = parse_encoding(encoding_name)
            value = record.get(name)
            if value is None and name in self.emptied:
                value = EMPTY[encoding_name]
            if value is None and encoding_name != "json":
                state = "is null" if name in record else "is absent"
                raise RecordProblem(
                    BAD_VALUE,
                    f"key {name!r} {state}, and its column is to be {encoding_name}; declare it json",
                )
            try:
                stored = encoding.encode(_fitted(value, encoding))
            except (StreamshardError, ValueError, OverflowError) as error:
                raise RecordProblem(
                    BAD_VALUE, f"key {name!r} holds {shorten(repr(value), 60)}: {error}"
                ) from None
            # A value of fixed size stays one: its stored form has no length in front.
            if encoding.size is None:
                made[name] = stored
        return made


def _unfolded(record: dict[str, Any], file_keys: Sequence[str]) -> dict[str, Any]:
    """A record whose files that are no images (``{"bytes", "path"}``: audio, video) are bytes, with the path beside.

    A list of such files becomes a list of bytes, and one of names.
    """
    folded = {
        key: files
        for key, value in record.items()
        if key not in file_keys and key not in KNOWN_IMAGE_KEYS and (files := _files_in(value))
    }
    if not folded:
        return record
    made: dict[str, Any] = {}
    for key, value in record.items():
        if key not in folded:
            made[key] = value
            continue
        contents = [file["bytes"] for file in folded[key]]
        names = [basename_of(file.get("path")) for file in folded[key]]
        listed = type(value) is list
        made[key] = contents if listed else contents[0]
        if f"{key}_path" not in record:
            made[f"{key}_path"] = names if listed else names[0]
    return made


def _files_in(value: Any) -> list[dict[str, Any]]:
    """The files of a value that is one or a list of them, and no images; none where it is anything else."""
    items = value if type(value) is list else [value]
    if not items or not all(
        type(item) is dict and type(item.get("bytes")) is bytes and is_file_value(item) for item in items
    ):
        return []
    return items if any(sniff_format(item["bytes"][:HEAD_NBYTES]) == UNKNOWN for item in items) else []


def _is_binary(value: Any) -> bool:
    kind = type(value)
    return kind is bytes or (kind is list and bool(value) and all(type(item) is bytes for item in value))


class Shaped(NamedTuple):
    """A record as it will be stored: values, the images that belong to it, and how many tokens columns hold."""

    values: dict[str, Any]
    found: References
    token_counts: Mapping[str, int]

    @property
    def references(self) -> dict[str, list[Reference]]:
        return self.found.images


def _fitted(value: Any, encoding: Encoding) -> Any:
    """A value of another class that means the same, where a declared encoding takes only one class.

    Raises:
        ValueError: a list that is no array of the declared type.
    """
    if encoding.name == "json":
        return plain_json(value)
    if isinstance(encoding, NdarrayEncoding) and isinstance(value, list):
        found = np.asarray(value)
        if encoding.dtype is None or not found.size:
            return found if encoding.dtype is None else found.astype(encoding.dtype)
        if found.dtype.kind not in "biuf" or (found.dtype.kind == "f" and encoding.dtype.kind != "f"):
            raise ValueError(f"not an array of {encoding.dtype.name}")
        made = found.astype(encoding.dtype)
        if encoding.dtype.kind != "f" and not np.array_equal(made, found):
            raise ValueError(f"out of range of {encoding.dtype.name}")
        return made
    return value


def plain_json(value: Any) -> Any:
    """A value with its arrays and NumPy numbers as lists and numbers.

    Raises:
        RecordProblem: bytes inside of it, which JSON cannot hold.
    """
    kind = type(value)
    if kind is str or kind is int or kind is float or kind is bool or value is None:
        return value
    if isinstance(value, (np.ndarray, np.generic)):
        return plain_json(value.tolist())
    if kind is dict:
        return {key: plain_json(item) for key, item in value.items()}
    if kind is list:
        return [plain_json(item) for item in value]
    if kind is bytes:
        raise RecordProblem(
            BAD_VALUE,
            "binary inside a nested value, which no column can hold; leave the column out with --drop",
        )
    return value

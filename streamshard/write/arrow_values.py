"""Arrow columns as MDS columns: the encoding of a type, and values in the form that the encoding takes."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import numpy as np

from streamshard.errors import SampleError
from streamshard.format.encodings import parse_encoding
from streamshard.write.arrow_times import counted, has_nanoseconds, text_maker

_SCALARS = {
    "int8": "int8", "int16": "int16", "int32": "int32", "int64": "int64",
    "uint8": "uint8", "uint16": "uint16", "uint32": "uint32", "uint64": "uint64",
    "halffloat": "float16", "float": "float32", "double": "float64",
}  # fmt: skip
_TEXTS = {"string": "str", "large_string": "str", "string_view": "str"}
_BINARIES = {"binary": "bytes", "large_binary": "bytes", "binary_view": "bytes"}


def encoding_of(kind: Any) -> str:
    """The encoding for an Arrow type: text, binary and numbers keep their type, lists of numbers are arrays.

    Decimals are ``str_decimal``, lists of binary ``list[bytes]``; booleans, times, structs, maps and other lists are
    ``json``.
    """
    name = str(kind)
    found = _SCALARS.get(name) or _TEXTS.get(name) or _BINARIES.get(name)
    if found is not None:
        return found
    if name.startswith("fixed_size_binary"):
        return "bytes"
    if name.startswith("decimal"):
        return "str_decimal"
    if name.startswith(("list<", "large_list<", "fixed_size_list<")):
        number = _SCALARS.get(str(kind.value_type))
        if number is not None:
            return f"ndarray:{number}"
        if str(kind.value_type) in _BINARIES:
            return "list[bytes]"
    return "json"


def python_values(column: Any) -> list[Any]:
    """The values of an Arrow array; at any depth, maps as dicts, and times in nanoseconds as text."""
    kind = column.type
    change = _changer(kind)
    values: list[Any] = (column.cast(counted(kind)) if has_nanoseconds(kind) else column).to_pylist()
    return values if change is None else [change(value) for value in values]


def _changer(kind: Any) -> Callable[[Any], Any] | None:
    """What makes dicts of the pairs that Arrow gives for maps, and text of counted nanoseconds; None without any."""
    name = str(kind)
    if "map<" not in name and not has_nanoseconds(kind):
        return None
    if name.startswith("map<"):
        key, item = _changer(kind.key_type) or _same, _changer(kind.item_type) or _same
        return lambda pairs: None if pairs is None else {key(each): item(value) for each, value in pairs}
    if name.startswith("struct<"):
        fields = {field.name: change for field in kind if (change := _changer(field.type)) is not None}
        return lambda row: (
            None
            if row is None
            else {key: fields[key](item) if key in fields else item for key, item in row.items()}
        )
    if name.startswith("dictionary<"):
        return _changer(kind.value_type)
    if "<" not in name:
        return text_maker(kind)
    inner = _changer(kind.value_type) or _same
    return lambda items: None if items is None else [inner(item) for item in items]


def _same(value: Any) -> Any:
    return value


def row_converter(columns: Mapping[str, str]) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Make the function that turns a row of Arrow's Python values into a sample.

    Lists become arrays of the column's type; times, decimals and maps inside JSON become text and lists. A column that
    the row lacks is left out, which the writer then names.
    """
    made: list[tuple[str, Callable[[Any], Any] | None]] = []
    for name, encoding in columns.items():
        parse_encoding(encoding)
        made.append((name, _converter(encoding)))

    def convert(row: Mapping[str, Any]) -> dict[str, Any]:
        sample = {}
        for name, change in made:
            if name not in row:
                continue
            try:
                sample[name] = row[name] if change is None else change(row[name])
            except (TypeError, ValueError, OverflowError, ArithmeticError) as error:
                raise SampleError(f"column {name!r} ({columns[name]}): {error}") from error
        return sample

    return convert


def _converter(encoding: str) -> Callable[[Any], Any] | None:
    kind, _, parameters = encoding.partition(":")
    if kind == "json":
        return plain_json
    if kind == "ndarray":
        dtype = np.dtype(parameters.partition(":")[0]) if parameters else None
        return lambda value: _array(value, dtype) if isinstance(value, list) else value
    if kind == "str_decimal":
        return lambda value: Decimal(value) if isinstance(value, (int, str)) else value
    return None


def _array(values: list[Any], dtype: np.dtype[Any] | None) -> Any:
    # NumPy would make NaN of it, silently, where numbers have a point.
    if None in values:
        raise ValueError("a null among the numbers of a list; fill it, or store the column as json")
    return np.asarray(values, dtype)


def plain_json(value: Any) -> Any:
    """A value that JSON can hold: times, differences of time and decimals as text, NumPy's values as Python's."""
    if isinstance(value, Mapping):
        return {str(key): plain_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_json(item) for item in value]
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (datetime.timedelta, Decimal)):
        return str(value)
    if isinstance(value, np.ndarray):
        return plain_json(value.tolist())
    if isinstance(value, np.generic):
        return value.item()
    return value

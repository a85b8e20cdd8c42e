"""Python code made for one schema: no loop over columns and no call per value for text, bytes and ints.

The only parts of the code that come from a dataset are column names, as literals made by ``repr``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from streamshard.errors import FormatError

TEXT, BYTES, INT = "text", "bytes", "int"


class Value(NamedTuple):
    """One wanted column, as the code sees it.

    Attributes:
        name: of the column.
        kind: ``text``, ``bytes``, ``int``, or "" for what ``decode`` makes.
        size: bytes of every value; None where a length word says it.
        offset: bytes from the sample's begin to the value, but for the variable values before it.
        variables_before: how many of those there are.
        decode: from (buffer, begin, end) to the value.
    """

    name: str
    kind: str
    size: int | None
    offset: int
    variables_before: int
    decode: Callable[[Any, int, int], Any]


def row_function(
    values: Sequence[Value], num_variable: int, least: int
) -> Callable[[Any, int, int], dict[str, Any]]:
    """Make the function that decodes the sample at ``buffer[begin:end]``; slices of the buffer must be bytes.

    The function raises FormatError, struct.error or UnicodeDecodeError where the sample is malformed.

    Args:
        values: the wanted columns, in the order of the sample.
        num_variable: length words at the sample's begin.
        least: bytes of these words and of all values of fixed size.
    """
    # Ints that stand right behind the length words are unpacked with them.
    layout, front = "<" + "I" * num_variable, 4 * num_variable
    targets = [f"n{i}" for i in range(num_variable)]
    expressions = []
    for i, value in enumerate(values):
        begin = f"s{value.variables_before} + {value.offset}"
        end = f"s{value.variables_before + (value.size is None)} + {value.offset + (value.size or 0)}"
        if value.kind == INT and not value.variables_before and value.offset >= front:
            layout += f"{value.offset - front}xq"
            front = value.offset + 8
            targets.append(f"v{i}")
            expressions.append(f"v{i}")
        elif value.kind == INT:
            expressions.append(f"int64(buffer, {begin})[0]")
        elif value.kind == TEXT:
            expressions.append(f"buffer[{begin}:{end}].decode()")
        elif value.kind == BYTES:
            expressions.append(f"buffer[{begin}:{end}]")
        else:
            expressions.append(f"decode{i}(buffer, {begin}, {end})")
    items = ", ".join(f"{value.name!r}: {each}" for value, each in zip(values, expressions, strict=True))
    total = " + ".join([*(f"n{i}" for i in range(num_variable)), str(least)])
    lines = [
        "def row(buffer, begin, end):",
        f" if end - begin < {least}: raise FormatError",
        *([f" {', '.join(targets)}, = front(buffer, begin)"] if targets else []),
        f" if {total} != end - begin: raise FormatError",
        " s0 = begin",
        *(f" s{i + 1} = s{i} + n{i}" for i in range(num_variable)),
        f" return {{{items}}}",
    ]
    scope: dict[str, Any] = {
        "__builtins__": {},
        "FormatError": FormatError,
        "front": struct.Struct(layout).unpack_from,
        "int64": struct.Struct("<q").unpack_from,
        **{f"decode{i}": value.decode for i, value in enumerate(values)},
    }
    exec("\n".join(lines), scope)  # noqa: S102 see the module's text
    row: Callable[[Any, int, int], dict[str, Any]] = scope["row"]
    return row


@lru_cache(maxsize=1024)
def rows_function(
    columns: tuple[tuple[str, str], ...],
) -> Callable[[Any, Iterable[Any]], list[dict[str, Any]]]:
    """Make the function from a buffer and lists with an item for each row to dicts.

    A dict display is three times as quick as ``dict(zip())``.

    Args:
        columns: name and kind of each. The function takes two lists, of begins and ends, for a column of text or
            bytes, and one of ready values for any other.
    """
    items, targets = [], []
    for i, (name, kind) in enumerate(columns):
        is_cut = kind in (TEXT, BYTES)
        targets += [f"b{i}", f"e{i}"] if is_cut else [f"v{i}"]
        decoded = f"buffer[b{i}:e{i}]" + (".decode()" if kind == TEXT else "") if is_cut else f"v{i}"
        items.append(f"{name!r}: {decoded}")
    source = f"lambda buffer, lists: [{{{', '.join(items)}}} for {', '.join(targets)}, in zip(*lists)]"
    make: Callable[[Any, Iterable[Any]], list[dict[str, Any]]]
    make = eval(source, {"__builtins__": {"zip": zip}})  # noqa: S307 see the module's text
    return make

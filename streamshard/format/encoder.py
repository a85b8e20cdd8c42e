"""Samples to bytes: one function made for a schema, and a careful one that can say what is wrong.

The quick function takes for granted that a sample is right. Whatever it meets else, it hands the sample to the
careful one, which encodes it all the same or explains why it cannot be.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any

from streamshard.errors import FormatError, SampleError, ShardTooLargeError
from streamshard.format.encodings import (
    SCALARS,
    BytesEncoding,
    Encoding,
    ScalarEncoding,
    StrEncoding,
    parse_encoding,
    type_name,
)

SampleEncoder = Callable[[Mapping[str, Any]], bytes]
PartsEncoder = Callable[[Mapping[str, Any]], tuple[Any, ...]]

# What a value that does not fit its column raises in the quick function. OverflowError: a float too large for its
# format; DeprecationWarning: NumPy 1 on truth values as integers, where warnings are errors.
_UNFIT = (SampleError, LookupError, TypeError, ValueError, OverflowError, struct.error, DeprecationWarning)


def compile_encoder(
    names: Sequence[str],
    encodings: Sequence[str],
    sizes: Sequence[int | None],
    *,
    joined: bool = True,
    given: Collection[str] = (),
) -> Callable[[Mapping[str, Any]], Any]:
    """Make the function from samples to bytes for these columns.

    Args:
        names, encodings, sizes: of the columns, as they lie.
        joined: False makes a :data:`PartsEncoder`, which gives the parts that the bytes are, in order: large values
            are not copied. True makes a :data:`SampleEncoder`.
        given: columns without a size whose values are parts already, anything that has a length; not with ``joined``.

    Raises:
        FormatError: an unknown encoding.
    """
    codecs = [parse_encoding(encoding) for encoding in encodings]
    layout = [
        "given" if name in given else _kind(codec, size)
        for name, codec, size in zip(names, codecs, sizes, strict=True)
    ]
    scope: dict[str, Any] = {
        "__builtins__": {"len": len, "type": type},
        "UNFIT": _UNFIT,
        "Unfit": SampleError,
        "bytes": bytes,
        "join": b"".join,
        "str_encode": str.encode,
        "careful": _careful_encoder(tuple(names), tuple(encodings), tuple(sizes), codecs, given),
    }
    for place, (name, codec) in enumerate(zip(names, codecs, strict=True)):
        scope[f"name{place}"] = name
        scope[f"encode{place}"] = codec.encode
    for place, format in enumerate(_structs(layout)):
        scope[f"pack{place}"] = struct.Struct(format).pack
    # The source is made of numbers and of letters that struct knows; names of columns are values in the scope.
    exec(_code(tuple(layout), joined), scope)  # noqa: S102
    encode: Callable[[Mapping[str, Any]], Any] = scope["encode"]
    return encode


def _kind(codec: Encoding, size: int | None) -> str:
    """Say how the quick function deals with a column: a struct letter, ``str``, ``bytes``, ``any``, or its size."""
    if type(codec) is ScalarEncoding:
        return SCALARS[codec.name][0]
    if size is not None:
        return str(int(size))
    if type(codec) is StrEncoding:
        return "str"
    return "bytes" if type(codec) is BytesEncoding else "any"


def _is_scalar(kind: str) -> bool:
    return len(kind) == 1 and kind.isalpha()


def _runs(layout: Sequence[str]) -> list[list[int]]:
    """Columns in the order in which they lie, numbers that follow one another together.

    The first run is that of the lengths, which any numbers at the beginning join.
    """
    runs: list[list[int]] = [[]]
    packed = True
    for place, kind in enumerate(layout):
        if _is_scalar(kind) and packed:
            runs[-1].append(place)
        else:
            runs.append([place])
            packed = _is_scalar(kind)
    return runs


def _structs(layout: Sequence[str]) -> list[str]:
    """The struct format of each run; of one that is no run of numbers, an empty one."""
    formats = ["".join(layout[place] for place in run if _is_scalar(layout[place])) for run in _runs(layout)]
    num_lengths = sum(not _is_scalar(kind) and not kind.isdecimal() for kind in layout)
    formats[0] = "I" * num_lengths + formats[0]
    return [f"<{letters}" for letters in formats]


@lru_cache(maxsize=256)
def _code(layout: tuple[str, ...], joined: bool) -> CodeType:
    """Compile ``encode(sample)`` for columns of these kinds."""
    otherwise = "return join(careful(sample))" if joined else "return careful(sample)"
    lines = [f"if len(sample) != {len(layout)}: {otherwise}"]
    lengths = []
    for place, kind in enumerate(layout):
        value = f"v{place}"
        if _is_scalar(kind):
            continue
        if kind == "str":
            lines.append(f"{value} = str_encode(sample[name{place}])")
        elif kind == "given":
            lines.append(f"{value} = sample[name{place}]")
        elif kind == "bytes":
            lines.append(f"{value} = sample[name{place}]")
            lines.append(f"if type({value}) is not bytes: {value} = encode{place}({value})")
        else:
            lines.append(f"{value} = encode{place}(sample[name{place}])")
        if kind.isdecimal():
            lines.append(f"if len({value}) != {kind}: raise Unfit")
        else:
            lengths.append(f"len({value})")
    parts = []
    for number, (run, format) in enumerate(zip(_runs(layout), _structs(layout), strict=True)):
        numbers = [f"sample[name{place}]" for place in run if _is_scalar(layout[place])]
        if number == 0:
            numbers = lengths + numbers
        if format != "<":
            parts.append(f"pack{number}({', '.join(numbers)})")
        elif run:
            parts.append(f"v{run[0]}")
    found = f"({', '.join(parts)},)"
    if joined:
        found = " + ".join(parts) if len(parts) <= 2 else f"join({found})"
    body = "".join(f"        {line}\n" for line in [*lines, f"return {found}"])
    source = f"def encode(sample):\n    try:\n{body}    except UNFIT:\n        {otherwise}\n"
    return compile(source, "<encoder of a schema>", "exec")


def _careful_encoder(
    names: tuple[str, ...],
    encodings: tuple[str, ...],
    sizes: tuple[int | None, ...],
    codecs: Sequence[Encoding],
    given: Collection[str],
) -> PartsEncoder:
    def encode(sample: Mapping[str, Any]) -> tuple[Any, ...]:
        try:
            # Counting is enough: with all names found, one more means an unknown one.
            if len(sample) != len(names):
                raise KeyError
            parts = [
                sample[name] if name in given else codec.encode(sample[name])
                for name, codec in zip(names, codecs, strict=True)
            ]
            lengths = [len(part) for part, size in zip(parts, sizes, strict=True) if size is None]
            head = struct.pack(f"<{len(lengths)}I", *lengths)
        except (SampleError, LookupError, TypeError, struct.error) as error:
            raise _explain(names, encodings, given, sample, error) from error
        for name, encoding, part, size in zip(names, encodings, parts, sizes, strict=True):
            if size is not None and len(part) != size:
                raise FormatError(
                    f"column {name!r}: encoding {encoding!r} gave {len(part)} bytes, its size is {size}"
                )
        return head, *parts

    return encode


def _explain(
    names: tuple[str, ...], encodings: tuple[str, ...], given: Collection[str], sample: Any, error: Exception
) -> SampleError:
    if not isinstance(sample, Mapping):
        return SampleError(f"expected a dict of columns, found {type_name(sample)}")
    missing = [name for name in names if name not in sample]
    if missing:
        return SampleError(
            f"column {missing[0]!r} is missing; the sample has {', '.join(map(repr, sample)) or 'none'}"
        )
    unknown = [name for name in sample if name not in names]
    if unknown:
        return SampleError(
            f"column {unknown[0]!r} was not declared; declared: {', '.join(map(repr, names))}. "
            "Add it to columns, or leave it out of the sample"
        )
    for name, encoding in zip(names, encodings, strict=True):
        if name in given:
            continue
        try:
            payload = parse_encoding(encoding).encode(sample[name])
        except (SampleError, LookupError, TypeError) as cause:
            kind = type_name(sample[name])
            found = "" if f"found {kind}" in str(cause) else f" (the value is of type {kind})"
            return SampleError(f"column {name!r} (encoding {encoding!r}): {cause}{found}")
        if len(payload) >= 2**32:
            return ShardTooLargeError(
                f"column {name!r} (encoding {encoding!r}): {len(payload)} bytes; a value must stay "
                "below 4 GiB"
            )
    return SampleError(f"a sample that could not be encoded: {type(error).__name__}: {error}")

"""The only parser of sizes ("64mb") and counts ("1.5M") in the package, and the way back for people."""

from __future__ import annotations

import numbers
import operator
import re
from typing import Any

_BYTE_UNITS = {
    "": 1,
    "b": 1,
    "kb": 1 << 10,
    "mb": 1 << 20,
    "gb": 1 << 30,
    "tb": 1 << 40,
    "pb": 1 << 50,
    "eb": 1 << 60,
}
_COUNT_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_NUMBER = re.compile(r"\s*([0-9][0-9_,]*(?:\.[0-9]+)?|\.[0-9]+)\s*([a-zA-Z]*)\s*")


MAX_NUMBER_BITS = 2048
"""Numbers beyond this, far above every float, are mistakes: refused by name."""
_MAX_TEXT = 600  # characters of a number of so many bits, and some
_SHOWN_TEXT = 40


def parse_bytes(value: int | str, *, name: str = "size") -> int:
    """Turn ``"100kb"`` (1024-based) or an int into a number of bytes >= 0.

    Raises:
        ValueError: not a number with one of the units b, kb, mb, gb, tb, pb, eb; negative.
    """
    return _parse(value, _BYTE_UNITS, name, "a number of bytes such as 67108864 or '64mb'")


def parse_count(value: int | str, *, name: str = "count") -> int:
    """Turn ``"1.5M"`` (1000-based: k, M, B, T) or an int into a count >= 0.

    Raises:
        ValueError: not a number with one of these units; negative; ``"10.7"``, which is no whole number.
    """
    return _parse(value, _COUNT_UNITS, name, "a count such as 1000000 or '1M'", is_exact=True)


def _parse(value: int | str, units: dict[str, int], name: str, wanted: str, *, is_exact: bool = False) -> int:
    if not isinstance(value, str):
        number = as_integer(value)
        if number is None:
            raise ValueError(f"{name}={value!r}: expected {wanted}")
        if number < 0:
            raise ValueError(f"{name}={shown(value)}: must not be negative")
        if is_huge(number):
            raise ValueError(f"{name}={shown(value)}: no such count can be meant; expected {wanted}")
        return number
    if len(value) > _MAX_TEXT:
        text = f"{value[:_SHOWN_TEXT]!r}…"
        raise ValueError(f"{name}={text} ({len(value):,} characters): expected {wanted}")
    match = _NUMBER.fullmatch(value)
    unit = units.get(match.group(2).lower()) if match else None
    if match is None or unit is None:
        raise ValueError(f"{name}={value!r}: expected {wanted}")
    digits = match.group(1).replace(",", "").replace("_", "")
    whole, _, fraction = digits.partition(".")
    # Exact arithmetic: "0.1" of a large unit must not depend on binary floating point.
    scale: int = 10 ** len(fraction)
    found, rest = divmod((int(whole or "0") * scale + int(fraction or "0")) * unit, scale)
    if rest and is_exact:
        raise ValueError(f"{name}={value!r}: is no whole number; expected {wanted}")
    return found


def is_huge(value: object) -> bool:
    """Whether a number has so many digits that it must be a mistake, and that Python may refuse to write it."""
    return isinstance(value, numbers.Rational) and _bits(value) > MAX_NUMBER_BITS


def shown(value: object) -> str:
    """Write a value for a message; a huge number as its size."""
    if isinstance(value, numbers.Rational) and is_huge(value):
        return f"<number of {_bits(value):,} bits>"
    return repr(value)


def _bits(value: numbers.Rational) -> int:
    return max(int(value.numerator).bit_length(), int(value.denominator).bit_length())


def as_integer(value: Any) -> int | None:
    """Return a Python or NumPy integer as an int; None for anything else, booleans too."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # NumPy's integers pass
    except TypeError:
        return None


def format_bytes(nbytes: float) -> str:
    """Show a number of bytes for people: ``format_bytes(1536) == '1.5 KiB'``."""
    size = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} PiB"

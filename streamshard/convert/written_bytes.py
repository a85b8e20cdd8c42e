"""Images whose bytes stand in a record as formats without binary write them.

"iVBORw0KGgo…"                                   base64, with padding or without, of either alphabet
"b'\\x89PNG…'"                                    Python's notation, as pandas writes bytes into a CSV
[137, 80, 78, 71, …]                             numbers
{"type": "Buffer", "data": [137, …]}             Node
{"$binary": {"base64": …}}, {"$binary": …}       MongoDB's extended JSON
"""

from __future__ import annotations

import ast
import base64
import binascii

from streamshard.convert.images import HEAD_NBYTES, UNKNOWN, sniff_format

SHORTEST_TEXT = 48
"""No text below this many characters is the content of an image."""

# How the base64 of a JPEG (in both alphabets), PNG, GIF and WebP file begins.
_BASE64_HEADS = ("/9j/", "_9j_", "iVBORw0KGgo", "R0lGODdh", "R0lGODlh", "UklGR")
_OTHER_ALPHABET = str.maketrans("-_", "+/")


def looks_like_image(text: str) -> bool:
    """Whether a text begins as base64 of an image, or as a data URI of one; only its beginning is looked at."""
    return len(text) >= SHORTEST_TEXT and text.startswith((*_BASE64_HEADS, "data:image/"))


def image_in(value: object) -> bytes | None:
    """The image file that a value is in one of these ways; ``None`` for any other value, whatever it may be."""
    content = _bytes_in(value)
    known = content is not None and sniff_format(content[:HEAD_NBYTES]) != UNKNOWN
    return content if known else None


def _bytes_in(value: object) -> bytes | None:
    if isinstance(value, dict):
        inner = value.get("$binary", value.get("data") if value.get("type") == "Buffer" else None)
        if isinstance(inner, dict):
            inner = inner.get("base64")
        return _of_base64(inner) if isinstance(inner, str) else _of_numbers(inner)
    if not isinstance(value, str):
        return _of_numbers(value)
    if len(value) < SHORTEST_TEXT:
        return None
    if value.startswith(_BASE64_HEADS):
        return _of_base64(value)
    return _of_notation(value) if value.startswith(("b'", 'b"')) else None


def plain_base64(text: str) -> bytes:
    """The bytes of a base64 text of either alphabet, with padding or without; line breaks in it mean nothing.

    Raises:
        ValueError: it is broken.
    """
    plain = "".join(text.split()).translate(_OTHER_ALPHABET).rstrip("=")
    return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)


def _of_base64(text: str) -> bytes | None:
    try:
        return plain_base64(text)
    except (binascii.Error, ValueError):
        return None


def _of_notation(text: str) -> bytes | None:
    try:
        found = ast.literal_eval(text)
    except (
        ValueError,
        SyntaxError,
        RecursionError,
        MemoryError,
    ):  # the last: nested too deeply for the parser
        return None
    return found if isinstance(found, bytes) else None


def _of_numbers(value: object) -> bytes | None:
    if not isinstance(value, list) or not value or type(value[0]) is not int:
        return None
    try:
        return bytes(value)
    except (ValueError, TypeError):
        return None

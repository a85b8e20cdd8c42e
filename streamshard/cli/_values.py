"""One value of a sample as a line of text, or as JSON."""

from __future__ import annotations

import base64
import io
import json
import math
from typing import Any

from streamshard.cli._text import shortened

MAX_CHARACTERS = 200
_MAX_BYTES = 32
_MAX_NUMBERS = 8
_MAX_PICTURES = 8


def is_picture(encoding: str) -> bool:
    """Tell whether a column holds a picture or a list of them."""
    return encoding in {"pil", "jpeg", "png", "jpeg_array", "jpegarray"} or (
        encoding.startswith("list[") and encoding != "list[bytes]"
    )


def is_pixels(encoding: str) -> bool:
    """Tell whether a picture column holds bare pixels, which are no image file."""
    return encoding in {"pil", "list[pil]"}


def pictures_of(value: Any) -> list[Any]:
    """Return the pictures in a picture column's value: bytes of image files, or PIL images."""
    return list(value) if isinstance(value, (list, tuple)) else [value]


def show_value(value: Any, encoding: str) -> str:
    """Describe a decoded value for people, in at most some 250 characters, not yet safe for a terminal."""
    if is_picture(encoding):
        if not isinstance(value, (list, tuple)):
            return _show_picture(value)
        shown = "; ".join(_show_picture(picture) for picture in value[:_MAX_PICTURES])
        more = "; ..." if len(value) > _MAX_PICTURES else ""
        return f"{len(value)} pictures{': ' if value else ''}{shown}{more}"
    if isinstance(value, str):
        return shortened(value, MAX_CHARACTERS)
    if encoding == "list[bytes]":
        shown = "; ".join(show_value(each, "bytes") for each in value[:_MAX_PICTURES])
        return f"{len(value)} values{': ' if value else ''}{shown}{'; ...' if len(value) > _MAX_PICTURES else ''}"
    if isinstance(value, (bytes, bytearray, memoryview)):
        head = bytes(value[:_MAX_BYTES]).hex(" ")
        return f"{len(value):,} bytes: {head}{' ...' if len(value) > _MAX_BYTES else ''}"
    if getattr(value, "shape", None):
        numbers = ", ".join(map(str, value.ravel()[:_MAX_NUMBERS].tolist()))
        return f"{value.dtype} {list(value.shape)}: {numbers}{', ...' if value.size > _MAX_NUMBERS else ''}"
    if encoding == "json":
        return shortened(json.dumps(value, ensure_ascii=False), MAX_CHARACTERS)
    return shortened(str(value), MAX_CHARACTERS)


def value_to_json(value: Any, encoding: str) -> Any:
    """Turn a decoded value into what JSON can hold.

    Pictures become their format, size and number of bytes; other bytes base64; arrays dtype, shape and
    values; numbers that JSON has no word for, strings.
    """
    if is_picture(encoding):
        if isinstance(value, (list, tuple)):
            return [_describe_picture(picture) for picture in value]
        return _describe_picture(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"nbytes": len(value), "base64": base64.b64encode(value).decode("ascii")}
    if encoding == "list[bytes]":
        return [value_to_json(each, "bytes") for each in value]
    if hasattr(value, "dtype"):
        if not value.shape:
            return value_to_json(value.item(), encoding)
        return {"dtype": str(value.dtype), "shape": list(value.shape), "values": _plain(value.tolist())}
    return _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _describe_picture(picture: Any) -> dict[str, Any]:
    """Look at a picture's header only; its pixels are not decoded."""
    from PIL import Image

    if not isinstance(picture, (bytes, bytearray, memoryview)):
        width, height = picture.size
        return {"format": "pixels", "width": width, "height": height, "mode": picture.mode}
    described: dict[str, Any] = {"nbytes": len(picture)}
    try:
        with Image.open(io.BytesIO(picture)) as opened:
            width, height = opened.size
            described |= {"format": opened.format, "width": width, "height": height, "mode": opened.mode}
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        described["error"] = f"not a readable picture: {error}"
    return described


def _show_picture(picture: Any) -> str:
    described = _describe_picture(picture)
    nbytes = f"{described['nbytes']:,} bytes" if "nbytes" in described else ""
    if "error" in described:
        return f"{nbytes}, {described['error']}"
    size = f"{described['format']} {described['width']}x{described['height']} {described['mode']}"
    return f"{size}, {nbytes}" if nbytes else size

"""JSON as ``json.dumps`` writes it, without the objects that this makes for every call."""

from __future__ import annotations

import json
import json.encoder
from typing import Any

_encoder = json.JSONEncoder()
# The encoder in C that JSONEncoder.encode makes anew for each value; without the notes that find circles.
_make = getattr(json.encoder, "c_make_encoder", None)
_chunks = (
    None
    if _make is None
    else _make(
        None,
        _encoder.default,
        json.encoder.encode_basestring_ascii,
        None,
        _encoder.key_separator,
        _encoder.item_separator,
        _encoder.sort_keys,
        _encoder.skipkeys,
        _encoder.allow_nan,
    )
)


def json_text(value: Any) -> str:
    """The text of ``json.dumps(value)``, ASCII only, so that its length is its size in bytes.

    Raises:
        TypeError: a value that JSON does not have.
        ValueError: a value that holds itself.
        RecursionError: a value that is too deep.
    """
    if _chunks is None:
        return _encoder.encode(value)
    try:
        return "".join(_chunks(value, 0))
    except RecursionError:
        return _encoder.encode(value)  # says whether it is a circle

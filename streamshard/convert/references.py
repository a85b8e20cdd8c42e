"""How a record names its images: under which keys, and what each reference means."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from typing import Any

from streamshard.convert.problems import BAD_REFERENCE, TWO_IMAGE_KEYS, RecordProblem, shorten

KNOWN_IMAGE_KEYS = (
    "image", "images", "image_path", "image_paths", "image_file", "image_files", "img", "imgs", "img_path", "img_paths",
)  # fmt: skip
_KNOWN_SET = frozenset(KNOWN_IMAGE_KEYS)
NO_IMAGES = ("none",)
DATA_URI_REFERENCE = "data:"

_TAGS = (b"<image>", b"\\u003cimage\\u003e")
_OTHER_TAGS = (b"<|vision_start|>", b"<|image_pad|>", b"<|image|>", b"<img>", b"<ImageHere>", b"[IMG]")
_DATA_URI = re.compile(r"data:([a-zA-Z0-9.+/-]*)((?:;[a-zA-Z0-9_.+=-]+)*),(.*)", re.DOTALL | re.IGNORECASE)


def references_of(record: Mapping[str, Any], image_keys: Sequence[str]) -> dict[str, list[str]]:
    """Find the image references of a record: key → references in order, for each key that names at least one.

    Without ``image_keys`` the known keys are looked at, and only one of them may hold images.

    Raises:
        RecordProblem: a value that is no reference; images under two keys that nobody has asked for.
    """
    found: dict[str, list[str]] = {}
    if image_keys == NO_IMAGES or (not image_keys and _KNOWN_SET.isdisjoint(record)):
        return found
    for key in image_keys or KNOWN_IMAGE_KEYS:
        value = record.get(key)
        if value is None or value == "" or value == []:
            continue
        found[key] = _as_references(key, value)
    if len(found) > 1 and not image_keys:
        raise RecordProblem(
            TWO_IMAGE_KEYS,
            f"images under {' and '.join(repr(key) for key in found)}; say which keys hold images with --image-key NAME"
            " (once for each)",
        )
    return found


def _as_references(key: str, value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        for place, item in enumerate(value):
            if not isinstance(item, str) or not item:
                raise RecordProblem(
                    BAD_REFERENCE,
                    f"{key}[{place}] is {_shown(item)}, expected a path or a data URI; {_HINT}",
                )
        return list(value)
    raise RecordProblem(
        BAD_REFERENCE, f"{key!r} is {_shown(value)}, expected a path, a data URI or a list of them; {_HINT}"
    )


_HINT = "if the key holds no images, name those that do with --image-key NAME, or say --image-key none"


def _shown(value: object) -> str:
    return "an empty string" if value == "" else f"{type(value).__name__} {shorten(repr(value), 60)}"


def decode_data_uri(reference: str) -> bytes:
    """The bytes of ``data:image/png;base64,…``. Messages never hold the whole URI.

    Raises:
        RecordProblem: no base64 data URI, or broken base64.
    """
    match = _DATA_URI.match(reference)
    if match is None or not match.group(2).lower().endswith(";base64"):
        raise RecordProblem(
            BAD_REFERENCE, f"{shorten(reference, 40)} is no data URI of the form data:image/png;base64,…"
        )
    try:
        # Line breaks are allowed inside base64 text; anything else strange is a broken URI.
        return base64.b64decode("".join(match.group(3).split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise RecordProblem(
            BAD_REFERENCE, f"broken base64 in data URI {shorten(reference, 40)}: {error}"
        ) from None


def count_image_tags(line: bytes) -> tuple[int, bool]:
    """The number of ``<image>`` tags in the text of a record, and whether it has any tag that stands for an image."""
    if b"<" not in line and b"[IMG]" not in line and b"u003c" not in line:
        return 0, False
    tags = sum(line.count(tag) for tag in _TAGS)
    return tags, tags > 0 or any(tag in line for tag in _OTHER_TAGS)

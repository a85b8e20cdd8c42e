"""Values that look like images though they are not taken for any: what the summary points out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from streamshard.convert.kinds import IMAGE_SUFFIXES
from streamshard.convert.listed_text import listed_in_text
from streamshard.convert.messages import holds_parts, take_parts
from streamshard.convert.written_bytes import looks_like_image

MESSAGES = "[]"
"""The end of a way to messages that hold images."""

_LONGEST_PATH = 4096
_LONGEST_TEXT = 1 << 16
_LISTED_ITEMS = 8
_DEEPEST_OBJECT = 4


def image_like_keys(values: Mapping[str, Any], references: Collection[str]) -> list[str]:
    """The keys of a record whose value looks like images, names of them, or messages as text that hold images."""
    return [
        key
        for key, value in values.items()
        if key not in references
        # What stands beside stored images is their path.
        and key.removesuffix("_path") not in references
        and (_names_images(value) or (type(value) is str and _is_text_of_messages(value)))
    ]


def nested_image_like(values: Mapping[str, Any]) -> list[str]:
    """Where objects inside a record hold what looks like names of image files, as jq writes it: ``.meta.image``.

    Of messages that hold images, with :data:`MESSAGES` behind it: ``.body.messages[]``.
    """
    return [way for key, value in values.items() if type(value) is dict for way in _ways(f".{key}", value, 1)]


def _ways(way: str, value: dict[str, Any], depth: int) -> list[str]:
    found = []
    for key, item in value.items():
        if type(item) is dict and depth < _DEEPEST_OBJECT:
            found += _ways(f"{way}.{key}", item, depth + 1)
        elif _names_images(item):
            found.append(f"{way}.{key}")
        elif type(item) is list and holds_parts(item) and take_parts(item)[1]:
            found.append(f"{way}.{key}{MESSAGES}")
    return found


def _names_images(value: Any) -> bool:
    if type(value) is list:
        return bool(value) and all(map(_names_image, value[:_LISTED_ITEMS]))
    return _names_image(value)


def _names_image(value: Any) -> bool:
    return type(value) is str and (
        (len(value) <= _LONGEST_PATH and value.lower().endswith(IMAGE_SUFFIXES)) or looks_like_image(value)
    )


def _is_text_of_messages(text: str) -> bool:
    if text[:1] != "[" or "image" not in text or len(text) > _LONGEST_TEXT:
        return False
    messages = listed_in_text(text)
    return isinstance(messages, list) and holds_parts(messages) and bool(take_parts(messages)[1])

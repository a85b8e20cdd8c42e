"""Images inside the messages of chat records: parts of a message's content, in the ways people write them.

    {"type": "image_url", "image_url": {"url": REF}}            OpenAI
    {"type": "input_image", "image_url": REF}                   OpenAI, newer
    {"type": "image", "image": REF}, {"image": REF}             Qwen
    {"type": "image", "url" | "path" | "base64": REF}           Transformers
    {"type": "image", "source": {"data" | "url": REF}}          Anthropic
    {"inline_data": {"mime_type": "image/…", "data": REF}}      Gemini, also inlineData and mimeType; in "parts"
    {"image": {"source": {"bytes": REF}}}                       Bedrock
    {"role": …, "images": [REF, …]}                             Ollama
    {"type": "file", "mediaType": "image/…", "data": REF}       AI SDK
    {"type": "image"}                                           a mark for an image that stands elsewhere

The chat stays as it is, but for the content of images that stands in it: a data URI keeps its head alone, since the
bytes get a column of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

CONTENT_KEYS = ("content", "value", "parts")
_TYPES = frozenset(("image", "image_url", "input_image"))
DEEPEST_LIST = 4
MEDIA_TYPES = ("mime_type", "mimeType", "media_type", "mediaType")
INLINE = ("inline_data", "inlineData")
_OWN = ("image_url", "image")
_HOLDERS = ("source", *INLINE, "url", "path", "base64", "data", "bytes")
_PART_KEYS = frozenset(("type", "image", *INLINE))
_NESTING_KEYS = (*CONTENT_KEYS, "images")
# The keys whose text is base64 without a head.
_BASE64_HOLDERS = ("base64", "data", "bytes")


class ImagePart:
    """One image in a message: where it stands, and what stands there."""

    __slots__ = ("holder", "key", "value")

    def __init__(self, holder: dict[str, Any] | list[Any], key: Any) -> None:
        self.holder: Any = holder
        self.key = key
        self.value = self.holder[key]

    @property
    def is_base64(self) -> bool:
        """Whether text that stands there is base64 without a head."""
        return self.key in _BASE64_HOLDERS

    def empty(self) -> None:
        """Take the content of the image out of the chat; a path or URL stays."""
        if isinstance(self.value, str):
            head, comma, _ = self.value.partition(",")
            self.holder[self.key] = head + comma if head[:5].lower() == "data:" else ""
        elif isinstance(self.value, dict):
            self.holder[self.key] = {**self.value, "bytes": None}
        else:
            self.holder[self.key] = None


def is_messages(value: Any) -> bool:
    """Whether a value of a record is a list of messages, or of parts of one."""
    return type(value) is list and all(
        type(item) is dict
        and not item.keys().isdisjoint(("role", "from", "content", "value", "type", "parts"))
        and item.get("type") != "Buffer"  # bytes, as Node writes them
        for item in value
    )


def holds_parts(value: Any, depth: int = 0) -> bool:
    """Whether a value of a record is messages, lists of them, or the content of one, with parts in it."""
    if type(value) is not list:
        return False
    for item in value:
        if type(item) is list and depth < DEEPEST_LIST and holds_parts(item, depth + 1):
            return True
        if type(item) is not dict:
            continue
        # Most messages have none of these keys, and every record passes here twice.
        if not _PART_KEYS.isdisjoint(item) and _is_part(item):
            return True
        if list in map(type, item.values()) and any(type(item.get(key)) is list for key in _NESTING_KEYS):
            return True
    return False


def take_parts(messages: list[Any], depth: int = 0) -> tuple[list[Any], list[ImagePart], int]:
    """Copy messages as deep as parts go; gives the copy, its images in order, and the number of bare marks."""
    copied: list[Any] = []
    parts: list[ImagePart] = []
    marks = 0
    for message in messages:
        made = message
        if type(message) is list and depth < DEEPEST_LIST:
            made, more, bare = take_parts(message, depth + 1)
            parts += more
            marks += bare
        elif type(message) is dict and _is_part(message):
            made = _part(message, parts)
            marks += made is message
        elif type(message) is dict:
            for key in CONTENT_KEYS:
                content = message.get(key)
                if type(content) is list:
                    inner, more, bare = take_parts(content)
                    made = {**made, key: inner}
                    parts += more
                    marks += bare
            if type(message.get("images")) is list and "role" in message:
                made = {**made, "images": (beside := list(message["images"]))}
                # Numbers tell places in a list that stands elsewhere, null that an image is there, too.
                parts += [
                    ImagePart(beside, place)
                    for place, image in enumerate(beside)
                    if type(image) in (str, bytes, dict)
                ]
        copied.append(made)
    return copied, parts, marks


def _is_part(item: dict[str, Any]) -> bool:
    kind = item.get("type")
    if type(kind) is str:
        return kind in _TYPES or (kind == "file" and _is_image_type(item))
    image = item.get("image")
    if image is not None:
        # Qwen's short form, beside {"text": …}, or Bedrock's; a message has a role or the like.
        known = type(image) is str or (type(image) is dict and ("source" in image or _is_file(image)))
        return known and not {"role", "from"} & item.keys()
    return any(_is_image_type(item[key]) for key in INLINE if key in item)


def _is_image_type(value: Any) -> bool:
    """Whether a file in a message says that it is an image."""
    kinds = [value.get(key) for key in MEDIA_TYPES] if type(value) is dict else []
    return any(type(kind) is str and kind.startswith("image/") for kind in kinds)


def _part(item: dict[str, Any], parts: list[ImagePart]) -> dict[str, Any]:
    """A copy of a part with its image noted; the part itself where it names none."""
    made = dict(item)
    for holder, key in filled_places(made, _OWN):
        parts.append(ImagePart(holder, key))
        return made
    return item


def filled_places(made: dict[str, Any], own: Sequence[str]) -> Iterator[tuple[dict[str, Any], str]]:
    """Where in a copy of a part a file may stand, under its ``own`` keys first; objects on the way are copied."""
    for key in (*own, *_HOLDERS):
        value = made.get(key)
        if type(value) is dict and value and not _is_file(value):
            made[key] = inner = dict(value)
            yield from filled_places(inner, own)
        elif value is not None and value != "" and value != {} and value != []:
            yield made, key


def _is_file(value: dict[str, Any]) -> bool:
    """Whether an object is a file as Hugging Face datasets keep them, with its bytes."""
    return value.keys() <= {"bytes", "path"} and bool(value.get("bytes"))

"""Audio and video inside the messages of chat records: parts of a message's content, in the ways people write them.

    {"type": "audio" | "video", "audio" | "video": REF}              Qwen; of a video also [REF, …], its frames
    {"audio": REF}, {"video": REF}                                   Qwen, short
    {"type": "audio_url" | "video_url", "audio_url": {"url": REF}}   vLLM
    {"type": "audio", "url" | "path" | "base64": REF}                Transformers
    {"type": "input_audio", "input_audio": {"data": REF, "format"}}  OpenAI
    {"inline_data": {"mime_type": "audio/…", "data": REF}}           Gemini, also inlineData and mimeType
    {"type": "file", "mediaType": "video/…", "data": REF}            AI SDK

The chat stays as it is, but for the content of files that stands in it, see :mod:`~streamshard.convert.messages`.
"""

from __future__ import annotations

from typing import Any

from streamshard.convert.messages import (
    CONTENT_KEYS,
    DEEPEST_LIST,
    INLINE,
    MEDIA_TYPES,
    ImagePart,
    filled_places,
)

MEDIA_COLUMNS = {"audio": "audios", "video": "videos"}
"""Kind of file → the column that gets the files of messages."""

_OWN = {kind: (f"{kind}_url", f"input_{kind}", kind) for kind in MEDIA_COLUMNS}


class MediaPart(ImagePart):
    """One file in a message; ``media_type`` is what its part says of it, such as ``audio/wav``, or empty."""

    __slots__ = ("media_type",)

    def __init__(self, holder: Any, key: Any, media_type: str) -> None:
        super().__init__(holder, key)
        self.media_type = media_type


def take_media(messages: Any, depth: int = 0) -> tuple[Any, dict[str, list[MediaPart]]]:
    """Copy messages as deep as parts go; gives the copy, and its files in order, by kind (``audio``, ``video``)."""
    parts: dict[str, list[MediaPart]] = {}
    return _copied(messages, parts, depth), parts


def names_media(messages: Any) -> bool:
    """Whether a value is messages with parts that name audio or video."""
    return type(messages) is list and bool(take_media(messages)[1])


def _copied(value: Any, parts: dict[str, list[MediaPart]], depth: int) -> Any:
    if depth > 2 * DEEPEST_LIST:
        return value
    if type(value) is list:
        return [_copied(item, parts, depth + 1) if type(item) in (list, dict) else item for item in value]
    if type(value) is not dict:
        return value
    kind = _kind_of(value)
    if kind:
        return _part(value, kind, parts)
    made = value
    for key in CONTENT_KEYS:
        if type(value.get(key)) is list:
            made = {**made, key: _copied(value[key], parts, depth + 1)}
    return made


def _kind_of(item: dict[str, Any]) -> str:
    """``audio`` or ``video`` for a part that is one; empty for anything else."""
    said = item.get("type")
    if type(said) is str:
        kind = said.removeprefix("input_").removesuffix("_url")
        if kind in MEDIA_COLUMNS:
            return kind
        return _kind_said(item) if said == "file" else ""
    for key in INLINE:
        if type(item.get(key)) is dict:
            return _kind_said(item[key])
    if item.keys() & {"role", "from"}:
        return ""
    # The short form, beside {"text": …}.
    return next((kind for kind in MEDIA_COLUMNS if type(item.get(kind)) is str), "")


def _kind_said(value: dict[str, Any]) -> str:
    kind = _media_type(value).partition("/")[0]
    return kind if kind in MEDIA_COLUMNS else ""


def _media_type(value: dict[str, Any]) -> str:
    found = next((value[key] for key in MEDIA_TYPES if type(value.get(key)) is str), "")
    return str(found).lower()


def _part(item: dict[str, Any], kind: str, parts: dict[str, list[MediaPart]]) -> dict[str, Any]:
    """A copy of a part with its files noted; the part itself where it names none: a mark."""
    made = dict(item)
    for holder, key in filled_places(made, _OWN[kind]):
        said = _media_type(holder)
        if not said and type(holder.get("format")) is str:
            said = f"{kind}/{holder['format'].lower()}"
        mine = parts.setdefault(kind, [])
        if type(holder[key]) is list:
            holder[key] = frames = list(holder[key])
            mine += [MediaPart(frames, place, said) for place in range(len(frames))]
        else:
            mine.append(MediaPart(holder, key, said))
        return made
    return item

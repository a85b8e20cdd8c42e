"""Files that are stored as they are, never looked into: audio, video and others that ``--file-key`` names."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import PurePosixPath
from typing import Any

from streamshard.convert.media_parts import names_media
from streamshard.convert.places import Located
from streamshard.convert.references import DATA_URI_REFERENCE, Embedded, Reference, is_file_value

NO_FILES = ("none",)
FILE_ENCODINGS = ("bytes", "list[bytes]")
"""The encodings of a column of files: at most one in each sample, or several in some."""

FILE_ENDINGS = frozenset(
    (
        "aac", "aif", "aiff", "flac", "m4a", "mp3", "oga", "ogg", "opus", "wav", "weba", "wma",
        "avi", "flv", "m4v", "mkv", "mov", "mp4", "mpeg", "mpg", "ogv", "webm", "wmv",
    )
)  # fmt: skip
"""How the names of audio and video files end."""

OTHER_TYPE = "other"
_KNOWN_KEYS = frozenset(
    f"{kind}{form}"
    for kind in ("audio", "video", "wav", "clip")
    for form in ("", "s", "_path", "_paths", "_file", "_files")
)
_LONGEST_PATH = 4096
_LISTED_ITEMS = 8
_MEDIA_TYPE = re.compile(r"data:[a-z0-9.+/-]{0,80}(?=[;,])", re.IGNORECASE)


def as_file(reference: Reference, located: Located | Embedded) -> Located | Embedded:
    """The place of a reference as one that nobody looks into; of a data URI, its media type is kept as its name."""
    if isinstance(located, Located):
        return located._replace(as_is=True)
    match = _MEDIA_TYPE.match(reference) if isinstance(reference, str) else None
    return located._replace(as_is=True, kept=located.kept if match is None else match.group().lower())


def file_type(located: Located | Embedded) -> str:
    """What a file is by its name: the ending or the media type, where it is known, else ``"other"``."""
    name = located.reference if isinstance(located, Located) else located.kept
    in_uri = name.startswith(DATA_URI_REFERENCE)
    ending = name.rpartition("/")[2].removeprefix("x-") if in_uri else _ending(name)
    return ending if ending in FILE_ENDINGS else OTHER_TYPE


def _ending(name: str) -> str:
    return PurePosixPath(name.partition("?")[0].partition("#")[0]).suffix[1:].lower()


def file_like_keys(values: Mapping[str, Any], references: Collection[str]) -> list[str]:
    """The keys of a record whose value looks like names of audio or video files, though no file is stored.

    A name beside bytes, or beside stored files, is taken for what it says, unless its key is a usual one for files.
    """
    holds_bytes = any(
        type(value) is bytes or (type(value) is list and type(next(iter(value), None)) is bytes)
        for value in values.values()
    )
    return [
        key
        for key, value in values.items()
        if key not in references
        and (key in _KNOWN_KEYS or not references)
        and not holds_bytes
        and key.removesuffix("_path") not in references
        and _names_files(value)
    ]


def media_keys(values: Mapping[str, Any]) -> list[str]:
    """The keys of a record that hold messages which name audio or video files."""
    return [key for key, value in values.items() if names_media(value)]


def _names_files(value: Any) -> bool:
    if type(value) is list:
        return bool(value) and all(map(_names_file, value[:_LISTED_ITEMS]))
    return _names_file(value)


def _names_file(value: Any) -> bool:
    if type(value) is dict and is_file_value(value):
        value = value.get("path")
    return (
        type(value) is str
        and 0 < len(value) <= _LONGEST_PATH
        and "\n" not in value
        and _ending(value) in FILE_ENDINGS
    )

"""How a record names or holds its images: under which keys, inside which messages, and what each reference means."""

from __future__ import annotations

import binascii
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import unquote, unquote_to_bytes

from streamshard.convert.images import HEAD_NBYTES, sniff_format
from streamshard.convert.listed_text import listed_in_text
from streamshard.convert.media_parts import MEDIA_COLUMNS, take_media
from streamshard.convert.messages import holds_parts, is_messages, take_parts
from streamshard.convert.problems import BAD_REFERENCE, TWO_IMAGE_KEYS, RecordProblem, shorten
from streamshard.convert.written_bytes import SHORTEST_TEXT, image_in, plain_base64

KNOWN_IMAGE_KEYS = (
    "image", "images", "image_path", "image_paths", "image_file", "image_files", "img", "imgs", "img_path", "img_paths",
)  # fmt: skip
_KNOWN_KEYS = frozenset(KNOWN_IMAGE_KEYS)
NO_IMAGES = ("none",)
DATA_URI_REFERENCE = "data:"
NESTED_KEY = "images"
"""The column of images that stand inside messages."""

REJECTED = "rejected"
"""How the keys of answers begin that were not chosen, of a preference; the same images belong to the chosen one."""

_IMAGE_ENDINGS = frozenset(("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff"))
_FILE_KEYS = {"bytes", "path"}
# An object with one of these alone is what it says.
_NAME_KEYS = frozenset(("url", "image", "image_url", "image_path", "file_name", "filename", "file", "src"))
_HOLDERS = frozenset((bytes, dict, list))
# Formats whose first bytes are no accident.
_SURE_FORMATS = frozenset(("jpeg", "png", "gif", "webp", "heic", "avif"))

_TAGS = (b"<image>", b"\\u003cimage\\u003e")
_OTHER_TAGS = (b"<|vision_start|>", b"<|image_pad|>", b"<|image|>", b"<img>", b"<ImageHere>", b"[IMG]")
_DATA_URI = re.compile(r"data:([a-zA-Z0-9.+/-]*)((?:;[a-zA-Z0-9_.+=-]+)*),(.*)", re.DOTALL | re.IGNORECASE)


class Embedded(NamedTuple):
    """An image whose bytes the record itself holds; ``kept`` is what the path column keeps of it.

    ``as_is``: a file that nobody looks into, see :mod:`~streamshard.convert.files`.
    """

    content: bytes
    kept: str = ""
    as_is: bool = False


Reference = str | Embedded


@dataclass(slots=True)
class References:
    """The images of a record in order, by the column that gets them, and the record without their bytes.

    ``in_place`` counts the images that stand in a message where they belong, so that no mark in the text stands for
    them; ``marks`` counts the parts ``{"type": "image"}`` that name none. ``files`` are the columns whose files are
    stored as they are.
    """

    record: dict[str, Any]
    images: dict[str, list[Reference]] = field(default_factory=dict)
    in_place: int = 0
    marks: int = 0
    files: Collection[str] = ()


def references_of(
    record: dict[str, Any],
    image_keys: Sequence[str],
    settled: Collection[str] = (),
    file_keys: Sequence[str] = (),
) -> References:
    """Find the images of a record, for each key that names at least one, and the files under ``file_keys``.

    Without ``image_keys`` the known keys and all messages are looked at, and only one of them may hold images; then
    keys whose value is an image file's bytes. ``settled`` keys are not looked at. Of messages under one of
    ``file_keys``, the audio and video in them is taken, into columns of their own, and images as without it.

    Raises:
        RecordProblem: a value that is no reference; images under two keys that nobody has asked for.
    """
    found = References(record)
    if not file_keys:
        _add_images(found, record, image_keys, settled)
        return found
    chats = [key for key in file_keys if record.get(key) and is_messages(record[key])]
    _add_images(found, record, image_keys, {*settled, *file_keys}.difference(chats))
    files: dict[str, list[Reference]] = {}
    for key in file_keys:
        value = record.get(key)
        if key in chats:
            _take_media(found, key, files)
        elif value is not None and value != "" and value != []:
            files[key] = _as_file(key, value)
    found.files = [key for key, mine in files.items() if mine]
    found.images = dict(sorted({**found.images, **{key: files[key] for key in found.files}}.items()))
    return found


def _add_images(
    found: References, record: dict[str, Any], image_keys: Sequence[str], settled: Collection[str]
) -> None:
    if image_keys == NO_IMAGES:
        return
    for key in image_keys or _known_keys_of(record):
        if key not in record or key in settled:
            continue
        value = record[key]
        if value is None or (type(value) in (str, list) and not value):
            continue
        if isinstance(value, float) and value != value:  # a cell without a value, as pandas has it
            continue
        if image_keys and type(value) is str and value[:1] == "[":
            value = listed_in_text(value)
        if image_keys and is_messages(value):
            _take_nested(found, key, value)
        else:
            images = _as_references(key, value)
            if images:  # a text may be an empty list
                found.images[key] = images
    holders: list[tuple[str, Any]] = []
    if not image_keys:
        # Most values are text and numbers, which hold no image.
        holders = [
            (key, value) for key, value in record.items() if type(value) in _HOLDERS and key not in settled
        ]
        for key, value in holders:
            if key in found.images:
                continue
            if type(value) is list:
                _take_nested(found, key, value)
            elif type(value) is dict and is_messages([value]):
                _take_nested(found, key, [value])
                if found.record is not record and found.record[key] is not value:
                    found.record[key] = found.record[key][0]
    if len(found.images) > 1 and not image_keys:
        raise RecordProblem(
            TWO_IMAGE_KEYS,
            f"images under {' and '.join(repr(key) for key in found.images)}; say which keys hold images with"
            " --image-key NAME (once for each)",
        )
    for key, value in holders:
        if key in found.images:
            continue
        held = _held_images(value)
        if not held and type(value) is bytes and _names_image(key):
            # Not what its name says, which is a problem of the record and not another kind of column.
            held = [Embedded(value)]
        if held:
            found.images[key] = held
    # The order of the columns, in which shards have them.
    if len(found.images) > 1:
        found.images = dict(sorted(found.images.items()))


def _known_keys_of(record: dict[str, Any]) -> Collection[str]:
    """The usual keys of images that a record has, the most usual first."""
    known = _KNOWN_KEYS.intersection(record)
    return known if len(known) < 2 else [key for key in KNOWN_IMAGE_KEYS if key in known]


def _take_nested(found: References, key: str, value: Any) -> None:
    """Add the images inside the messages under ``key``, if there are any."""
    if not holds_parts(value):
        return
    messages, parts, marks = take_parts(value)
    if not key.startswith(REJECTED):
        found.marks += marks
    if not parts:
        return
    if NESTED_KEY in found.images and not found.in_place:
        raise RecordProblem(
            TWO_IMAGE_KEYS,
            f"images under {NESTED_KEY!r} and inside the messages under {key!r}; say which with --image-key"
            f" {NESTED_KEY} or --image-key {key}",
        )
    images: list[Reference] = []
    for part in parts:
        reference = _as_reference(f"an image inside {key!r}", part.value)
        if isinstance(reference, str) and part.is_base64 and reference[:5].lower() != DATA_URI_REFERENCE:
            reference = Embedded(decode_base64(reference, f"an image inside {key!r}"), DATA_URI_REFERENCE)
        if isinstance(reference, Embedded) or reference[:5].lower() == DATA_URI_REFERENCE:
            part.empty()
        images.append(reference)
    found.record = {**found.record, key: messages}
    found.images[NESTED_KEY] = found.images.get(NESTED_KEY, []) + images
    found.in_place += len(images)


def _take_media(found: References, key: str, files: dict[str, list[Reference]]) -> None:
    """Add the audio and video inside the messages under ``key``."""
    messages, by_kind = take_media(found.record[key])
    for kind, parts in by_kind.items():
        column = MEDIA_COLUMNS[kind]
        if found.record.get(column) not in (None, "", []):
            raise RecordProblem(
                TWO_IMAGE_KEYS,
                f"{kind} inside the messages under {key!r} belongs into column {column!r}, and the record has a key of"
                f" that name; --rename {column}=NAME, or --drop {column}",
            )
        place = f"{kind} inside {key!r}"
        for part in parts:
            try:
                reference = _as_reference(place, part.value, _FILE_HINT)
                if (
                    isinstance(reference, str)
                    and part.is_base64
                    and reference[:5].lower() != DATA_URI_REFERENCE
                ):
                    reference = Embedded(decode_base64(reference, place), f"data:{part.media_type}")
            except RecordProblem as problem:
                raise problem.of_file() from None
            if isinstance(reference, Embedded) or reference[:5].lower() == DATA_URI_REFERENCE:
                part.empty()
            files.setdefault(column, []).append(reference)
    if by_kind:
        found.record = {**found.record, key: messages}


def _held_images(value: Any) -> list[Reference]:
    """The images of a value that is image files' bytes, or dicts of bytes and path; none where it is anything else."""
    items = value if type(value) is list else [value]
    if not items:
        return []
    images: list[Reference] = []
    for item in items:
        content = item
        path = None
        if type(item) is dict:
            if not is_file_value(item):
                return []
            content, path = item.get("bytes"), item.get("path")
        if type(content) is not bytes or sniff_format(content[:HEAD_NBYTES]) not in _SURE_FORMATS:
            return []
        images.append(Embedded(content, basename_of(path)))
    return images


def _names_image(key: str) -> bool:
    """Whether a key is the ending of image files, as the columns of WebDataset are."""
    return key.rpartition(".")[2].lower() in _IMAGE_ENDINGS


def _as_references(key: str, value: object) -> list[Reference]:
    if type(value) is str and value[:1] in ("[", "{"):
        value = listed_in_text(value)
    if type(value) is str and value:
        return [_text_reference(value)]
    if isinstance(value, list) and not (value and type(value[0]) is int):
        if value and all(type(item) is dict and len(item) > len(_FILE_KEYS) for item in value):
            raise RecordProblem(
                BAD_REFERENCE,
                f"{key!r} is a list of {len(value)} objects, such as {shorten(repr(value[0]), 60)}, expected images; if"
                f" they are the records themselves, say --records {key}",
            )
        return [_as_reference(f"{key}[{place}]", item) for place, item in enumerate(value)]
    return [_as_reference(repr(key), value)]


def _as_file(key: str, value: object) -> list[Reference]:
    if type(value) is str and value[:1] in ("[", "{"):
        value = listed_in_text(value)
    try:
        if isinstance(value, list):
            return [_as_reference(f"{key}[{place}]", item, _FILE_HINT) for place, item in enumerate(value)]
        return [_as_reference(repr(key), value, _FILE_HINT)]
    except RecordProblem as problem:
        raise problem.of_file() from None


def _as_reference(place: str, value: object, hint: str | None = None) -> Reference:
    if isinstance(value, str) and value:
        return value if hint is not None else _text_reference(value)
    if isinstance(value, bytes):
        return Embedded(value)
    if isinstance(value, dict) and len(value) == 1 and not _NAME_KEYS.isdisjoint(value):
        value = {"path": next(iter(value.values()))}
    if isinstance(value, dict) and is_file_value(value):
        content, path = value.get("bytes"), value.get("path")
        if isinstance(content, str) and content:
            content = decode_base64(content, place)
        if isinstance(content, bytes):
            return Embedded(content, basename_of(path))
        if content is None and isinstance(path, str) and path:
            return path
    content = image_in(value) if hint is None else None
    if content is not None:
        return Embedded(content)
    if isinstance(value, dict) and hint is None:
        key = next((key for key in sorted(_NAME_KEYS | {"path"}) if isinstance(value.get(key), str)), None)
        if key is not None:
            hint = (
                f"if its image is what stands under {key!r}, give the record that alone ({{'path': …}}), and the rest"
                " under another key"
            )
    raise RecordProblem(
        BAD_REFERENCE,
        f"{place} is {_shown(value)}, expected a path, a data URI, bytes or a list of them; {hint or _HINT}",
    )


def is_file_value(value: dict[str, Any]) -> bool:
    """Whether a dict is a file as Hugging Face datasets keep them: ``{"bytes": …, "path": …}``."""
    return value.keys() <= _FILE_KEYS


def basename_of(path: object) -> str:
    """The last part of a path: the rest says where some machine kept the file."""
    return re.split(r"[/\\]", path)[-1] if isinstance(path, str) else ""


def _text_reference(text: str) -> Reference:
    """What a text names, or the image that it is."""
    if len(text) < SHORTEST_TEXT:
        return text
    content = image_in(text)
    return text if content is None else Embedded(content, DATA_URI_REFERENCE)


def decode_base64(text: str, place: str) -> bytes:
    """The bytes of a base64 text.

    Raises:
        RecordProblem: it is broken.
    """
    try:
        return plain_base64(text)
    except (binascii.Error, ValueError) as error:
        raise RecordProblem(BAD_REFERENCE, f"{place}: broken base64: {error}") from None


_HINT = "if the key holds no images, name those that do with --image-key NAME, or say --image-key none"

_FILE_HINT = "if the key holds no files, leave out its --file-key"


def _shown(value: object) -> str:
    if isinstance(value, str) and not value:
        return "an empty string"
    return f"{type(value).__name__} {shorten(repr(value), 60)}"


def decode_data_uri(reference: str) -> bytes:
    """The bytes of ``data:image/png;base64,…`` or ``data:image/png,%89PNG…`` (RFC 2397).

    Messages never hold the whole URI.

    Raises:
        RecordProblem: no such URI, or broken base64.
    """
    match = _DATA_URI.match(reference)
    is_base64 = match is not None and match.group(2).lower().endswith(";base64")
    if match is None or not (is_base64 or "%" in match.group(3)):
        raise RecordProblem(
            BAD_REFERENCE, f"{shorten(reference, 40)} is no data URI of the form data:image/png;base64,…"
        )
    if not is_base64:
        return unquote_to_bytes(match.group(3))
    try:
        return plain_base64(unquote(match.group(3)))
    except (binascii.Error, ValueError) as error:
        raise RecordProblem(
            BAD_REFERENCE, f"broken base64 in data URI {shorten(reference, 40)}: {error}"
        ) from None


def count_image_tags(line: bytes) -> tuple[int, bool]:
    """The number of ``<image>`` tags in the text of a record, and whether it has any tag that stands for an image."""
    if b"<" not in line and b"[IMG]" not in line and b"u003c" not in line:
        return 0, False
    tags = line.count(_TAGS[0]) + line.count(_TAGS[1])
    return tags, tags > 0 or any(tag in line for tag in _OTHER_TAGS)

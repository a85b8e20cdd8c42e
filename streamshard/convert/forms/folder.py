"""A tree of images as input: one record for each image file, with the class that its top folder stands for.

``cat/1.jpg`` gives ``{"image": "cat/1.jpg", "class": "cat", "label": 0}``; labels number the folders that hold images,
sorted by name. Where texts of the same names lie beside images (``cat/1.txt``, ``cat/1.caption``), they are ``"text"``,
null for an image that has none; where JSON objects do (``cat/1.json``), their keys are those of the record. Where a
``metadata.jsonl``, ``.csv`` or ``.parquet`` lies in the folder, its rows are the records, see
:mod:`streamshard.convert.forms.metadata`, and images that it does not name are left out.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import xxhash

from streamshard.convert.forms.metadata import METADATA, Metadata
from streamshard.convert.jsonl import BOM, parse_record
from streamshard.convert.kinds import IMAGE_SUFFIXES, UNREAD_PICTURES
from streamshard.convert.listing import Place
from streamshard.convert.origins import Beside, Origin
from streamshard.convert.problems import RecordProblem
from streamshard.convert.sources import LINES, Source
from streamshard.convert.wide_text import narrowed
from streamshard.errors import ConvertError

_SPLITS = {"train", "test", "val", "valid", "validation", "dev"}
_LINKED = " links"
# Fewer files of a kind than half of the images describe the whole folder, or nothing.
_FEWEST_LEFT = 2
_TEXTS = (".txt", ".caption")
_OBJECTS = (".json",)


def folder_origin(place: Place, shown: str) -> Origin:
    """The whole tree as one input; its fingerprint covers name, size and time of every file of a local tree.

    Raises:
        ConvertError: no images, or a folder for each split.
    """
    images = _images(place)
    described = [name for name in METADATA if name in place.top()]
    if not images:
        raise ConvertError(f"source {shown!r}: a folder without image files ({', '.join(IMAGE_SUFFIXES)})")
    tops = {name.partition("/")[0] for name in images if "/" in name}
    if tops and tops <= _SPLITS and not described:
        raise ConvertError(
            f"source {shown!r}: its folders {', '.join(sorted(tops))} are splits, not classes; convert each by itself:"
            f" {shown.rstrip('/')}/{min(tops)}"
        )
    digest = xxhash.xxh3_128()
    nbytes = 0
    beside = [name for ending in (_TEXTS, _OBJECTS) for name in _beside(place, images, ending).values()]
    for name in [*images, *described, *(() if described else beside)]:
        size, mtime_ns = place.stamp(name) if place.local else (0, None)
        nbytes += size
        digest.update(f"{name}\0{size}\0{mtime_ns}\n".encode("utf-8", "surrogateescape"))
    name = place.name.rstrip("/").rpartition("/")[2]
    taken = {*images, *described, *(() if described else beside)}
    left = Counter(_ending(name) for name in place.names() if name not in taken)
    return Origin(
        name,
        place.location,
        place.location,
        nbytes,
        None,
        "imagefolder",
        f"{digest.hexdigest()}{_LINKED if place.follow_links else ''}",
        Beside(
            links=tuple(place.unfollowed),
            unread=tuple(ending for ending in UNREAD_PICTURES if ending in left),
            left={
                ending: count
                for ending, count in sorted(left.items())
                if ending not in UNREAD_PICTURES and count >= max(_FEWEST_LEFT, len(images) // 2)
            },
        ),
    )


def stage_folder(origin: Origin, target: Path, storage_options: Mapping[str, Any] | None) -> Source:
    """Write the records as lines.

    Raises:
        ConvertError: a metadata file that is broken or names no files.
    """
    place = Place(origin.location, storage_options, follow_links=origin.detail.endswith(_LINKED))
    described = next((name for name in METADATA if name in place.top()), None)
    metadata = None if described is None else Metadata(place, described, set(_images(place)))
    records = _labelled(place) if metadata is None else metadata.records()
    with target.open("w", encoding="ascii") as lines:
        for record in records:
            lines.write(json.dumps(record) + "\n")
        lines.flush()
        os.fsync(lines.fileno())
    unit = "image" if described is None else f"{described} row"
    classes = _classes(_images(place)) if described is None else []
    return Source(
        origin.name,
        str(target),
        target.stat().st_size,
        origin.image_folder,
        LINES,
        unit,
        class_names={"label": classes} if classes else {},
        image_keys=() if metadata is None else metadata.image_keys,
    )


def _images(place: Place) -> list[str]:
    return [name for name in place.names() if name.lower().endswith(IMAGE_SUFFIXES)]


def _ending(name: str) -> str:
    return os.path.splitext(name)[1].lower()  # noqa: PTH122 also the key of an object


def _classes(images: Sequence[str]) -> list[str]:
    return sorted({name.partition("/")[0] for name in images if "/" in name})


def _labelled(place: Place) -> Iterator[dict[str, Any]]:
    images = _images(place)
    classes = _classes(images)
    flat = any("/" not in name for name in images)
    if flat and classes:
        raise ConvertError(
            f"source {place.name!r}: images both in class folders ({classes[0]}, …) and beside them"
            f" ({next(name for name in images if '/' not in name)}); move these into a folder, or describe all in"
            " metadata.jsonl"
        )
    labels = {name: label for label, name in enumerate(classes)}
    texts, objects = _beside(place, images, _TEXTS), _beside(place, images, _OBJECTS)
    for name in images:
        top = name.partition("/")[0]
        record: dict[str, Any] = (
            {"image": name} if flat else {"image": name, "class": top, "label": labels[top]}
        )
        if texts:
            record["text"] = _text(place, texts[name]) if name in texts else None
        yield {**record, **_object(place, objects[name], record)} if name in objects else record


def _beside(place: Place, images: Sequence[str], endings: tuple[str, ...]) -> dict[str, str]:
    """Image → the file of the same name beside it that has one of the endings, for those that have one."""
    there = {name for name in place.names() if name.lower().endswith(endings)}
    if not there:
        return {}
    pairs = ((name, f"{name.rpartition('.')[0]}{ending}") for name in images for ending in endings)
    return {name: file for name, file in pairs if file in there}


def _text(place: Place, name: str) -> str:
    try:
        return narrowed(place.read_own(name), f"{place.name}/{name}").decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ConvertError(f"{place.name}/{name}: not UTF-8: {error.reason}; convert it to UTF-8") from None


def _object(place: Place, name: str, record: Mapping[str, Any]) -> dict[str, Any]:
    where = f"{place.name}/{name}"
    try:
        found = parse_record(narrowed(place.read_own(name), where).removeprefix(BOM))
    except RecordProblem as problem:
        raise ConvertError(f"{where}: {problem}") from None
    twice = sorted(found.keys() & record.keys())
    if twice:
        raise ConvertError(
            f"{where}: has a key {twice[0]!r}, which is the name of a column made of the folder; rename it in all of"
            " these files, or, if each of them is a record that names its image, say --from jsonl"
        )
    return found

"""What is odd about the input as a whole, though every record can be stored: the warnings of the summary."""

from __future__ import annotations

import shlex
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from streamshard.convert.files import FILE_ENCODINGS
from streamshard.convert.json_members import BY_COLUMN, WHOLE
from streamshard.convert.likeness import MESSAGES
from streamshard.convert.media_parts import MEDIA_COLUMNS
from streamshard.convert.options import ConvertOptions
from streamshard.convert.origins import Beside
from streamshard.convert.references import NO_IMAGES
from streamshard.convert.runs import RunsOfKeys
from streamshard.convert.sources import Source
from streamshard.convert.tally import ImageTags

_SORTED_AT_ONCE = 1 << 22
_READ_AT_ONCE = 1 << 20
_LISTED_SOURCES = 5
_LISTED_KEYS = 3


class Findings:
    """Collects oddities chunk by chunk, in input order."""

    def __init__(self, options: ConvertOptions, folder: Path) -> None:
        self._options = options
        self.images = 0
        self.files = 0
        self.animated = 0
        self.unwanted = 0
        self.empty_sources: list[Source] = []
        self.runs = RunsOfKeys()
        self._ids = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 lives as long as this object
        self.image_like: Counter[str] = Counter()
        self.file_like: Counter[str] = Counter()
        self.media: Counter[str] = Counter()
        self.met: set[str] = set()
        self.differing_classes: list[str] = []
        self.unlike_base: list[str] = []
        self.beside: Sequence[Beside] = ()
        self.nested_like: Counter[str] = Counter()
        self.tars = False
        self.held: list[tuple[Source, str, int]] = []
        self._tagged = 0
        self._without_image = (0, "")
        self._differing = (0, "")
        self._untagged = (0, "")

    def add_tags(self, source: Source, lines_before: int, tags: ImageTags) -> None:
        """Count one chunk's image tags; the first place of each kind is kept."""
        self._tagged += tags.tagged
        number, place = self._without_image
        if tags.tagged_without_image:
            place = place or source.place(lines_before + tags.first_tagged_without_image)
        self._without_image = (number + tags.tagged_without_image, place)
        number, place = self._differing
        if tags.differing:
            line, in_text, images = tags.first_differing
            place = (
                place or f"{source.place(lines_before + line)} has {in_text} <image> and {_images(images)}"
            )
        self._differing = (number + tags.differing, place)
        number, place = self._untagged
        if tags.untagged_with_image:
            place = place or source.place(lines_before + tags.first_untagged_with_image)
        self._untagged = (number + tags.untagged_with_image, place)

    def add_ids(self, hashes: NDArray[np.uint64]) -> None:
        """Keep hashes of ids, on disk: uint64[n]."""
        self._ids.write(hashes.tobytes())

    def close(self) -> None:
        """Forget the ids."""
        self._ids.close()

    def warnings(self, num_records: int, num_shards: int, encodings: Mapping[str, str]) -> list[str]:
        """The warnings, most alarming first; ``encodings`` are those of the columns."""
        found = []
        number, place = self._without_image
        if not self.images and self.image_like:
            keys = [key for key, _ in self.image_like.most_common(_LISTED_KEYS)]
            options = " ".join(f"--image-key {shlex.quote(key)}" for key in keys)
            given = " although --image-root was given" if self._options.image_root is not None else ""
            found.append(
                f"no record yields an image{given}: values of {', '.join(map(repr, keys))} look like images or names of"
                f" them, and are kept as text: {options} stores them"
            )
        elif not self.images and self.nested_like:
            ((way, _),) = self.nested_like.most_common(1)
            found.append(f"no record yields an image: {_nested_text(way)}")
        elif self._options.image_root is not None and not self.images and not self.files:
            found.append(
                "no record yields an image although --image-root was given: check the image keys, and name them with"
                " --image-key"
            )
        elif (
            (images := sum(each.images for each in self.beside))
            and not self.images
            and not self.files
            and self._options.image_keys != NO_IMAGES
        ):
            found.append(
                f"no record yields an image, and {images} image files lie in the folder: if records belong to them,"
                " give each record the path of its image under 'image'; --image-key none says that it is meant so"
            )
        there = {*encodings, *self._options.drop, *(key for key, _ in self._options.rename)}
        partitions = [
            each.partition
            for each in self.beside
            if each.partition and each.partition.partition("=")[0] not in there
        ]
        if partitions:
            found.append(
                f"files lie in folders such as {partitions[0]!r}, which say a value that is in no file and becomes no"
                " column; write it into the files if it is wanted"
            )
        links = [link for each in self.beside for link in each.links]
        if links:
            more = ", …" if len(links) > _LISTED_KEYS else ""
            found.append(
                f"links to folders ({', '.join(links[:_LISTED_KEYS])}{more}) are not followed, and what is there is"
                " left out: --allow-outside-root takes it"
            )
        unread = sorted({ending for each in self.beside for ending in each.unread})
        if unread:
            found.append(
                f"pictures of kinds that are not read ({', '.join(unread)}) are left out: convert them to JPEG or PNG"
            )
        for ending, count in sorted({pair for each in self.beside for pair in each.left.items()}):
            found.append(
                f"{count} files {ending or 'without an ending'} lie in a folder of images and are left out: a text or"
                " JSON object beside each image, of the same name, is taken, and metadata.jsonl may hold anything"
            )
        if self.file_like:
            keys = [key for key, _ in self.file_like.most_common(_LISTED_KEYS)]
            options = " ".join(f"--file-key {shlex.quote(key)}" for key in keys)
            found.append(
                f"values of {', '.join(map(repr, keys))} look like names of audio or video files, which are kept as"
                f" text: {options} stores the files, --file-key none says that it is meant so"
            )
        if self.media:
            keys = [key for key, _ in self.media.most_common(_LISTED_KEYS)]
            options = " ".join(f"--file-key {shlex.quote(key)}" for key in keys)
            found.append(
                f"messages under {', '.join(map(repr, keys))} name audio or video, whose files are not stored:"
                f" {options} stores them, in columns {' and '.join(map(repr, MEDIA_COLUMNS.values()))}, and --file-key"
                " none says that it is meant so"
            )
        several = [name for name, encoding in encodings.items() if encoding == FILE_ENCODINGS[1]]
        if several:
            found.append(
                f"{', '.join(map(repr, several))}: some records have several values, which MDS cannot hold; they are"
                f" stored as {FILE_ENCODINGS[1]}, which mosaicml-streaming does not read"
            )
        if number:
            found.append(
                f"{number} of {num_records} records have image tags in their text and no image (first: {place})"
            )
        number, place = self._differing
        if number:
            found.append(
                f"{number} of {num_records} records have another number of <image> tags than images (first: {place})"
            )
        number, place = self._untagged
        if number and self._tagged:
            found.append(
                f"{number} of {num_records} records have images and no <image> tag, while others have one"
                f" (first: {place})"
            )
        found += self.differing_classes + self.unlike_base
        named = [("--drop", key) for key in self._options.drop]
        named += [("--rename", key) for key, _ in self._options.rename]
        found += [f"{option} {key}: no record has this key" for option, key in named if key not in self.met]
        if num_records == 1:
            found += [
                f"{source.name} is one object and so one sample; each of its keys holds {count} values: if it is a"
                " table by columns, give pyarrow.table(json.load(FILE)) to streamshard.convert_records"
                for source, key, count in self.held
                if key == BY_COLUMN
            ]
            found += [
                f"{source.name} is one object and so one sample; {_held(key)} holds {count} objects: if these are the"
                f" samples, say --records {shlex.quote(key)}"
                for source, key, count in self.held
                if key != BY_COLUMN
            ]
        repeated = count_repeated(self._ids)
        if repeated:
            parted = (
                "; the members of a sample must stand together in a tar (tar --sort=name)"
                if self.tars
                else ""
            )
            found.append(f"{repeated} records repeat the id of an earlier record; all are kept{parted}")
        if self.animated:
            found.append(f"{self.animated} image files hold several pictures; readers decode the first")
        run = self.runs.longest()
        if run is not None and self._options.shuffle is None and num_shards > 1:
            key, length = run
            if length * num_shards > num_records:
                found.append(
                    f"the records are sorted by {key!r}: at least {length} in a row have the same value, and a shard"
                    f" has about {num_records // num_shards}, so that shards are unlike each other; --shuffle mixes"
                    " them"
                )
        if self.unwanted:
            conditions = ", ".join(map(str, self._options.where))
            found.append(
                f"{self.unwanted} records are left out, for which --where {conditions} does not hold"
            )
        names = [source.name for source in self.empty_sources]
        if names:
            more = f" and {len(names) - _LISTED_SOURCES} more" if len(names) > _LISTED_SOURCES else ""
            found.append(f"no records in {', '.join(names[:_LISTED_SOURCES])}{more}")
        return found


def _nested_text(way: str) -> str:
    """What to say of images at a way inside objects."""
    messages = way.removesuffix(MESSAGES)
    if messages != way:
        return (
            f"messages at {messages} hold images, and are kept as they are; messages have a key of their own (jq -c"
            f" '.messages = {messages}' writes it so)"
        )
    return (
        f"values at {way} look like images or names of them, and are kept as text; images have a key of their own (jq"
        f" -c '.image = {way}' writes it so)"
    )


def _held(key: str) -> str:
    return "it" if key == WHOLE else f"its {key!r}"


def _images(count: int) -> str:
    return f"{count} image" if count == 1 else f"{count} images"


def count_repeated(file: IO[bytes]) -> int:
    """How many of the hashes (uint64) in a file have occurred before; memory is bounded by a part of them."""
    total = file.seek(0, 2) // 8
    parts = max(1, -(-total // _SORTED_AT_ONCE))
    return total - sum(_count_distinct(file, part, parts) for part in range(parts))


def _count_distinct(file: IO[bytes], part: int, parts: int) -> int:
    """Count the different hashes of one part."""
    file.seek(0)
    mine = [np.zeros(0, np.uint64)]
    while block := file.read(_READ_AT_ONCE):
        hashes = np.frombuffer(block, np.uint64)
        mine.append(hashes if parts == 1 else hashes[hashes % np.uint64(parts) == part])
    found = np.concatenate(mine)
    del mine
    found.sort()
    return int(len(found) > 0) + int(np.count_nonzero(found[1:] != found[:-1]))

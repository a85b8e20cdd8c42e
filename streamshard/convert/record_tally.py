"""Adding records to the tally of a chunk: many at once, column by column where they are alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from json.encoder import encode_basestring_ascii
from typing import Any

import xxhash

from streamshard.convert.columns import KeyTally
from streamshard.convert.files import file_like_keys, media_keys
from streamshard.convert.image_scan import CheckedImage
from streamshard.convert.likeness import image_like_keys, nested_image_like
from streamshard.convert.located import joined_digest, kept_references
from streamshard.convert.places import Located
from streamshard.convert.references import NO_IMAGES, REJECTED, Embedded, count_image_tags
from streamshard.convert.runs import EVERY
from streamshard.convert.shaping import Shaped, Shaping
from streamshard.convert.tally import NOT_COMPARED, ChunkTally, ImageTally
from streamshard.format.json_text import json_text

# Records wait until there are this many, or their lines have this many bytes.
_RECORDS_AT_ONCE = 64
_NBYTES_AT_ONCE = 1 << 20
_STORED_IMAGES = frozenset(
    ("jpeg", "png", "pil", "jpeg_array", "jpegarray", "list[jpeg]", "list[png]", "list[pil]")
)
# So many records of a chunk are looked at for images under keys that nobody has named.
_LOOKED_AT = 64


@dataclass(slots=True)
class Pending:
    """A record that could be parsed, with its line; ``images`` come in the order of ``located``."""

    line: int
    offset: int
    text: bytes
    text_hash: int
    shaped: Shaped
    located: list[Located | Embedded] = field(default_factory=list)
    images: list[CheckedImage] = field(default_factory=list)


class RecordTally:
    """Adds records to a :class:`~streamshard.convert.tally.ChunkTally`; call :meth:`flush` at the end.

    ``makes_ready``: samples are made as well, where that can be (see :mod:`~streamshard.convert.ready`).
    """

    def __init__(self, tally: ChunkTally, shaping: Shaping, *, makes_ready: bool = False) -> None:
        self._tally = tally
        self._shaping = shaping
        self._makes_ready = makes_ready and not shaping.declared and not shaping.file_keys
        self._waiting: list[Pending] = []
        self._waiting_nbytes = 0
        # Images that pass as they are stored are no references, and marks in the text may stand for them.
        self._has_stored_images = not _STORED_IMAGES.isdisjoint(shaping.declared.values())

    def add(self, record: Pending) -> None:
        """Add a record whose images are known."""
        self._waiting.append(record)
        self._waiting_nbytes += len(record.text)
        if len(self._waiting) >= _RECORDS_AT_ONCE or self._waiting_nbytes >= _NBYTES_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Add the records that wait."""
        records, self._waiting = self._waiting, []
        self._waiting_nbytes = 0
        if not records:
            return
        tally = self._tally
        rows = range(len(tally.offsets), len(tally.offsets) + len(records))
        tally.offsets.extend([record.offset for record in records])
        tally.line_nbytes.extend([len(record.text) for record in records])
        tally.lines.extend([record.line for record in records])
        tally.record_hashes.extend([record.text_hash for record in records])
        tally.image_hashes.extend(
            [joined_digest([image.digest for image in record.images]) for record in records]
        )
        tally.compared_nbytes.extend([_compared_nbytes(record.images) for record in records])
        for record in records:
            self._add_id(record.shaped.values)
        for record in records[-rows[0] % EVERY :: EVERY]:
            shaped = record.shaped
            tally.runs.look(
                {key: value for key, value in shaped.values.items() if key not in shaped.references}
            )
        columns, texts = self._add_values(rows, records)
        if self._shaping.looks_for_files:
            for record in records[: max(0, _LOOKED_AT - rows[0])]:
                tally.file_like.update(file_like_keys(record.shaped.values, record.shaped.references))
                tally.media.update(media_keys(record.shaped.values))
        if self._shaping.image_keys != NO_IMAGES:
            for record in records[: max(0, _LOOKED_AT - rows[0])]:
                shaped = record.shaped
                tally.image_like.update(image_like_keys(shaped.values, shaped.references))
                if not shaped.references:
                    tally.nested_like.update(nested_image_like(shaped.values))
            for record in () if self._has_stored_images else records:
                self._add_tags(record)
        for record in records if self._shaping.file_keys else ():
            tally.files.update(record.shaped.found.files)
        key = self._only_key(records)
        if key is not None:
            self._add_single(rows, records, key)
        elif self._shaping.image_keys != NO_IMAGES or self._shaping.file_keys:
            for row, record in zip(rows, records, strict=True):
                if record.images:
                    self._add_lists(row, record)
        if self._makes_ready and key is not None and columns is not None:
            tally.ready.add(records, key, columns, texts)
        else:
            tally.ready.give_up()

    def _add_id(self, values: dict[str, Any]) -> None:
        record_id = values.get("id", values.get("__key__"))
        if record_id is not None:
            if type(record_id) is str:
                shown = encode_basestring_ascii(record_id).encode()
            else:
                shown = record_id if type(record_id) is bytes else json_text(record_id).encode()
            self._tally.id_hashes.append(xxhash.xxh64_intdigest(shown))

    def _add_values(
        self, rows: range, records: Sequence[Pending]
    ) -> tuple[dict[str, list[Any]] | None, dict[str, list[str]]]:
        """Add the sizes of all values.

        Gives the values by columns, but for images and where not all records have all of them, and as JSON those that
        had to be made that.
        """
        values = [record.shaped.values for record in records]
        texts: dict[str, list[str]] = {}
        names = values[0].keys()
        if not all(more.keys() == names for more in values):
            for row, record in zip(rows, records, strict=True):
                for key, value in record.shaped.values.items():
                    self._add_value(row, key, value, record)
            return None, texts
        declared = self._shaping.declared
        references = [record.shaped.references for record in records]
        columns: dict[str, list[Any]] = {}
        for key in names:
            holding = sum([key in held for held in references])
            if holding == len(records):
                self._key(key).add_images(rows)
                continue
            columns[key] = column = [more[key] for more in values]
            if holding or key in declared:
                for row, value, record in zip(rows, column, records, strict=True):
                    self._add_value(row, key, value, record)
            elif made := self._key(key).add_all(rows, column):
                texts[key] = made
        return columns, texts

    def _add_value(self, row: int, key: str, value: Any, record: Pending) -> None:
        sizes = self._key(key)
        if key in record.shaped.references:
            sizes.add_images(range(row, row + 1))
        elif key in self._shaping.declared:
            sizes.add_stored(row, len(value) if type(value) is bytes else 0)
        else:
            sizes.add(row, value)

    def _key(self, key: str) -> KeyTally:
        sizes = self._tally.keys.get(key)
        if sizes is None:
            sizes = self._tally.keys[key] = KeyTally()
        return sizes

    @staticmethod
    def _only_key(records: Sequence[Pending]) -> str | None:
        """The key under which each of the records has one image, which is the usual case."""
        key = next(iter(records[0].shaped.references), None)
        if key is None or not all(
            len(record.images) == 1 and key in record.shaped.references for record in records
        ):
            return None
        return key

    def _add_single(self, rows: range, records: Sequence[Pending], key: str) -> None:
        """Add the images of records that have one each, under one key."""
        images = [record.images[0] for record in records]
        kept = kept_references([record.located[0] for record in records])
        sums = self._images(key)
        sums.rows.extend(rows)
        sums.counts.extend([1] * len(records))
        sums.payload_nbytes.extend([image.nbytes for image in images])
        sums.path_nbytes.extend([len(name.encode()) for name in kept])
        sums.path_json_nbytes.extend([len(encode_basestring_ascii(name)) + 2 for name in kept])
        sums.named += sum(map(bool, kept))
        sums.formats.update([image.facts.format for image in images])
        sums.animated += sum([image.facts.animated for image in images])

    def _add_lists(self, row: int, record: Pending) -> None:
        begin = 0
        for key, references in record.shaped.references.items():
            end = begin + len(references)
            images, kept = record.images[begin:end], kept_references(record.located[begin:end])
            sums = self._images(key)
            sums.rows.append(row)
            sums.counts.append(len(references))
            sums.payload_nbytes.append(sum([image.nbytes for image in images]))
            sums.path_nbytes.append(len(kept[0].encode()))
            sums.path_json_nbytes.append(len(json_text(kept)))
            sums.named += sum(map(bool, kept))
            sums.formats.update([image.facts.format for image in images])
            sums.animated += sum([image.facts.animated for image in images])
            begin = end

    def _images(self, key: str) -> ImageTally:
        sums = self._tally.images.get(key)
        if sums is None:
            sums = self._tally.images[key] = ImageTally()
        return sums

    def _add_tags(self, record: Pending) -> None:
        found, num_images = record.shaped.found, len(record.images)
        if self._shaping.file_keys:
            num_images -= sum([place.as_is for place in record.located])
        tags, any_tag = count_image_tags(record.text)
        tags += found.marks
        if tags and tags == num_images:
            self._tally.tags.tagged += 1
            return
        if tags != num_images:
            tags -= _tags_of_the_rejected(record.shaped.values)
        # An image that stands inside a message needs no mark.
        marked = num_images if tags else num_images - found.in_place
        if tags or any_tag or marked:
            self._tally.tags.add(record.line, tags, any_tag or tags > 0, marked)


def _tags_of_the_rejected(values: Mapping[str, Any]) -> int:
    """The ``<image>`` tags of answers that were not chosen: of a preference, both tell of the same images."""
    return sum(
        count_image_tags(repr(value).encode("utf-8", "replace"))[0]
        for key, value in values.items()
        if key.startswith(REJECTED)
    )


def _compared_nbytes(images: Sequence[CheckedImage]) -> int:
    """The sizes of what the images of a record are made from, or :data:`NOT_COMPARED`."""
    total = 0
    for image in images:
        if image.compared_nbytes is None:
            return NOT_COMPARED
        total += image.compared_nbytes
    return total

"""Samples that the scan makes ready, all but the bytes of their image: then shards are made without parsing again.

Only where that is simple and takes little room: text records of one shape, each with one image file of this machine,
whose own bytes are a small part of what is stored. Otherwise, and where the disk has no room to spare for them, shards
are made from the input, with the same bytes.

An entry: u64 offset of the record in its source, u32 length of the image's reference, u32 length of what stands in
front of the image in the sample; then the reference, what stands in front of the image, what stands behind it.
"""

from __future__ import annotations

import logging
import struct
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import xxhash

from streamshard.convert.columns import ColumnPlan, ImageColumn
from streamshard.convert.kept import free_nbytes
from streamshard.convert.places import Located
from streamshard.convert.rows import sync_file
from streamshard.errors import StreamshardError
from streamshard.format.encodings import parse_encoding
from streamshard.format.json_text import json_text

if TYPE_CHECKING:
    from streamshard.convert.record_tally import Pending

logger = logging.getLogger(__name__)

READY_BASENAME = "samples"
ENTRY = struct.Struct("<QII")

# Entries are written, joined and read once more: of small images that would be a good part of all.
_LEAST_IMAGE_SHARE = 8
_SINGLE = {str: "str", int: "int", float: "float64"}
# Of what has a length in front; JSON comes as its text.
_ENCODE: Mapping[str, Callable[[Any], bytes]] = {"str": str.encode, "json": str.encode}


class ReadyHeading(NamedTuple):
    """What the tally of a chunk says of its entries: the columns they are made for, the size and hash of their file.

    ``image_nbytes``: of all their images together.
    """

    image_key: str
    plain: Mapping[str, str]
    image_nbytes: int
    nbytes: int
    digest: str

    def fits(self, columns: ColumnPlan) -> bool:
        """Whether the samples of a plan are made of these entries."""
        return (
            columns.plain == self.plain
            and columns.rest is None
            and not columns.declared
            and [(image.key, image.listed, image.named) for image in columns.images]
            == [(self.image_key, False, True)]
        )


class ReadyRecords:
    """The entries of a chunk, as long as all of its records are alike.

    Args:
        leave_free_nbytes: none are written where the disk would have less room left.
    """

    def __init__(self, leave_free_nbytes: int = 0) -> None:
        self._leave_free = leave_free_nbytes
        self.nbytes = array("I")
        """Of each entry."""
        self._layout: tuple[str, dict[str, str]] = ("", {})
        self._entries: list[bytes] = []
        self._image_nbytes = 0
        self._given_up = False

    def give_up(self) -> None:
        """Make no entries of this chunk."""
        self._given_up = True
        self._entries, self.nbytes = [], array("I")

    def add(
        self,
        records: Sequence[Pending],
        key: str,
        columns: Mapping[str, Sequence[Any]],
        texts: Mapping[str, Any],
    ) -> None:
        """Add records that have the same keys, and one image each under ``key``.

        Args:
            records: in order.
            key: of the image.
            columns: the values under all other keys.
            texts: of some of these, the values as JSON.
        """
        if self._given_up:
            return
        try:
            self._add(records, key, columns, texts)
        except (StreamshardError, ValueError, TypeError, struct.error):
            self.give_up()  # a value that is for its column to explain

    def _add(
        self,
        records: Sequence[Pending],
        key: str,
        columns: Mapping[str, Sequence[Any]],
        texts: Mapping[str, Any],
    ) -> None:
        stored = {name: _stored(values, texts.get(name)) for name, values in columns.items()}
        layout = key, {name: encoding for name, (encoding, _) in stored.items()}
        if layout != self._layout:
            if self._entries:
                self.give_up()
                return
            self._layout = layout
        located = [record.located[0] for record in records]
        kept = [place.reference for place in located if isinstance(place, Located) and not place.as_is]
        if len(kept) < len(records):
            self.give_up()
            return
        stored[ImageColumn(key, "jpeg", listed=False).path_column] = "str", kept
        nbytes = [record.images[0].nbytes for record in records]
        # As MDS has a sample: the lengths of what has no fixed one, then the values, by the names of the columns.
        lengths: list[Iterable[int]] = []
        front: list[Iterable[bytes]] = []
        behind: list[Iterable[bytes]] = []
        for name in sorted([*stored, key]):
            if name == key:
                lengths.append(nbytes)
                continue
            encoding, values = stored[name]
            encode = _ENCODE.get(encoding) or parse_encoding(encoding).encode
            cells = list(map(encode, values))
            if encoding in _ENCODE:
                lengths.append(map(len, cells))
            (front if name < key else behind).append(cells)
        heads = map(struct.Struct(f"<{len(lengths)}I").pack, *lengths)
        fronts = list(map(b"".join, zip(heads, *front, strict=True)))
        references = [str(record.shaped.references[key][0]).encode() for record in records]
        entries = map(
            ENTRY.pack, [record.offset for record in records], map(len, references), map(len, fronts)
        )
        made = list(map(b"".join, zip(entries, references, fronts, *behind, strict=True)))
        self._entries += made
        self.nbytes.extend(map(len, made))
        self._image_nbytes += sum(nbytes)

    def save(self, path: Path) -> ReadyHeading | None:
        """Write the entries, if there are any, they are small enough, and there is room for them."""
        content = b"".join(self._entries)
        if (
            not content
            or len(content) * _LEAST_IMAGE_SHARE > self._image_nbytes
            or free_nbytes(path.parent) - len(content) < self._leave_free
        ):
            self.give_up()
            return None
        try:
            path.write_bytes(content)
        except OSError as error:
            logger.info("%s: does without: %s", path, error)
            path.unlink(missing_ok=True)
            self.give_up()
            return None
        return ReadyHeading(
            *self._layout, self._image_nbytes, len(content), xxhash.xxh3_128_hexdigest(content)
        )


def _stored(values: Sequence[Any], texts: Sequence[str] | None) -> tuple[str, Sequence[Any]]:
    """The encoding of values that are all of one kind, and what is encoded: JSON as its text."""
    if texts is not None:
        return "json", texts
    kinds = set(map(type, values))
    encoding = _SINGLE.get(kinds.pop()) if len(kinds) == 1 else None
    return ("json", list(map(json_text, values))) if encoding is None else (encoding, values)


def ready_path(tally: Path) -> Path:
    """Where the entries of a chunk lie, beside its tally."""
    return tally.with_suffix(".ready")


def join_ready(chunks: Sequence[tuple[Path, ReadyHeading]], target: Path, *, leave_free_nbytes: int) -> bool:
    """Put the entries of all chunks into one file; says whether that is there.

    It is not where an entry is missing or is not whole, or where the disk would have less room left than it has to.
    """
    room = leave_free_nbytes + sum(heading.nbytes for _, heading in chunks)
    joined = free_nbytes(target.parent) >= room and _join(chunks, target)
    if not joined:
        target.unlink(missing_ok=True)
    return joined


def _join(chunks: Sequence[tuple[Path, ReadyHeading]], target: Path) -> bool:
    try:
        with target.open("wb") as file:
            for path, heading in chunks:
                content = path.read_bytes()
                if len(content) != heading.nbytes or xxhash.xxh3_128_hexdigest(content) != heading.digest:
                    return False
                file.write(content)
            sync_file(file)
    except OSError as error:
        logger.info("%s: does without: %s", target, error)
        return False
    return True

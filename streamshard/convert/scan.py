"""Scanning: one pass over the lines of a chunk that learns all that planning needs.

Offsets of the lines, sizes of the values, kinds of the values, images and their sizes; with ``check`` every image
is decoded. Memory follows the chunk and the longest line, not the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from streamshard.convert.columns import KeyTally, check_key, json_text
from streamshard.convert.images import HEAD_NBYTES, ImageFacts, check_image, own_pixel_limit, sniff_format
from streamshard.convert.jsonl import chunk_lines, parse_record
from streamshard.convert.places import ImagePlace, Located, check_image_nbytes, open_place
from streamshard.convert.problems import (
    BAD_COST,
    BAD_REFERENCE,
    Problem,
    RecordProblem,
    shorten,
)
from streamshard.convert.references import (
    DATA_URI_REFERENCE,
    NO_IMAGES,
    count_image_tags,
    decode_data_uri,
    references_of,
)
from streamshard.convert.tally import ChunkTally, ImageTally
from streamshard.write.costs import count_of

# Records are held back until this much text or this many images are waiting, so that images come in batches.
_WINDOW_NBYTES = 1 << 20
_WINDOW_IMAGES = 64
_REMOTE_THREADS = 16
_REMEMBERED_IMAGES = 1 << 16

Advance = Callable[[int, int], None]
"""Called with (bytes done, records done) since the last call."""


@dataclass(frozen=True, slots=True)
class ScanTask:
    """One chunk ``[begin, end)`` of a source, and where its findings go."""

    path: str
    begin: int
    end: int
    target: str
    image_folder: str
    image_keys: tuple[str, ...]
    check: bool
    max_image_pixels: int
    allow_outside_root: bool
    storage_options: Mapping[str, Any] | None = None
    costs: tuple[tuple[str, str], ...] = ()

    @property
    def label(self) -> str:
        return f"scanning bytes {self.begin} to {self.end} of {self.path}"


@dataclass(frozen=True, slots=True)
class CheckedImage:
    """One image as it will be stored: size, hash of its bytes (0 unread), what it is."""

    nbytes: int
    digest: int
    facts: ImageFacts


@dataclass(slots=True)
class _Pending:
    line: int
    offset: int
    text: bytes
    text_hash: int
    record: dict[str, Any]
    references: dict[str, list[str]]
    located: list[Located | bytes] = field(default_factory=list)


def scan_chunk(task: ScanTask, advance: Advance) -> int:
    """Scan one chunk and save its tally; gives the number of problems."""
    with own_pixel_limit(task.max_image_pixels):
        tally = _Scan(task, advance).run()
    tally.save(Path(task.target))
    return tally.problems.total


class _Scan:
    def __init__(self, task: ScanTask, advance: Advance) -> None:
        self._task = task
        self._advance = advance
        self._tally = ChunkTally()
        self._images = _ImageChecker(task)
        self._known_keys: set[str] = set()

    def run(self) -> ChunkTally:
        tally, task = self._tally, self._task
        window: list[_Pending] = []
        waiting_nbytes = waiting_images = unreported = 0
        for offset, line in chunk_lines(Path(task.path), task.begin, task.end):
            tally.num_lines += 1
            unreported += len(line)
            # What is stored of a line, whatever its line end.
            text = line.strip(b" \t\r\n")
            if text:
                text_hash = xxhash.xxh64_intdigest(text)
                tally.text_hashes.append(text_hash)
                pending = self._parse(offset + line.index(text[:1]), tally.num_lines, text, text_hash)
                if pending is not None:
                    window.append(pending)
                    waiting_nbytes += len(text)
                    waiting_images += len(pending.located)
            if waiting_nbytes >= _WINDOW_NBYTES or waiting_images >= _WINDOW_IMAGES:
                self._close(window)
                self._advance(unreported, len(window))
                waiting_nbytes = waiting_images = unreported = 0
                window = []
        self._close(window)
        self._advance(unreported, len(window))
        return tally

    def _parse(self, offset: int, line: int, text: bytes, text_hash: int) -> _Pending | None:
        record: dict[str, Any] | None = None
        try:
            record = parse_record(text)
            for key in record:
                if key not in self._known_keys:
                    check_key(key)
                    self._known_keys.add(key)
            count_costs(record, self._task.costs)
            references = references_of(record, self._task.image_keys)
            pending = _Pending(line, offset, text, text_hash, record, references)
            for found in references.values():
                pending.located += [self._images.locate(reference) for reference in found]
        except RecordProblem as problem:
            self._refuse(line, record, problem)
            return None
        return pending

    def _refuse(self, line: int, record: dict[str, Any] | None, problem: RecordProblem) -> None:
        record_id = record.get("id") if record is not None else None
        shown = None if record_id is None else shorten(str(record_id), 100).strip("'\"")
        self._tally.problems.add(Problem(line, problem.reason, problem.message, shown))

    def _close(self, window: list[_Pending]) -> None:
        wanted = [place for pending in window for place in pending.located]
        checked = self._images.check_all(wanted)
        for pending in window:
            mine = [next(checked) for _ in pending.located]
            refused = next((found for found in mine if isinstance(found, RecordProblem)), None)
            if refused is not None:
                self._refuse(pending.line, pending.record, refused)
            else:
                self._add(pending, [found for found in mine if isinstance(found, CheckedImage)])

    def _add(self, pending: _Pending, images: list[CheckedImage]) -> None:
        tally = self._tally
        row = len(tally.offsets)
        tally.offsets.append(pending.offset)
        tally.line_nbytes.append(len(pending.text))
        tally.lines.append(pending.line)
        tally.record_hashes.append(pending.text_hash)
        tally.image_hashes.append(joined_digest([image.digest for image in images]))
        record_id = pending.record.get("id")
        if record_id is not None:
            tally.id_hashes.append(xxhash.xxh64_intdigest(json_text(record_id).encode()))
        keys = tally.keys
        for key, value in pending.record.items():
            sizes = keys.get(key)
            if sizes is None:
                sizes = keys[key] = KeyTally()
            sizes.add(row, value)
        if self._task.image_keys == NO_IMAGES:
            return
        self._add_images(row, pending, images)
        tags, any_tag = count_image_tags(pending.text)
        if any_tag or images:
            tally.tags.add(pending.line, tags, any_tag, len(images))

    def _add_images(self, row: int, pending: _Pending, images: list[CheckedImage]) -> None:
        begin = 0
        for key, references in pending.references.items():
            mine = images[begin : begin + len(references)]
            kept = kept_references(pending.located[begin : begin + len(references)])
            begin += len(references)
            sums = self._tally.images.setdefault(key, ImageTally())
            sums.rows.append(row)
            sums.counts.append(len(mine))
            sums.payload_nbytes.append(sum(image.nbytes for image in mine))
            sums.path_nbytes.append(len(kept[0].encode()))
            sums.path_json_nbytes.append(len(json_text(kept)))
            for image in mine:
                sums.formats[image.facts.format] += 1
                sums.animated += image.facts.animated


def count_costs(record: Mapping[str, Any], costs: Sequence[tuple[str, str]]) -> list[int]:
    """What one record costs, in the order of ``costs`` (pairs of name and key).

    Raises:
        RecordProblem: a value that counts nothing.
    """
    counted = []
    for name, key in costs:
        try:
            counted.append(count_of(record.get(key)))
        except ValueError as error:
            raise RecordProblem(BAD_COST, f"cost {name!r}, key {shorten(key, 80)}: {error}") from error
    return counted


def kept_references(located: list[Located | bytes]) -> list[str]:
    """What the path column keeps of references: relative paths, ``data:`` for data URIs."""
    return [place.reference if isinstance(place, Located) else DATA_URI_REFERENCE for place in located]


def joined_digest(digests: list[int]) -> int:
    """One number for the bytes of all images of a record; 0 where none was read."""
    if not any(digests):
        return 0
    return xxhash.xxh64_intdigest(b"".join(digest.to_bytes(8, "little") for digest in digests))


def digest_of(content: bytes) -> int:
    """The hash of an image's bytes that the plan keeps."""
    return xxhash.xxh64_intdigest(content)


def locate_reference(reference: str, place: ImagePlace) -> Located | bytes:
    """A file for a path, the bytes themselves for a data URI.

    Raises:
        RecordProblem: a reference that cannot be used.
    """
    if reference[:5].lower() == DATA_URI_REFERENCE:
        content = decode_data_uri(reference)
        if not content:
            raise RecordProblem(BAD_REFERENCE, f"data URI {shorten(reference, 40)} holds no bytes")
        return content
    return place.locate(reference)


class _ImageChecker:
    """Checks images in batches; a file that several records name is decoded once."""

    def __init__(self, task: ScanTask) -> None:
        self._task = task
        self._place: ImagePlace | None = None
        self._known: dict[str, CheckedImage | RecordProblem] = {}

    def locate(self, reference: str) -> Located | bytes:
        if self._place is None:
            self._place = open_place(
                self._task.image_folder,
                allow_outside_root=self._task.allow_outside_root,
                storage_options=self._task.storage_options,
            )
        return locate_reference(reference, self._place)

    def check_all(self, wanted: list[Located | bytes]) -> Iterator[CheckedImage | RecordProblem]:
        """The findings, in the order of ``wanted``."""
        missing = {place.name: place for place in wanted if isinstance(place, Located)}
        missing = {name: place for name, place in missing.items() if name not in self._known}
        if len(self._known) + len(missing) > _REMEMBERED_IMAGES:
            self._known = {
                place.name: self._known[place.name]
                for place in wanted
                if isinstance(place, Located) and place.name in self._known
            }
        if self._place is not None and self._place.remote and len(missing) > 1:
            with ThreadPoolExecutor(_REMOTE_THREADS) as threads:
                found = list(threads.map(self._check, missing.values()))
        else:
            found = [self._check(place) for place in missing.values()]
        self._known.update(zip(missing, found, strict=True))
        for place in wanted:
            yield self._known[place.name] if isinstance(place, Located) else self._check(place)

    def _check(self, image: Located | bytes) -> CheckedImage | RecordProblem:
        try:
            if isinstance(image, bytes):
                check_image_nbytes(Located("", DATA_URI_REFERENCE), len(image))
                return self._facts(len(image), image, image)
            place = self._place
            if place is None:
                raise RuntimeError("an image was located before its place was opened")
            if self._task.check:
                content = place.read(image)
                return self._facts(len(content), content, content)
            nbytes, head = place.head(image, HEAD_NBYTES)
            return self._facts(nbytes, head, None)
        except RecordProblem as problem:
            if isinstance(image, Located) and not problem.message.startswith("image "):
                return RecordProblem(problem.reason, f"image {shorten(image.reference)}: {problem.message}")
            if isinstance(image, bytes) and not problem.message.startswith(("image ", "data URI")):
                return RecordProblem(problem.reason, f"image in a data URI: {problem.message}")
            return problem

    def _facts(self, nbytes: int, head: bytes, content: bytes | None) -> CheckedImage:
        if content is None or not self._task.check:
            return CheckedImage(nbytes, 0, ImageFacts(sniff_format(head[:HEAD_NBYTES])))
        facts = check_image(content, max_pixels=self._task.max_image_pixels)
        return CheckedImage(nbytes, digest_of(content), facts)

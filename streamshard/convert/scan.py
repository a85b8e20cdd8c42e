"""Scanning: one pass over the lines of a chunk that learns all that planning needs.

Offsets of the lines, sizes of the values, kinds of the values, images and their sizes; with ``check`` every image
is decoded. Memory follows the chunk and the longest line, not the file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from streamshard.convert.columns import check_key
from streamshard.convert.files import as_file
from streamshard.convert.forms.form import open_form
from streamshard.convert.image_scan import ImageScan
from streamshard.convert.images import check_image, own_pixel_limit
from streamshard.convert.json_members import BY_COLUMN, WHOLE
from streamshard.convert.messages import holds_parts, is_messages
from streamshard.convert.places import Located
from streamshard.convert.problems import (
    BAD_COST,
    UNREADABLE_IMAGE,
    Problem,
    RecordProblem,
    shorten,
)
from streamshard.convert.ready import ReadyRecords
from streamshard.convert.record_tally import Pending, RecordTally
from streamshard.convert.references import (
    DATA_URI_REFERENCE,
    Embedded,
    Reference,
)
from streamshard.convert.shaping import Shaped, Shaping
from streamshard.convert.sources import LINES, Source
from streamshard.convert.supply import ImageSettings, ImageSupply
from streamshard.convert.tally import ChunkTally
from streamshard.errors import FormatError
from streamshard.format.encodings import parse_encoding
from streamshard.storage.redact import public_url
from streamshard.write.costs import count_of

# Records are held back while their images come over a network, but no more text than this.
_WAITING_NBYTES = 1 << 22
_REPORTED_RECORDS = 64
_REPORTED_NBYTES = 1 << 20
_LONGEST_PATH = 4096

LISTS = ("list[jpeg]", "list[png]")

Advance = Callable[[int, int], None]
"""Called with (bytes done, records done) since the last call."""


class ScanTask(NamedTuple):
    """One chunk ``[begin, end)`` of a source, and where its findings go.

    ``makes_ready``: see :mod:`~streamshard.convert.ready`.
    """

    source: Source
    begin: int
    end: int
    target: str
    image_folder: str
    shaping: Shaping
    check: bool
    images: ImageSettings
    costs: tuple[tuple[str, str], ...] = ()
    makes_ready: bool = False

    @property
    def label(self) -> str:
        return f"scanning bytes {self.begin} to {self.end} of {self.source.path}"


def scan_chunk(task: ScanTask, advance: Advance) -> int:
    """Scan one chunk and save its tally; gives the number of problems."""
    decodes = task.check or task.images.resizing is not None or not task.source.is_text
    with (
        own_pixel_limit(task.images.max_pixels if decodes else None),
        ImageSupply(task.images) as supply,
    ):
        tally = _Scan(task, advance, supply).run()
    tally.save(Path(task.target))
    return tally.problems.total


class _Scan:
    def __init__(self, task: ScanTask, advance: Advance, supply: ImageSupply) -> None:
        self._task = task
        self._advance = advance
        self._tally = ChunkTally(ready=ReadyRecords(task.images.leave_free_nbytes))
        self._records = RecordTally(
            self._tally, task.shaping, makes_ready=task.makes_ready and task.source.kind == LINES
        )
        self._supply = supply
        self._images = ImageScan(
            supply,
            task.image_folder,
            check=task.check,
            max_pixels=task.images.max_pixels,
            read=task.images.resizing is not None,
        )
        self._known_keys: set[str] = set()
        self._named = frozenset((*task.shaping.drop, *task.shaping.rename))
        # Some forms leave dropped columns out of the records.
        self._tally.met = set(self._named & task.source.columns.keys())
        self._rich = not task.source.is_text
        self._form = open_form(task.source, task.shaping.before_names(), task.shaping.drop)

    def run(self) -> ChunkTally:
        tally, task = self._tally, self._task
        waiting: deque[Pending] = deque()
        waiting_nbytes = waiting_images = done_nbytes = done = 0
        for offset, taken, text in self._form.spans(task.begin, task.end):
            tally.num_lines += 1
            done_nbytes += taken
            if text:
                text_hash = xxhash.xxh64_intdigest(text)
                tally.text_hashes.append(text_hash)
                pending = self._parse(offset, tally.num_lines, text, text_hash)
                if pending is not None and not waiting and self._supply.is_near(task.image_folder):
                    self._close(pending)
                    done += 1
                elif pending is not None:
                    for image in pending.located:
                        self._images.begin(image)
                    waiting.append(pending)
                    waiting_nbytes += len(text)
                    waiting_images += len(pending.located)
            # Records wait while their images, and those of later records, are on their way.
            while waiting and (
                waiting_nbytes >= _WAITING_NBYTES or waiting_images >= self._supply.wants_more
            ):
                first = waiting.popleft()
                waiting_nbytes -= len(first.text)
                waiting_images -= len(first.located)
                self._close(first)
                done += 1
            if done >= _REPORTED_RECORDS or done_nbytes >= _REPORTED_NBYTES:
                self._advance(done_nbytes, done)
                done_nbytes = done = 0
        for left in waiting:
            self._close(left)
        self._records.flush()
        self._advance(done_nbytes, done + len(waiting))
        if tally.num_lines != 1:
            tally.held = {}
        return tally

    def _parse(self, offset: int, line: int, text: bytes, text_hash: int) -> Pending | None:
        record: dict[str, Any] | None = None
        try:
            record = self._form.parse(text, checked=False)
            if not self._known_keys >= record.keys():
                for key in record:
                    check_key(key)
                self._known_keys.update(record)
            if self._named:
                self._tally.met |= self._named & record.keys()
            shaping = self._task.shaping
            if shaping.where and not shaping.wants(record):
                return None
            shaped = shaping.apply(record, rich=self._rich)
            if self._task.costs:
                count_costs({**shaping.opened(record), **shaped.token_counts}, self._task.costs)
            pending = Pending(line, offset, text, text_hash, shaped)
            if line == 1 and not self._task.source.unit:
                self._tally.held = held_objects(shaped.values)
            if self._task.check:
                check_declared(shaped, self._task.shaping.declared, self._task.images.max_pixels)
            for key, found in shaped.references.items():
                if key in shaped.found.files:
                    pending.located += [self._located_file(reference) for reference in found]
                else:
                    pending.located += [self._located(reference) for reference in found]
        except RecordProblem as problem:
            self._refuse(line, record, problem)
            return None
        return pending

    def _located(self, reference: Reference) -> Located | Embedded:
        try:
            return self._supply.locate(reference, self._task.image_folder)
        except RecordProblem as problem:
            if isinstance(reference, str) and reference[:5].lower() != DATA_URI_REFERENCE:
                problem.path = public_url(reference[:_LONGEST_PATH])
            raise

    def _located_file(self, reference: Reference) -> Located | Embedded:
        try:
            return as_file(reference, self._located(reference))
        except RecordProblem as problem:
            raise problem.of_file() from None

    def _refuse(self, line: int, record: dict[str, Any] | None, problem: RecordProblem) -> None:
        record_id = record.get("id", record.get("__key__")) if record is not None else None
        shown = None if record_id is None else shorten(str(record_id), 100).strip("'\"")
        self._tally.problems.add(Problem(line, problem.reason, problem.message, shown, problem.path))

    def _close(self, pending: Pending) -> None:
        for place in pending.located:
            found = self._images.check(place)
            if isinstance(found, RecordProblem):
                if isinstance(place, Located):
                    # Other records may name the same file otherwise: the problem is the file's, the path theirs.
                    found = RecordProblem(found.reason, found.message, place.reference)
                self._refuse(pending.line, pending.shaped.values, found)
                return
            pending.images.append(found)
        self._records.add(pending)


def held_objects(values: Mapping[str, Any]) -> dict[str, int]:
    """Key → number of objects, for the values of a record that may be what was meant as records.

    Of a record that is itself an object with a key for each record, ``"."``; of one that is a table by columns,
    :data:`~streamshard.convert.json_members.BY_COLUMN` and the number of rows.
    """
    if len(values) > 1 and all(type(value) is dict for value in values.values()):
        return {WHOLE: len(values)}
    if len(values) > 1 and all(type(value) is list and not holds_parts(value) for value in values.values()):
        lengths = {len(value) for value in values.values()}
        objects = all(type(item) is dict for value in values.values() for item in value)
        if len(lengths) == 1 and max(lengths) > 1 and not objects:
            return {BY_COLUMN: max(lengths)}
    return {
        key: len(value)
        for key, value in values.items()
        if type(value) is list
        and len(value) > 1
        and all(type(item) is dict for item in value)
        and not is_messages(value)
    }


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


def check_declared(shaped: Shaped, declared: Mapping[str, str], max_pixels: int) -> None:
    """Decode the images of declared columns.

    Raises:
        RecordProblem: one is unusable.
    """
    for name, encoding in declared.items():
        if encoding not in ("jpeg", "png", *LISTS):
            continue
        stored = shaped.values[name]
        for content in stored_images(stored) if encoding in LISTS else [stored]:
            try:
                check_image(content, max_pixels=max_pixels)
            except RecordProblem as problem:
                raise RecordProblem(problem.reason, f"column {name!r}: {problem.message}") from None


def stored_images(stored: bytes) -> list[bytes]:
    """The files in the stored form of a list of images.

    Raises:
        RecordProblem: it is no such form.
    """
    try:
        images: list[bytes] = parse_encoding("list[jpeg]").stored(stored)
    except FormatError as error:
        raise RecordProblem(UNREADABLE_IMAGE, str(error)) from None
    return images

"""The samples of one shard of a plan: read again from the input, and laid into memory one after another."""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from streamshard.convert.columns import ImageColumn, plain_values
from streamshard.convert.files import FILE_ENCODINGS, as_file
from streamshard.convert.forms.form import Form, open_form
from streamshard.convert.jsonl import read_span
from streamshard.convert.located import digest_of, joined_digest, kept_references
from streamshard.convert.opened import OpenedImage
from streamshard.convert.places import Located
from streamshard.convert.plan import Plan
from streamshard.convert.problems import RecordProblem
from streamshard.convert.references import Embedded
from streamshard.convert.scan import count_costs
from streamshard.convert.shaping import Shaping
from streamshard.convert.sources import STALE, Source
from streamshard.convert.supply import ImageSupply
from streamshard.errors import ConvertError
from streamshard.format.schema import Schema
from streamshard.storage.descriptors import most_open_files

# A block is filled from files, hashed and written while it is in the processor's cache.
_BLOCK_NBYTES = 1 << 19
# Lines that follow one another are read together up to this many bytes.
_SPAN_NBYTES = 1 << 23

_AnyRecord = TypeVar("_AnyRecord")


class _Opened(NamedTuple):
    """A source whose records are being read."""

    source: Source
    form: Form
    shaping: Shaping
    root: str  # of its images


class _Record(NamedTuple):
    place: int  # in the shard
    opened: _Opened
    sample: dict[str, Any]
    images: list[tuple[ImageColumn, list[Located | Embedded]]]


class ShardSamples:
    """The samples of one shard in order.

    Args:
        plan: of the conversion.
        shard: its number.
        shaping: of all records.
        image_root: where relative references start; ``None``: each source's own folder.
        costs: pairs of name and key.
        supply: brings the images.

    Attributes:
        sizes: planned bytes of each, int64[num_samples].
        costs: sums over the samples given so far.
    """

    def __init__(
        self,
        plan: Plan,
        shard: int,
        *,
        shaping: Shaping,
        image_root: str | None,
        costs: tuple[tuple[str, str], ...],
        supply: ImageSupply,
    ) -> None:
        self._plan = plan
        self._shaping = shaping.with_images_under([image.key for image in plan.columns.images])
        self._image_root = image_root
        self._cost_keys = costs
        self._supply = supply
        self._rows = plan.rows(shard)
        self.sizes = self._rows["sample_nbytes"].astype(np.int64)
        self._planned: list[tuple[int, int]] = list(
            zip(self.sizes.tolist(), self._rows["image_hash"].tolist(), strict=True)
        )
        columns = plan.columns
        self._encode = Schema.from_columns(columns.taken_encodings()).parts_encoder(
            given={image.key for image in columns.images}
        )
        self._plain_values = plain_values(columns)
        self._opened: dict[int, _Opened] = {}
        self.costs = [0] * len(costs)

    def blocks(self) -> Iterator[tuple[memoryview, int]]:
        """All samples, one after another, in blocks that stay in the processor's cache, with how many each holds.

        A block holds whole samples, and its memory is used again for the next one.

        Raises:
            ConvertError: the input is no longer what was planned, or cannot be read.
        """
        return in_blocks(self._records(), self.sizes.tolist(), self._lay)

    def _records(self) -> Iterator[_Record]:
        """The records in order; with those whose images come over a network, later ones are on their way already."""
        supply = self._supply
        waiting: deque[_Record] = deque()
        waiting_images = 0
        for place, opened, line in self._lines():
            record = self._prepared(place, opened, line)
            if not waiting and supply.is_near(opened.root):
                yield record
                continue
            for _, located in record.images:
                for image in located:
                    supply.begin(image, opened.root)
                waiting_images += len(located)
            waiting.append(record)
            while waiting and waiting_images >= supply.wants_more:
                first = waiting.popleft()
                waiting_images -= sum(len(located) for _, located in first.images)
                yield first
        yield from waiting

    def _lines(self) -> Iterator[tuple[int, _Opened, bytes]]:
        """The lines of the shard's rows in output order, read in ascending runs where they are neighbours."""
        rows = self._rows
        offsets, sizes = rows["offset"].tolist(), rows["line_nbytes"].tolist()
        files: dict[int, int] = {}  # an order may need all sources in turn
        most = most_open_files() // 4
        try:
            begin = 0
            while begin < len(rows):
                end = run_end(rows, begin)
                number = int(rows["source"][begin])
                opened = self._open(number)
                first = offsets[begin]
                try:
                    if number not in files:
                        if len(files) >= most:
                            os.close(files.pop(next(iter(files))))
                        files[number] = os.open(opened.source.path, os.O_RDONLY | os.O_CLOEXEC)
                    span = read_span(files[number], first, offsets[end - 1] + sizes[end - 1] - first)
                except OSError as error:
                    raise ConvertError(
                        f"{opened.source.name}: cannot be read ({error.strerror}); {STALE}"
                    ) from error
                for place in range(begin, end):
                    at = offsets[place] - first
                    yield place, opened, span[at : at + sizes[place]]
                begin = end
            # Behind the last record: whatever was read of a file, it was so before that file changed.
            for opened in self._opened.values():
                opened.source.refuse_changed()
        finally:
            for file in files.values():
                os.close(file)

    def _open(self, number: int) -> _Opened:
        opened = self._opened.get(number)
        if opened is None:
            source = self._plan.sources[number]
            form = open_form(source, self._shaping.before_names(), self._shaping.drop)
            root = source.image_folder if self._image_root is None else self._image_root
            opened = self._opened[number] = _Opened(source, form, self._shaping.for_source(source), root)
        return opened

    def _prepared(self, place: int, opened: _Opened, line: bytes) -> _Record:
        try:
            return self._with_references(opened.form.parse(line, checked=True), place, opened)
        except (ValueError, TypeError, AttributeError, LookupError, OSError, RecordProblem) as error:
            raise ConvertError(f"{self._where(place, opened)}: {error}; {STALE}") from error

    def _with_references(self, record: dict[str, Any], place: int, opened: _Opened) -> _Record:
        shaping = opened.shaping
        shaped = shaping.apply(record, rich=not opened.source.is_text)
        if self._cost_keys:
            counted = count_costs({**shaping.opened(record), **shaped.token_counts}, self._cost_keys)
            self.costs = [cost + more for cost, more in zip(self.costs, counted, strict=True)]
        sample = self._plain_values(shaped.values)
        images = []
        for column in self._plan.columns.images:
            references = shaped.references.get(column.key, ())
            located = [self._supply.locate(reference, opened.root) for reference in references]
            as_files = column.encoding in FILE_ENCODINGS
            if as_files:
                located = list(map(as_file, references, located))
            if not column.listed and len(located) != 1 and (located or not as_files):
                raise ValueError(f"key {column.key!r} holds {len(located)} images, planned 1")
            if column.named:
                kept = kept_references(located)
                sample[column.path_column] = kept if column.listed else "".join(kept)
            images.append((column, located))
        return _Record(place, opened, sample, images)

    def _lay(self, record: _Record, content: memoryview, begin: int) -> int:
        """Lay one sample into ``content``; gives its end there."""
        sample, root = record.sample, record.opened.root
        images: list[bytes | OpenedImage] = []
        placed: dict[OpenedImage, memoryview] = {}
        nbytes, image_hash = self._planned[record.place]
        try:
            for column, located in record.images:
                if column.listed:
                    mine = [self._supply.get(image, root).content for image in located]
                    sample[column.key] = _listed(mine)
                    images += mine
                elif not located:
                    sample[column.key] = b""
                else:
                    sample[column.key] = image = self._supply.open(located[0], root)
                    images.append(image)
            parts = self._encode(sample)
            found = sum(map(len, parts))
            # Planned sizes are the proof that this shard is cut where the plan says.
            good = found == nbytes
            for part in parts if good else ():
                if type(part) is OpenedImage:
                    # No bytes object in between: a file goes from the kernel to its place in the shard.
                    end = begin + part.nbytes
                    placed[part] = place = content[begin:end]
                    part.read_into(place)
                else:
                    end = begin + len(part)
                    content[begin:end] = part
                begin = end
            if good and image_hash:
                good = image_hash == joined_digest(
                    [
                        digest_of(placed[image] if isinstance(image, OpenedImage) else image)
                        for image in images
                    ]
                )
        except RecordProblem as problem:
            raise ConvertError(f"{self._where(record.place, record.opened)}: {problem}; {STALE}") from None
        finally:
            for image in images:
                if type(image) is OpenedImage:
                    image.close()
        if not good:
            raise ConvertError(
                f"{self._where(record.place, record.opened)}: the record or an image of it is not what it was when it"
                f" was checked ({found} bytes, planned {nbytes}); {STALE}"
            )
        return begin

    def _where(self, place: int, opened: _Opened) -> str:
        return opened.source.place(opened.form.number(int(self._rows["offset"][place])))


def in_blocks(
    records: Iterable[_AnyRecord], sizes: Iterable[int], lay: Callable[[_AnyRecord, memoryview, int], int]
) -> Iterator[tuple[memoryview, int]]:
    """Lay records of these sizes into blocks of whole ones, see :meth:`ShardSamples.blocks`.

    Args:
        records: in order.
        sizes: bytes of each.
        lay: puts a record into memory at a place, and gives its end there.
    """
    memory = np.empty(_BLOCK_NBYTES, np.uint8).data
    end = count = 0
    for record, nbytes in zip(records, sizes, strict=True):
        if count and end + nbytes > _BLOCK_NBYTES:
            yield memory[:end], count
            end = count = 0
        if nbytes > len(memory):
            memory = np.empty(nbytes, np.uint8).data
        end = lay(record, memory, end)
        count += 1
    yield memory[:end], count


def _listed(images: list[bytes]) -> bytes:
    """The stored form of a list: u32 zero, u32 count, u32 sizes, files."""
    return b"".join([struct.pack(f"<{2 + len(images)}I", 0, len(images), *map(len, images)), *images])


def run_end(rows: NDArray[Any], begin: int) -> int:
    """The end of the run of rows from ``begin`` whose lines follow one another closely in one source."""
    limit = min(len(rows), begin + 4096)
    offsets = rows["offset"][begin:limit].astype(np.int64)
    sizes = rows["line_nbytes"][begin:limit].astype(np.int64)
    gaps = offsets[1:] - (offsets[:-1] + sizes[:-1])
    near = (rows["source"][begin + 1 : limit] == rows["source"][begin]) & (gaps >= 0) & (gaps <= 4096)
    near &= offsets[1:] + sizes[1:] - offsets[0] <= _SPAN_NBYTES
    breaks = np.flatnonzero(~near)
    return begin + 1 + (int(breaks[0]) if len(breaks) else len(near))

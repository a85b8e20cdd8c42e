"""The samples of one shard, of entries that the scan has made ready: all that is left to read are the images."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from streamshard.convert.forms.form import open_form
from streamshard.convert.jsonl import read_span
from streamshard.convert.located import digest_of, joined_digest
from streamshard.convert.places import LocalImages
from streamshard.convert.plan import Plan
from streamshard.convert.problems import RecordProblem
from streamshard.convert.ready import ENTRY
from streamshard.convert.samples import in_blocks, run_end
from streamshard.convert.sources import STALE
from streamshard.convert.supply import ImageSupply
from streamshard.errors import ConvertError

_Entry = tuple[int, bytes]
"""Place in the shard, entry."""


class ReadySamples:
    """The samples of one shard in order, with the interface of :class:`~streamshard.convert.samples.ShardSamples`.

    Args:
        plan: of the conversion, with ready samples.
        shard: its number.
        image_root: where relative references start; ``None``: each source's own folder.
        supply: brings the images.
    """

    def __init__(self, plan: Plan, shard: int, *, image_root: str | None, supply: ImageSupply) -> None:
        self._plan = plan
        self._rows = plan.rows(shard)
        self.sizes = self._rows["sample_nbytes"].astype(np.int64)
        self._sizes: list[int] = self.sizes.tolist()
        self._numbers: list[int] = self._rows["source"].tolist()
        self._hashes: list[int] = self._rows["image_hash"].tolist()
        self._folders: dict[int, LocalImages] = {}
        for number in set(self._numbers):
            source = plan.sources[number]
            folder = supply.near(source.image_folder if image_root is None else image_root)
            if folder is None:
                raise ConvertError(f"{source.name}: its images are no files of this machine; {STALE}")
            self._folders[number] = folder
        self.costs: list[int] = []

    def blocks(self) -> Iterator[tuple[memoryview, int]]:
        """All samples, one after another, see :meth:`~streamshard.convert.samples.ShardSamples.blocks`.

        Raises:
            ConvertError: an image, or a source, is no longer what was planned, or cannot be read.
        """
        return in_blocks(self._entries(), self._sizes, self._lay)

    def _entries(self) -> Iterator[_Entry]:
        rows, path = self._rows, self._plan.ready_path
        offsets, sizes = rows["offset"].tolist(), rows["line_nbytes"].tolist()
        with path.open("rb", buffering=0) as file:
            begin = 0
            while begin < len(rows):
                end, first = run_end(rows, begin), offsets[begin]
                span = read_span(file.fileno(), first, offsets[end - 1] + sizes[end - 1] - first)
                for place in range(begin, end):
                    at = offsets[place] - first
                    yield place, span[at : at + sizes[place]]
                begin = end
        for number in self._folders:
            self._plan.sources[number].refuse_changed()

    def _lay(self, record: _Entry, content: memoryview, begin: int) -> int:
        """Lay one sample into ``content``; gives its end there."""
        place, entry = record
        number, image_hash = self._numbers[place], self._hashes[place]
        end = begin + self._sizes[place]
        line, reference_nbytes, front_nbytes = ENTRY.unpack_from(entry)
        front = ENTRY.size + reference_nbytes
        behind = front + front_nbytes
        folder = self._folders[number]
        try:
            image = folder.open(folder.locate(entry[ENTRY.size : front].decode()))
            try:
                image_begin = begin + front_nbytes
                image_end = image_begin + image.nbytes
                # Planned sizes are the proof that this shard is cut where the plan says.
                good = image_end + len(entry) - behind == end
                if good:
                    content[begin:image_begin] = entry[front:behind]
                    image.read_into(content[image_begin:image_end])
                    content[image_end:end] = entry[behind:]
            finally:
                image.close()
        except RecordProblem as problem:
            raise ConvertError(f"{self._where(number, line)}: {problem}; {STALE}") from None
        if good and image_hash:
            good = image_hash == joined_digest([digest_of(content[image_begin:image_end])])
        if not good:
            raise ConvertError(
                f"{self._where(number, line)}: the image of the record is not what it was when it was checked"
                f" ({image.nbytes} bytes); {STALE}"
            )
        return end

    def _where(self, number: int, line: int) -> str:
        source = self._plan.sources[number]
        return source.place(open_form(source, {}).number(line))

"""Whether a finished dataset is the outcome of the very job that is asked for again.

Nothing of the machine stands in an index, so paths and times cannot be compared. Instead it holds a digest of the
texts of all records, and one of the image sizes of a sample of records, chosen by the hash of their text.
"""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from streamshard.convert.forms.form import open_form
from streamshard.convert.images import HEAD_NBYTES, check_image, own_pixel_limit
from streamshard.convert.located import locate_reference
from streamshard.convert.options import ConvertOptions
from streamshard.convert.origins import Origin
from streamshard.convert.places import ImagePlace, is_web_url, open_place
from streamshard.convert.problems import RecordProblem
from streamshard.convert.progress import Progress
from streamshard.convert.references import Embedded, Reference
from streamshard.convert.scan import check_declared
from streamshard.convert.settling import settled_shaping
from streamshard.convert.shaping import Shaping
from streamshard.convert.sources import Source
from streamshard.convert.staging import in_place, stage_input, stage_tasks

_SAMPLED_RECORDS = 1024
_HASHED_AT_ONCE = 1 << 16


def sample_limit(num_texts: int) -> int:
    """Records whose text hash is below this are compared: about 1024 of them, or all where there are fewer."""
    return (1 << 64) - 1 if num_texts <= _SAMPLED_RECORDS else (1 << 64) // num_texts * _SAMPLED_RECORDS


class JobDigests:
    """What identifies the input of a job, gathered record by record in input order."""

    def __init__(self, num_texts: int) -> None:
        self.limit = sample_limit(num_texts)
        self._texts = xxhash.xxh3_128()
        self._images = xxhash.xxh3_128()

    def add_texts(self, hashes: NDArray[np.uint64]) -> None:
        """Add the hashes of the texts of lines that are not blank."""
        self._texts.update(hashes.astype("<u8").tobytes())

    def add_images(self, hashes: NDArray[np.uint64], image_nbytes: NDArray[np.int64]) -> None:
        """Add records that can be converted, by the hash of their text, with the sum of their images' sizes."""
        chosen = hashes < np.uint64(self.limit)
        pairs = np.stack([hashes[chosen].astype("<u8"), image_nbytes[chosen].astype("<u8")], axis=1)
        self._images.update(pairs.tobytes())

    def to_json(self) -> dict[str, str]:
        """The digests as the index keeps them."""
        return {"content": self._texts.hexdigest(), "images": self._images.hexdigest()}


def input_digests(
    origins: Sequence[Origin],
    options: ConvertOptions,
    num_texts: int,
    progress: Progress,
    *,
    decode: bool = False,
) -> Mapping[str, Any]:
    """Read the sources through and give their digests; image sizes are looked up for the sample alone.

    Args:
        decode: decode the images of the sample too, since records were left out, maybe because of their images.

    Raises:
        ConvertError: a source that cannot be read.
    """
    digests = JobDigests(num_texts)
    sources: list[Source] = []
    progress.begin("comparing records", sum(origin.nbytes for origin in origins), None)
    with tempfile.TemporaryDirectory(prefix="streamshard-convert-") as folder:
        for number, origin in enumerate(origins):
            sources += _staged(origin, Path(folder), number, options, progress)
        shaping = settled_shaping(sources, options)
        for source in sources:
            _add_source(digests, source, shaping.for_source(source), options, decode)
    progress.end()
    return digests.to_json()


def _staged(
    origin: Origin, folder: Path, number: int, options: ConvertOptions, progress: Progress
) -> list[Source]:
    plain = in_place(origin)
    if plain is not None:
        return [plain]
    made: list[Source] = []
    for task in stage_tasks(origin, folder, number, options.storage_options):
        stage_input(task, progress.advance)
        made += task.sources()
    return made


def _add_source(
    digests: JobDigests, source: Source, shaping: Shaping, options: ConvertOptions, decode: bool
) -> None:
    sizes = _ImageSizes(source, shaping, options, decode)
    hashes: array[int] = array("Q")
    for _, _, text in sizes.form.spans(0, source.nbytes):
        if not text:
            continue
        hashes.append(xxhash.xxh64_intdigest(text))
        if hashes[-1] < digests.limit:
            nbytes = sizes.of(text)
            if nbytes is not None:
                digests.add_images(np.array(hashes[-1:], np.uint64), np.array([nbytes], np.int64))
        if len(hashes) == _HASHED_AT_ONCE:
            digests.add_texts(np.frombuffer(hashes, np.uint64))
            hashes = array("Q")
    digests.add_texts(np.array(hashes, np.uint64))


class _ImageSizes:
    def __init__(self, source: Source, shaping: Shaping, options: ConvertOptions, decode: bool) -> None:
        self._decode = decode and (options.check or options.resizing is not None)
        self._folder = source.image_folder if options.image_root is None else options.image_root
        self._options = options
        self._shaping = shaping
        self._rich = not source.is_text
        self.form = open_form(source, shaping.before_names(), shaping.drop)
        self._place: ImagePlace | None = None

    def of(self, text: bytes) -> int | None:
        """The sum of the sizes of a record's images; ``None`` where it cannot be converted, or one is at a URL."""
        try:
            record = self.form.parse(text, checked=False)
            if not self._shaping.wants(record):
                return None
            shaped = self._shaping.apply(record, rich=self._rich)
            if self._decode and self._options.check:
                check_declared(shaped, self._shaping.declared, self._options.max_image_pixels)
            if self._options.fetch is not None and any(
                isinstance(reference, str) and is_web_url(reference)
                for references in shaped.references.values()
                for reference in references
            ):
                return None
            return sum(
                self._size(reference, as_is=key in shaped.found.files)
                for key, references in shaped.references.items()
                for reference in references
            )
        except RecordProblem:
            return None

    def _size(self, reference: Reference, *, as_is: bool) -> int:
        located = locate_reference(reference, self._opened)
        decode = self._decode and not as_is
        if isinstance(located, Embedded) or decode:
            content = located.content if isinstance(located, Embedded) else self._opened().read(located)
            if decode:
                with own_pixel_limit(self._options.max_image_pixels):
                    check_image(content, max_pixels=self._options.max_image_pixels)
            return len(content)
        return self._opened().head(located, HEAD_NBYTES)[0]

    def _opened(self) -> ImagePlace:
        if self._place is None:
            self._place = open_place(
                self._folder,
                allow_outside_root=self._options.allow_outside_root,
                storage_options=self._options.storage_options,
            )
        return self._place

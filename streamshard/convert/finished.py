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

from streamshard.convert.images import HEAD_NBYTES
from streamshard.convert.jsonl import chunk_lines, parse_record
from streamshard.convert.options import ConvertOptions
from streamshard.convert.places import ImagePlace, open_place
from streamshard.convert.problems import RecordProblem
from streamshard.convert.progress import Progress
from streamshard.convert.references import references_of
from streamshard.convert.scan import locate_reference
from streamshard.convert.sources import Origin, stage

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
    origins: Sequence[Origin], options: ConvertOptions, num_texts: int, progress: Progress
) -> Mapping[str, Any]:
    """Read the sources through and give their digests; image sizes are looked up for the sample alone.

    Raises:
        ConvertError: a source that cannot be read.
    """
    digests = JobDigests(num_texts)
    progress.begin("comparing records", sum(origin.nbytes for origin in origins), None)
    with tempfile.TemporaryDirectory(prefix="streamshard-convert-") as folder:
        for number, origin in enumerate(origins):
            source = stage(
                origin,
                Path(folder),
                number,
                storage_options=options.storage_options,
                advance=lambda nbytes: progress.advance(nbytes, 0),
            )
            sizes = _ImageSizes(source.image_folder, options)
            hashes: array[int] = array("Q")
            for _, line in chunk_lines(Path(source.path), 0, source.nbytes):
                text = line.strip(b" \t\r\n")
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
    progress.end()
    return digests.to_json()


class _ImageSizes:
    def __init__(self, image_folder: str, options: ConvertOptions) -> None:
        self._folder = image_folder if options.image_root is None else options.image_root
        self._options = options
        self._place: ImagePlace | None = None

    def of(self, text: bytes) -> int | None:
        """The sum of the sizes of a record's images; ``None`` where it cannot be converted."""
        try:
            return sum(
                self._size(reference)
                for references in references_of(parse_record(text), self._options.image_keys).values()
                for reference in references
            )
        except RecordProblem:
            return None

    def _size(self, reference: str) -> int:
        if self._place is None:
            self._place = open_place(
                self._folder,
                allow_outside_root=self._options.allow_outside_root,
                storage_options=self._options.storage_options,
            )
        located = locate_reference(reference, self._place)
        return len(located) if isinstance(located, bytes) else self._place.head(located, HEAD_NBYTES)[0]

"""What one scanned chunk holds, as arrays, and its file in the work directory."""

from __future__ import annotations

import json
import os
from array import array
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from streamshard.convert.columns import ChunkKey, ImageColumn, KeyTally
from streamshard.convert.problems import KEPT_PER_CHUNK, Problem, ProblemLog
from streamshard.convert.ready import ReadyHeading, ReadyRecords, ready_path
from streamshard.convert.runs import RunsOfKeys, parse_runs

_CODES = {"I": np.uint32, "Q": np.uint64}
_MAGIC = b"sstally8"
_DIGEST_NBYTES = 16

NOT_COMPARED = (1 << 64) - 1
"""In ``compared_nbytes``: the images of a record are, or one of them is, at a URL, and may be another one next time."""


class ImageTally:
    """The images under one key in one chunk: for each record that has some, how many, and their stored sizes."""

    __slots__ = (
        "animated", "counts", "formats", "named", "path_json_nbytes", "path_nbytes", "payload_nbytes", "rows",
    )  # fmt: skip

    def __init__(self) -> None:
        self.rows = array("I")
        self.counts = array("I")
        self.payload_nbytes = array("Q")
        self.path_nbytes = array("I")
        self.path_json_nbytes = array("I")
        self.formats: Counter[str] = Counter()
        self.animated = 0
        self.named = 0


@dataclass(slots=True)
class ImageTags:
    """How the image tags in the texts agree with the images."""

    tagged: int = 0
    tagged_without_image: int = 0
    first_tagged_without_image: int = 0
    differing: int = 0
    first_differing: tuple[int, int, int] = (0, 0, 0)
    untagged_with_image: int = 0
    first_untagged_with_image: int = 0

    def add(self, line: int, tags: int, any_tag: bool, images: int) -> None:
        if tags:
            self.tagged += 1
        if any_tag and not images:
            self.tagged_without_image += 1
            self.first_tagged_without_image = self.first_tagged_without_image or line
        elif tags and tags != images:
            self.differing += 1
            if not self.first_differing[0]:
                self.first_differing = (line, tags, images)
        elif images and not tags:
            self.untagged_with_image += 1
            self.first_untagged_with_image = self.first_untagged_with_image or line

    def to_list(self) -> list[Any]:
        return [
            self.tagged, self.tagged_without_image, self.first_tagged_without_image,
            self.differing, list(self.first_differing), self.untagged_with_image, self.first_untagged_with_image,
        ]  # fmt: skip

    @classmethod
    def from_list(cls, row: list[Any]) -> ImageTags:
        line, tags, images = row[4]
        return cls(row[0], row[1], row[2], row[3], (line, tags, images), row[5], row[6])


@dataclass(slots=True)
class ChunkTally:
    """Everything that a scan finds out about the records of one chunk.

    ``text_hashes`` has every line that is not blank; the other arrays have the records that can be converted.
    ``image_like`` counts, among some records, those whose value under a key looks like an image that is not stored,
    ``nested_like`` the ways to such values inside objects, ``file_like`` those that look like an audio or video file,
    ``media`` those that are messages which name some; ``files`` has the columns whose files are stored as they are;
    ``met`` has the keys of ``--drop`` and ``--rename`` that records had; ``held`` the keys of the only record of a file
    that hold objects, with their number; ``ready`` the samples that could be made already.
    """

    num_lines: int = 0
    offsets: array[int] = field(default_factory=lambda: array("Q"))
    line_nbytes: array[int] = field(default_factory=lambda: array("I"))
    lines: array[int] = field(default_factory=lambda: array("I"))
    record_hashes: array[int] = field(default_factory=lambda: array("Q"))
    text_hashes: array[int] = field(default_factory=lambda: array("Q"))
    id_hashes: array[int] = field(default_factory=lambda: array("Q"))
    image_hashes: array[int] = field(default_factory=lambda: array("Q"))
    compared_nbytes: array[int] = field(default_factory=lambda: array("Q"))
    keys: dict[str, KeyTally] = field(default_factory=dict)
    images: dict[str, ImageTally] = field(default_factory=dict)
    problems: ProblemLog = field(default_factory=lambda: ProblemLog(KEPT_PER_CHUNK))
    tags: ImageTags = field(default_factory=ImageTags)
    runs: RunsOfKeys = field(default_factory=RunsOfKeys)
    image_like: Counter[str] = field(default_factory=Counter)
    nested_like: Counter[str] = field(default_factory=Counter)
    file_like: Counter[str] = field(default_factory=Counter)
    media: Counter[str] = field(default_factory=Counter)
    files: set[str] = field(default_factory=set)
    met: set[str] = field(default_factory=set)
    held: dict[str, int] = field(default_factory=dict)
    ready: ReadyRecords = field(default_factory=ReadyRecords)

    def save(self, path: Path) -> None:
        """Write everything into one file that appears complete or not at all."""
        names = list(self.keys)
        heading: dict[str, Any] = {
            "num_lines": self.num_lines,
            "num_records": len(self.offsets),
            "num_texts": len(self.text_hashes),
            "keys": [[name, self.keys[name].kinds, len(self.keys[name].rows)] for name in names],
            "images": [
                [name, len(tally.rows), dict(tally.formats), tally.animated, tally.named]
                for name, tally in self.images.items()
            ],
            "problem_counts": dict(self.problems.counts),
            "problems": [
                # Images are checked in batches, so their problems are found behind those of later lines.
                problem.to_list()
                for problem in sorted(self.problems.kept, key=lambda problem: problem.line)
            ],
            "tags": self.tags.to_list(),
            "runs": self.runs.to_json(),
            "image_like": dict(self.image_like),
            "nested_like": dict(self.nested_like),
            "file_like": dict(self.file_like),
            "media": dict(self.media),
            "met": sorted(self.met),
            "files": sorted(self.files),
            "held": self.held,
            "ready": self.ready.save(ready_path(path)),
        }
        arrays = {
            "offsets": _array(self.offsets),
            "line_nbytes": _array(self.line_nbytes),
            "lines": _array(self.lines),
            "record_hashes": _array(self.record_hashes),
            "text_hashes": _array(self.text_hashes),
            "id_hashes": _array(self.id_hashes),
            "image_hashes": _array(self.image_hashes),
            "compared_nbytes": _array(self.compared_nbytes),
            "ready_nbytes": _array(self.ready.nbytes),
            "key_rows": _joined("I", [self.keys[name].rows for name in names]),
            "key_json": _joined("I", [self.keys[name].json_nbytes for name in names]),
            "key_utf8": _joined("I", [self.keys[name].utf8_nbytes for name in names]),
            "image_rows": _joined("I", [tally.rows for tally in self.images.values()]),
            "image_counts": _joined("I", [tally.counts for tally in self.images.values()]),
            "image_nbytes": _joined("Q", [tally.payload_nbytes for tally in self.images.values()]),
            "image_path": _joined("I", [tally.path_nbytes for tally in self.images.values()]),
            "image_path_json": _joined("I", [tally.path_json_nbytes for tally in self.images.values()]),
        }
        heading["arrays"] = [[name, values.dtype.str, len(values)] for name, values in arrays.items()]
        # Keys may hold any character; JSON text with escapes is plain ASCII.
        text = json.dumps(heading).encode()
        content = b"".join([len(text).to_bytes(8, "little"), text, *map(np.ndarray.tobytes, arrays.values())])
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        part.write_bytes(_MAGIC + xxhash.xxh3_128_digest(content) + content)
        part.replace(path)


def _array(values: array[int]) -> NDArray[Any]:
    return np.frombuffer(values, _CODES[values.typecode]) if values else np.zeros(0, _CODES[values.typecode])


def _joined(code: str, parts: list[array[int]]) -> NDArray[Any]:
    return np.concatenate([np.zeros(0, _CODES[code]), *(_array(part) for part in parts)])


class ChunkImages(NamedTuple):
    """The images under one key in one chunk, loaded again; arrays have one element for each record with images."""

    rows: NDArray[np.uint32]
    counts: NDArray[np.uint32]
    payload_nbytes: NDArray[np.uint64]
    path_nbytes: NDArray[np.uint32]
    path_json_nbytes: NDArray[np.uint32]


class SavedChunk:
    """A chunk's file: magic, digest of the rest, u64 length of the heading, heading (JSON), arrays.

    Raises:
        ValueError: not a complete file of this kind (left behind by a crash of the machine).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        whole = path.read_bytes()
        begin = len(_MAGIC) + _DIGEST_NBYTES
        content = memoryview(whole)[begin:]
        if whole[:begin] != _MAGIC + xxhash.xxh3_128_digest(content):
            raise ValueError(f"{path}: not a saved chunk, or a torn one ({len(whole)} bytes)")
        end = 8 + int.from_bytes(content[:8], "little")
        heading = json.loads(bytes(content[8:end]))
        self._arrays: dict[str, NDArray[Any]] = {}
        for name, dtype, count in heading["arrays"]:
            self._arrays[name] = np.frombuffer(content, dtype, count, end)
            end += self._arrays[name].nbytes
        self.num_lines: int = heading["num_lines"]
        self.num_records: int = heading["num_records"]
        self.num_texts: int = heading["num_texts"]
        self.key_headings: list[tuple[str, int, int]] = [(n, k, c) for n, k, c in heading["keys"]]
        self.image_headings: list[tuple[str, int, dict[str, int], int, int]] = [
            (n, c, f, a, named) for n, c, f, a, named in heading["images"]
        ]
        self.problem_counts: Counter[str] = Counter(heading["problem_counts"])
        self.problems = [Problem.from_list(row) for row in heading["problems"]]
        self.tags = ImageTags.from_list(heading["tags"])
        self.runs = parse_runs(heading["runs"])
        self.image_like: Counter[str] = Counter(heading["image_like"])
        self.nested_like: Counter[str] = Counter(heading["nested_like"])
        self.file_like: Counter[str] = Counter(heading["file_like"])
        self.media: Counter[str] = Counter(heading["media"])
        self.met: set[str] = set(heading["met"])
        self.files: set[str] = set(heading["files"])
        self.held: dict[str, int] = heading["held"]
        self.ready = None if heading["ready"] is None else ReadyHeading(*heading["ready"])

    def array(self, name: str) -> NDArray[Any]:
        return self._arrays[name]

    def keys(self) -> dict[str, ChunkKey]:
        """Sizes of the values under each key."""
        found: dict[str, ChunkKey] = {}
        begin = 0
        for name, _, count in self.key_headings:
            span = slice(begin, begin + count)
            found[name] = ChunkKey(
                self.array("key_rows")[span], self.array("key_json")[span], self.array("key_utf8")[span]
            )
            begin += count
        return found

    def images(self) -> dict[str, ChunkImages]:
        """Numbers and sizes of the images under each key."""
        found: dict[str, ChunkImages] = {}
        begin = 0
        for name, count, *_ in self.image_headings:
            span = slice(begin, begin + count)
            found[name] = ChunkImages(
                self.array("image_rows")[span],
                self.array("image_counts")[span],
                self.array("image_nbytes")[span],
                self.array("image_path")[span],
                self.array("image_path_json")[span],
            )
            begin += count
        return found


def image_column_nbytes(image: ImageColumn, chunk: SavedChunk) -> NDArray[np.int64]:
    """The stored bytes of an image column and its path column for each record: int64[num_records]."""
    found = chunk.images().get(image.key)
    if not image.listed:
        nbytes = np.full(chunk.num_records, 4 + 4 * image.named, np.int64)
        if found is not None:
            nbytes[found.rows] += found.payload_nbytes.astype(np.int64)
            if image.named:
                nbytes[found.rows] += found.path_nbytes
        return nbytes
    # u32 zero, u32 count; the path column of a record without images is "[]".
    nbytes = np.full(chunk.num_records, (4 + 8) + (4 + 2) * image.named, np.int64)
    if found is not None:
        nbytes[found.rows] += 4 * found.counts.astype(np.int64) + found.payload_nbytes.astype(np.int64)
        if image.named:
            nbytes[found.rows] += found.path_json_nbytes.astype(np.int64) - 2
    return nbytes

"""Planning: the findings of all chunks become columns, an order of records, and the borders of shards.

The plan is complete before the first shard is written. It lies in the work directory as ``plan.json``,
``rows`` (one fixed-size row for each record, in output order) and ``begins`` (first record of each shard), so that
any process can make any shard.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamshard.convert.columns import (
    EMPTY_LIST,
    NULL,
    OTHER,
    ColumnPlan,
    ImageColumn,
    KeySummary,
    plain_nbytes,
    plan_columns,
)
from streamshard.convert.findings import Findings
from streamshard.convert.finished import JobDigests
from streamshard.convert.options import ConvertOptions
from streamshard.convert.problems import (
    LISTED,
    REJECTED_BASENAME,
    TOO_LARGE,
    PlacedProblem,
    Problem,
    counts_text,
)
from streamshard.convert.references import KNOWN_IMAGE_KEYS
from streamshard.convert.rejected import RejectedList
from streamshard.convert.rows import ROW, open_rows, permutation, permute_file, sync_file
from streamshard.convert.sources import Source
from streamshard.convert.splits import keep_part
from streamshard.convert.tally import SavedChunk, image_column_nbytes
from streamshard.errors import ConvertError, FormatError
from streamshard.format.schema import Schema
from streamshard.format.shard import MAX_SHARD_NBYTES, ShardCutter, config_text

_LISTED_SKIPS = 100
_SIZES_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole conversion, decided. ``begins`` is int64[num_shards + 1], the first output row of each shard."""

    directory: Path
    columns: ColumnPlan
    sources: tuple[Source, ...]
    begins: NDArray[np.int64]
    extra: dict[str, Any]
    warnings: tuple[str, ...]
    skipped: Counter[str]
    skips: tuple[PlacedProblem, ...]
    payload_nbytes: int

    @property
    def num_shards(self) -> int:
        return len(self.begins) - 1

    @property
    def num_samples(self) -> int:
        return int(self.begins[-1])

    def has_sources(self) -> bool:
        """Whether all files that the plan reads are there."""
        return all(Path(source.path).exists() for source in self.sources)

    def schema(self) -> Schema:
        return Schema.from_columns(self.columns.encodings())

    def rows(self, shard: int) -> NDArray[Any]:
        """The rows of one shard, as a copy: structured array, see :data:`~streamshard.convert.rows.ROW`."""
        return np.array(open_rows(self.directory / "rows")[self.begins[shard] : self.begins[shard + 1]])

    def save(self) -> None:
        """Write ``begins`` and, last, ``plan.json``, whose presence says that the plan is complete."""
        with (self.directory / "begins.npy").open("wb") as file:
            np.save(file, self.begins)
            sync_file(file)
        shown = {
            "columns": self.columns.to_json(),
            "sources": [source.to_json() for source in self.sources],
            "extra": self.extra,
            "warnings": self.warnings,
            "skipped": self.skipped,
            "skips": [skip.to_json() for skip in self.skips],
            "payload_nbytes": self.payload_nbytes,
        }
        part = self.directory / "plan.json.part"
        with part.open("wb") as file:
            file.write(json.dumps(shown).encode())
            sync_file(file)
        part.replace(self.directory / "plan.json")

    @classmethod
    def load(cls, directory: Path) -> Plan:
        """Load a saved plan.

        Raises:
            FileNotFoundError: there is none.
        """
        shown = json.loads((directory / "plan.json").read_text(encoding="ascii"))
        return cls(
            directory,
            ColumnPlan.from_json(shown["columns"]),
            tuple(Source(*row) for row in shown["sources"]),
            np.load(directory / "begins.npy"),
            shown["extra"],
            tuple(shown["warnings"]),
            Counter(shown["skipped"]),
            tuple(PlacedProblem.from_json(skip) for skip in shown["skips"]),
            shown["payload_nbytes"],
        )


def make_plan(
    directory: Path,
    sources: Sequence[Source],
    chunks: Sequence[Sequence[Path]],
    options: ConvertOptions,
    declared: Mapping[str, str],
) -> Plan:
    """Merge the scanned chunks of each source into a plan, and save it.

    Args:
        directory: the work directory.
        sources: the inputs in order.
        chunks: for each source, the files of its chunks in order.
        options: of the conversion.
        declared: column → encoding, where they were settled before the scan.

    Raises:
        ConvertError: records that cannot be converted (unless they are to be skipped), no records at all,
            names that clash, too many columns.
    """
    found = _Merge(sources, chunks, options, directory / REJECTED_BASENAME)
    with found.rejected:
        return _planned(found, directory, sources, options, declared)


def _planned(
    found: _Merge,
    directory: Path,
    sources: Sequence[Source],
    options: ConvertOptions,
    declared: Mapping[str, str],
) -> Plan:
    found.read_headings()
    found.refuse_problems()
    if not found.num_records:
        raise ConvertError(found.nothing_text())
    found.refuse_unknown_costs()
    columns = plan_columns(
        found.keys, found.image_columns(), found.num_records, json_rest=options.json_rest, declared=declared
    )
    try:
        schema = Schema.from_columns(columns.encodings())
    except (FormatError, ValueError) as error:
        raise ConvertError(f"the records give no usable columns: {error}") from error
    config = config_text(
        schema, compression=options.compression, hashes=options.hashes, size_limit=options.size_limit
    )
    scanned = directory / "rows.scanned"
    num_samples, payload_nbytes = found.write_rows(scanned, columns, MAX_SHARD_NBYTES - len(config) - 12)
    found.refuse_problems()
    if not num_samples:
        raise ConvertError(found.nothing_text())
    if options.part is not None:
        payload_nbytes = keep_part(scanned, options.part)
        num_samples = len(open_rows(scanned))
        if not num_samples:
            raise ConvertError(
                f"{options.out}: a share of {options.part.end - options.part.begin:g} of {found.num_records} records"
                " has no record; choose larger shares"
            )
    rows = directory / "rows"
    if options.shuffle is None:
        scanned.replace(rows)
    else:
        permute_file(scanned, rows, permutation(num_samples, options.shuffle))
        scanned.unlink()
    begins = _cut(open_rows(rows), len(config), options)
    plan = Plan(
        directory,
        columns,
        tuple(sources),
        begins,
        found.extra(),
        tuple(found.findings.warnings(found.num_records)),
        found.problem_counts,
        tuple(found.problems[:_LISTED_SKIPS]),
        payload_nbytes,
    )
    plan.save()
    return plan


def _cut(rows: NDArray[Any], config_nbytes: int, options: ConvertOptions) -> NDArray[np.int64]:
    cutter = ShardCutter(
        config_nbytes, size_limit=options.size_limit, samples_per_shard=options.samples_per_shard
    )
    begins = [0]
    row = 0
    for begin in range(0, len(rows), _SIZES_AT_ONCE):
        for nbytes in rows["sample_nbytes"][begin : begin + _SIZES_AT_ONCE].tolist():
            if not cutter.fits(nbytes):
                begins.append(row)
                cutter.reset()
            cutter.add(nbytes)
            row += 1
    begins.append(row)
    return np.array(begins, np.int64)


class _Merge:
    def __init__(
        self,
        sources: Sequence[Source],
        chunks: Sequence[Sequence[Path]],
        options: ConvertOptions,
        rejected: Path,
    ) -> None:
        self.rejected = RejectedList(rejected)
        self._sources = sources
        self._chunks = chunks
        self._options = options
        self.keys: dict[str, KeySummary] = {}
        self.num_records = 0
        self.problem_counts: Counter[str] = Counter()
        self.problems: list[PlacedProblem] = []
        self.findings = Findings(options)
        self._image_rows: Counter[str] = Counter()
        self._image_names: Counter[str] = Counter()
        self._image_formats: dict[str, Counter[str]] = {}
        self._num_texts = 0
        self._digests = JobDigests(0)

    def _saved(self) -> Iterator[tuple[int, int, SavedChunk]]:
        """Source number, number of lines before the chunk, chunk: in input order."""
        for number, paths in enumerate(self._chunks):
            lines = 0
            for path in paths:
                chunk = SavedChunk(path)
                yield number, lines, chunk
                lines += chunk.num_lines

    def read_headings(self) -> None:
        """Add up what the headings of all chunks say."""
        records_of = [0] * len(self._sources)
        for number, lines, chunk in self._saved():
            source = self._sources[number]
            self.num_records += chunk.num_records
            self._num_texts += chunk.num_texts
            records_of[number] += chunk.num_records + sum(chunk.problem_counts.values())
            for name, kinds, count in chunk.key_headings:
                key = self.keys.setdefault(name, KeySummary())
                key.count += count
                key.kinds |= kinds
            for name, count, formats, animated, named in chunk.image_headings:
                self._image_rows[name] += count
                self._image_names[name] += named
                self._image_formats.setdefault(name, Counter()).update(formats)
                self.findings.animated += animated
            self.problem_counts += chunk.problem_counts
            room = max(LISTED, _LISTED_SKIPS) - len(self.problems)
            placed = [_placed(source, lines, problem) for problem in chunk.problems]
            self.rejected.add(placed)
            self.problems += placed[: max(0, room)]
            self.findings.add_tags(source, lines, chunk.tags)
        for source, records in zip(self._sources, records_of, strict=True):
            if not records:
                self.findings.empty_sources.append(source)
        self.findings.images = sum(self._image_rows.values())

    def refuse_problems(self) -> None:
        """Raise one error that lists what is wrong, if anything is, or where skipping is allowed, if too much is."""
        total = self.problem_counts.total()
        if not total:
            return
        advice = "mend the input, or leave such records out with --on-error skip"
        if self._options.on_error == "skip":
            limit = self._options.error_limit(self._num_texts)
            if limit is None or total <= limit:
                return
            advice = f"more than the {limit} of {self._num_texts} that --max-errors allows"
        elif total > LISTED:
            advice += f"; all of them are listed in {self.rejected.path}"
        listed = "\n".join(f"  {problem}" for problem in self.problems[:LISTED])
        more = f"\n  … and {total - LISTED} more" if total > LISTED else ""
        raise ConvertError(
            f"{total} record{'s' if total > 1 else ''} cannot be converted ({counts_text(self.problem_counts)}):\n"
            f"{listed}{more}\n{advice}"
        )

    def nothing_text(self) -> str:
        """Why there is nothing to write."""
        names = ", ".join(source.name for source in self._sources[:5])
        if not self.problem_counts:
            return f"0 samples: no records in {names}; nothing is written"
        listed = "\n".join(f"  {problem}" for problem in self.problems[:LISTED])
        return (
            f"0 samples: all {self.problem_counts.total()} records of {names} were skipped"
            f" ({counts_text(self.problem_counts)}); nothing is written:\n{listed}"
        )

    def image_columns(self) -> tuple[ImageColumn, ...]:
        """The image keys in order of name, each with the encoding that holds all its images."""
        for key in self._options.image_keys:
            if key != "none" and key not in self.keys and key not in self._image_rows:
                known = ", ".join(map(repr, sorted(self.keys)[:30]))
                raise ConvertError(f"--image-key {key!r}: no record has that key; there are: {known}")
        wanted = set(self._image_rows)
        if self._options.image_keys != ("none",):
            # A key that was named because images stand inside its messages stays a column of its own.
            wanted |= {
                key
                for key in self._options.image_keys
                if key not in self.keys or not self.keys[key].kinds & OTHER
            }
        columns = []
        for key in sorted(wanted):
            formats = self._image_formats.get(key, Counter())
            item = "png" if set(formats) == {"png"} else "jpeg"
            one_each = self._image_rows[key] == formats.total() == self.num_records
            named = self._image_names[key] > 0 or not self._image_rows[key]
            self._refuse_mixture(key)
            columns.append(ImageColumn(key, item if one_each else f"list[{item}]", not one_each, named))
        return tuple(columns)

    def _refuse_mixture(self, key: str) -> None:
        """Refuse a key that was taken for images by its values where other records hold something else under it."""
        asked_for = key in KNOWN_IMAGE_KEYS or key in self._options.image_keys
        if key in self.keys and not asked_for and self.keys[key].kinds & ~(NULL | EMPTY_LIST):
            raise ConvertError(
                f"key {key!r} holds image files in {self._image_rows[key]} of {self.keys[key].count} records and"
                f" something else in others; say --image-key {key} if all are to be images, or --drop {key}"
            )

    def refuse_unknown_costs(self) -> None:
        """Refuse a cost by a key that no record has: a slip of the pen would count 0 for all."""
        for name, key in self._options.costs:
            if key not in self.keys:
                known = ", ".join(map(repr, sorted(self.keys)[:30]))
                if key in self._options.drop or key in dict(self._options.rename):
                    continue  # a cost goes by the names of the input
                raise ConvertError(f"--cost {name}={key}: no record has that key; there are: {known}")

    def write_rows(self, path: Path, columns: ColumnPlan, largest: int) -> tuple[int, int]:
        """Write the rows of all records in input order; gives their number and the sum of their sizes.

        Records that no shard can hold become problems.
        """
        num_samples = payload_nbytes = 0
        self._digests = JobDigests(self._num_texts)
        with path.open("wb") as file:
            for number, lines, chunk in self._saved():
                nbytes = plain_nbytes(columns, chunk.keys(), chunk.num_records)
                for image in columns.images:
                    nbytes += image_column_nbytes(image, chunk)
                self._add_digests(chunk)
                self.findings.ids.append(chunk.array("id_hashes"))
                rows = np.zeros(chunk.num_records, ROW)
                rows["source"] = number
                rows["offset"] = chunk.array("offsets")
                rows["line_nbytes"] = chunk.array("line_nbytes")
                rows["sample_nbytes"] = nbytes
                rows["image_hash"] = chunk.array("image_hashes")
                if len(nbytes) and nbytes.max() > largest:
                    for row in np.flatnonzero(nbytes > largest).tolist():
                        problem = Problem(
                            int(chunk.array("lines")[row]),
                            TOO_LARGE,
                            f"the record takes {nbytes[row]} bytes, more than the {largest} that a shard can hold",
                        )
                        self.problem_counts[TOO_LARGE] += 1
                        placed = _placed(self._sources[number], lines, problem)
                        self.rejected.add([placed])
                        self.problems.append(placed)
                    rows = rows[nbytes <= largest]
                file.write(rows.tobytes())
                num_samples += len(rows)
                payload_nbytes += int(rows["sample_nbytes"].sum())
            sync_file(file)
        return num_samples, payload_nbytes

    def _add_digests(self, chunk: SavedChunk) -> None:
        image_nbytes = np.zeros(chunk.num_records, np.int64)
        for images in chunk.images().values():
            image_nbytes[images.rows] += images.payload_nbytes.astype(np.int64)
        self._digests.add_texts(chunk.array("text_hashes"))
        self._digests.add_images(chunk.array("record_hashes"), image_nbytes)

    def extra(self) -> dict[str, Any]:
        """The key ``"streamshard"`` of the index: facts about the data; no path, no time, no machine."""
        options = self._options
        return {
            "convert": {
                "check": options.check,
                "digests": self._digests.to_json(),
                "on_error": options.on_error,
                "options": options.portable_digest(),
                "records": self._num_texts,
                "shuffle": options.shuffle,
                "skipped": dict(self.problem_counts),
                "version": 1,
            },
            "images": {key: dict(formats) for key, formats in self._image_formats.items()},
        }


def _placed(source: Source, lines_before: int, problem: Problem) -> PlacedProblem:
    number = lines_before + problem.line
    return PlacedProblem(
        source.place(number), problem, source.name, source.unit or "line", source.before + number
    )

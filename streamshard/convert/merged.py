"""The findings of all scanned chunks put together: what is wrong with the input, its columns, its rows in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from streamshard.convert.class_names import (
    CLASS_NAMES_KEY,
    ClassNames,
    agreed_names,
    difference,
    names_in_facts,
    renamed,
)
from streamshard.convert.columns import (
    DECLARED,
    EMPTY_LIST,
    NULL,
    OTHER,
    ColumnPlan,
    ImageColumn,
    KeySummary,
    plain_nbytes,
)
from streamshard.convert.earlier_options import GIVEN_KEY, given_options
from streamshard.convert.files import FILE_ENCODINGS, NO_FILES
from streamshard.convert.findings import Findings
from streamshard.convert.finished import JobDigests
from streamshard.convert.media_parts import MEDIA_COLUMNS
from streamshard.convert.options import ConvertOptions
from streamshard.convert.problems import LISTED, TOO_LARGE, PlacedProblem, Problem, counts_text
from streamshard.convert.ready import ReadyHeading, join_ready, ready_path
from streamshard.convert.references import KNOWN_IMAGE_KEYS
from streamshard.convert.rejected import RejectedList
from streamshard.convert.rows import ROW, sync_file
from streamshard.convert.settling import IMAGE_FILES
from streamshard.convert.sources import TAR, Source
from streamshard.convert.tally import NOT_COMPARED, SavedChunk, image_column_nbytes
from streamshard.convert.tokenizing import TOKENS_KEY, token_columns
from streamshard.errors import ConvertError
from streamshard.storage.opening import is_local

LISTED_SKIPS = 100


class MergedScan:
    """What the chunks of all sources say together, in input order."""

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
        self.findings = Findings(options, rejected.parent)
        self._image_rows: Counter[str] = Counter()
        self._image_names: Counter[str] = Counter()
        self._image_formats: dict[str, Counter[str]] = {}
        self._files: set[str] = set()
        self._num_texts = 0
        self._class_names: ClassNames = {}
        self._digests = JobDigests(0)
        self._ready: list[tuple[Path, ReadyHeading]] = []
        self._are_all_ready = True

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
        records_seen = 0
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
            room = max(LISTED, LISTED_SKIPS) - len(self.problems)
            placed = [_placed(source, lines, problem) for problem in chunk.problems]
            self.rejected.add(placed)
            self.problems += placed[: max(0, room)]
            if chunk.num_records:
                if chunk.ready is None:
                    self._are_all_ready = False
                else:
                    self._ready.append((ready_path(chunk.path), chunk.ready))
                self.findings.runs.join(chunk.runs, is_first=not records_seen)
                records_seen += chunk.num_records
            self.findings.add_tags(source, lines, chunk.tags)
            self.findings.image_like += chunk.image_like
            self.findings.nested_like += chunk.nested_like
            self.findings.file_like += chunk.file_like
            self.findings.media += chunk.media
            self._files |= chunk.files
            self.findings.met |= chunk.met
            self.findings.held += [(source, name, count) for name, count in chunk.held.items()]
        for source, records in zip(self._sources, records_of, strict=True):
            if not records:
                self.findings.empty_sources.append(source)
        self.findings.unwanted = self._num_texts - self.num_records - self.problem_counts.total()
        if self._options.file_keys != NO_FILES:
            own = {key for key in self._options.file_keys if not self._holds_messages(key)}
            self._files |= own
            if len(own) < len(self._options.file_keys):
                like = dict(self._options.like)
                self._files |= {name for name in MEDIA_COLUMNS.values() if like.get(name) in FILE_ENCODINGS}
        self.findings.files = sum(self._image_rows[key] for key in self._files)
        self.findings.images = sum(self._image_rows.values()) - self.findings.files
        self.findings.tars = any(source.kind == TAR for source in self._sources)

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
        for key in self._options.file_keys if self._options.file_keys != NO_FILES else ():
            if key not in self.keys:
                known = ", ".join(map(repr, sorted(self.keys)[:30]))
                raise ConvertError(f"--file-key {key!r}: no record has that key; there are: {known}")
            if self._holds_messages(key) and self._image_rows[key]:
                raise ConvertError(
                    f"--file-key {key}: {self._image_rows[key]} of {self.keys[key].count} records have files there, and"
                    " others messages; give these a key of their own"
                )
        wanted = self._files.union(self._image_rows)
        if self._options.image_keys != ("none",):
            # A key that was named because images stand inside its messages stays a column of its own.
            wanted |= {
                key
                for key in self._options.image_keys
                if key not in self.keys or not self.keys[key].kinds & OTHER
            }
        like = {name: encoding for name, encoding in self._options.like if encoding in IMAGE_FILES}
        wanted |= {
            key for key in like if key not in self.keys or not self.keys[key].kinds & ~(NULL | EMPTY_LIST)
        }
        columns = []
        for key in sorted(wanted):
            if key in self._files:
                columns.append(self._file_column(key))
                continue
            if key in like:
                columns.append(self._image_column_like(key, like[key]))
                continue
            formats = self._image_formats.get(key, Counter())
            item = "png" if set(formats) == {"png"} else "jpeg"
            one_each = self._image_rows[key] == formats.total() == self.num_records
            named = self._image_names[key] > 0 or not self._image_rows[key]
            self._refuse_mixture(key)
            columns.append(ImageColumn(key, item if one_each else f"list[{item}]", not one_each, named))
        return tuple(columns)

    def _holds_messages(self, key: str) -> bool:
        """Whether a key of files is one of messages, whose files have columns of their own."""
        return key in self.keys and bool(self.keys[key].kinds & (OTHER | DECLARED))

    def _file_column(self, key: str) -> ImageColumn:
        """The column for files that are stored as they are."""
        like = dict(self._options.like)
        named = self._image_names[key] > 0 or not self._image_rows[key]
        listed = self._image_formats.get(key, Counter()).total() > self._image_rows[key]
        single, several = FILE_ENCODINGS
        if like.get(key) in FILE_ENCODINGS:
            named = f"{key}_path" in like
            if listed and like[key] == single:
                raise ConvertError(
                    f"{self._options.out}: column {key!r} ({single}) has at most one file in each sample there; here"
                    " some records have several: convert all of it anew, or make a record of each file"
                )
            listed = like[key] == several
        return ImageColumn(key, several if listed else single, listed, named)

    def _image_column_like(self, key: str, encoding: str) -> ImageColumn:
        """The column for images that are added to one of that encoding."""
        formats = self._image_formats.get(key, Counter())
        listed = encoding.startswith("list[")
        one_each = self._image_rows[key] == formats.total() == self.num_records
        others = set(formats) - {"png"}
        if not listed and not one_each:
            raise ConvertError(
                f"{self._options.out}: column {key!r} ({encoding}) has one image in every record there; here"
                f" {self.num_records} records have {formats.total()} images"
            )
        if "png" in encoding and others:
            raise ConvertError(
                f"{self._options.out}: column {key!r} ({encoding}) has PNG files alone there; here are"
                f" {', '.join(sorted(others))} files too"
            )
        return ImageColumn(key, encoding, listed, f"{key}_path" in dict(self._options.like))

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

    def join_ready(self, columns: ColumnPlan, target: Path) -> bool:
        """Put the samples that the scan has made ready into one file, if it has made all of them, as they will be.

        Where the shards come to the same disk, there has to be room for both.
        """
        shards = 0
        if is_local(self._options.out):
            shards = sum(heading.nbytes + heading.image_nbytes for _, heading in self._ready)
        return (
            self._are_all_ready
            and all(heading.fits(columns) for _, heading in self._ready)
            and join_ready(self._ready, target, leave_free_nbytes=shards)
        )

    def remove_ready(self) -> None:
        """Remove what :meth:`join_ready` joins."""
        for path, _ in self._ready:
            path.unlink(missing_ok=True)

    def write_rows(
        self, path: Path, columns: ColumnPlan, largest: int, *, ready: bool = False
    ) -> tuple[int, int]:
        """Write the rows of all records in input order; gives their number and the sum of their sizes.

        ``ready``: rows tell where records lie in the file that :meth:`join_ready` has made.

        Records that no shard can hold become problems.
        """
        num_samples = payload_nbytes = ready_nbytes = 0
        self._digests = JobDigests(self._num_texts)
        with path.open("wb") as file:
            for number, lines, chunk in self._saved():
                nbytes = plain_nbytes(columns, chunk.keys(), chunk.num_records)
                for image in columns.images:
                    nbytes += image_column_nbytes(image, chunk)
                self._add_digests(chunk)
                self.findings.add_ids(chunk.array("id_hashes"))
                rows = np.zeros(chunk.num_records, ROW)
                rows["source"] = number
                if ready:
                    ends = ready_nbytes + np.cumsum(chunk.array("ready_nbytes"), dtype=np.int64)
                    rows["line_nbytes"] = chunk.array("ready_nbytes")
                    rows["offset"] = ends - chunk.array("ready_nbytes")
                    ready_nbytes = int(ends[-1]) if len(ends) else ready_nbytes
                else:
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
        self._digests.add_texts(chunk.array("text_hashes"))
        nbytes = chunk.array("compared_nbytes")
        compared = nbytes != np.uint64(NOT_COMPARED)
        self._digests.add_images(chunk.array("record_hashes")[compared], nbytes[compared].astype(np.int64))

    def take_class_names(
        self, given: Sequence[Mapping[str, Sequence[str]]], facts: Mapping[str, Any]
    ) -> None:
        """Keep the names of classes that the sources give; ``facts`` are those of the dataset that is added to."""
        rename = dict(self._options.rename)
        names, differing = agreed_names([renamed(each, self._options.drop, rename) for each in given])
        self._class_names = {
            column: mine
            for column, mine in names.items()
            if column in self.keys or column.partition(".")[0] in self.keys
        }
        there = names_in_facts(facts)
        differing += [
            difference(column, there[column], mine, self._options.out, "what is added")
            for column, mine in self._class_names.items()
            if there.get(column, mine) != mine
        ]
        self.findings.differing_classes = differing

    def token_facts(self) -> dict[str, Any]:
        """What is said of each column of tokens."""
        return {column.column: column.to_json() for column in token_columns(self._options.tokenize)}

    def extra(self) -> dict[str, Any]:
        """The key ``"streamshard"`` of the index: facts about the data; no path, no time, no machine."""
        options = self._options
        tokens = self.token_facts()
        # Of a part it is not known which of the files are in it.
        formats = {key: dict(found) for key, found in self._image_formats.items() if options.part is None}
        files = {key: formats.get(key, {}) for key in sorted(self._files)}
        given = given_options(options)
        return {
            "convert": {
                "check": options.check,
                "digests": self._digests.to_json(),
                **({GIVEN_KEY: given} if given else {}),
                "on_error": options.on_error,
                "options": options.portable_digest(),
                "records": self._num_texts,
                "shuffle": options.shuffle,
                "skipped": dict(self.problem_counts),
                "version": 1,
            },
            "images": {key: found for key, found in formats.items() if key not in self._files},
            **({"files": files} if files and options.part is None else {}),
            **({TOKENS_KEY: tokens} if tokens else {}),
            **({CLASS_NAMES_KEY: self._class_names} if self._class_names else {}),
        }


def _placed(source: Source, lines_before: int, problem: Problem) -> PlacedProblem:
    number = lines_before + problem.line
    return PlacedProblem(
        source.place(number), problem, source.name, source.unit or "line", source.before + number
    )

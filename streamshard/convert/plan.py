"""Planning: the findings of all chunks become columns, an order of records, and the borders of shards.

The plan is complete before the first shard is written. It lies in the work directory as ``plan.json``,
``rows`` (one fixed-size row for each record, in output order) and ``begins`` (first record of each shard), so that
any process can make any shard.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streamshard.convert.columns import (
    ColumnPlan,
    plan_columns,
)
from streamshard.convert.earlier_options import unlike_images
from streamshard.convert.merged import LISTED_SKIPS, MergedScan
from streamshard.convert.options import ConvertOptions
from streamshard.convert.problems import (
    REJECTED_BASENAME,
    PlacedProblem,
)
from streamshard.convert.random_order import permutation_in_parts
from streamshard.convert.ready import READY_BASENAME
from streamshard.convert.rows import blocks_of_rows, open_rows, permute_file, sync_file
from streamshard.convert.sources import Source
from streamshard.convert.splits import keep_part
from streamshard.convert.tokenizing import TOKENS_KEY
from streamshard.errors import ConvertError, FormatError
from streamshard.format.schema import Schema
from streamshard.format.shard import MAX_SHARD_NBYTES, ShardCutter, config_text
from streamshard.write.append import Base

if TYPE_CHECKING:
    from streamshard.convert.intake import Scanned


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole conversion, decided. ``begins`` is int64[num_shards + 1], the first output row of each shard.

    ``ready``: rows tell where in the file of ready samples a record lies (see :mod:`~streamshard.convert.ready`), and
    not where in its source.
    """

    directory: Path
    columns: ColumnPlan
    sources: tuple[Source, ...]
    begins: NDArray[np.int64]
    extra: dict[str, Any]
    warnings: tuple[str, ...]
    skipped: Counter[str]
    skips: tuple[PlacedProblem, ...]
    payload_nbytes: int
    ready: bool = False

    @property
    def num_shards(self) -> int:
        return len(self.begins) - 1

    @property
    def num_samples(self) -> int:
        return int(self.begins[-1])

    def has_sources(self, engine: str) -> bool:
        """Whether all files that the plan reads are there, for the processes of an engine."""
        return all(Path(source.path).exists() for source in self.sources) and (
            not self.ready or (engine == "local" and self.ready_path.exists())
        )

    @property
    def ready_path(self) -> Path:
        """The file of ready samples."""
        return self.directory / READY_BASENAME

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
        self.save_heading()

    def save_heading(self) -> None:
        """Write ``plan.json`` alone."""
        shown = {
            "columns": self.columns.to_json(),
            "sources": [source.to_json() for source in self.sources],
            "extra": self.extra,
            "warnings": self.warnings,
            "skipped": self.skipped,
            "skips": [skip.to_json() for skip in self.skips],
            "payload_nbytes": self.payload_nbytes,
            "ready": self.ready,
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
            shown["ready"],
        )


def make_plan(
    directory: Path,
    scanned: Scanned,
    options: ConvertOptions,
    base: Base | None = None,
) -> Plan:
    """Merge the scanned chunks of each source into a plan, and save it.

    Args:
        directory: the work directory.
        scanned: the inputs in order, with all that was found in them.
        options: of the conversion.
        base: the dataset that is added to.

    Raises:
        ConvertError: records that cannot be converted (unless they are to be skipped), no records at all,
            names that clash, too many columns.
    """
    found = MergedScan(scanned.sources, scanned.chunks, options, directory / REJECTED_BASENAME)
    found.findings.beside = scanned.beside
    with found.rejected, contextlib.closing(found.findings):
        return _planned(found, directory, scanned, options, base)


def _planned(
    found: MergedScan,
    directory: Path,
    scanned: Scanned,
    options: ConvertOptions,
    base: Base | None,
) -> Plan:
    found.read_headings()
    found.refuse_problems()
    if not found.num_records:
        raise ConvertError(found.nothing_text())
    found.refuse_unknown_costs()
    columns = plan_columns(
        found.keys,
        found.image_columns(),
        found.num_records,
        json_rest=options.json_rest,
        declared=scanned.shaping.declared,
    )
    found.take_class_names(scanned.class_names, {} if base is None else base.index.facts)
    if base is not None:
        _refuse_other_columns(base, columns, found.token_facts())
        found.findings.unlike_base = unlike_images(base, options)
    try:
        schema = Schema.from_columns(columns.encodings())
    except (FormatError, ValueError) as error:
        raise ConvertError(f"the records give no usable columns: {error}") from error
    config = config_text(
        schema, compression=options.compression, hashes=options.hashes, size_limit=options.size_limit
    )
    unordered = directory / "rows.scanned"
    # Nodes of a cluster do not share the work directory, and the scan may be of an earlier run without one.
    ready = options.engine == "local" and found.join_ready(columns, directory / READY_BASENAME)
    num_samples, payload_nbytes = found.write_rows(
        unordered, columns, MAX_SHARD_NBYTES - len(config) - 12, ready=ready
    )
    found.refuse_problems()
    if not num_samples:
        raise ConvertError(found.nothing_text())
    if options.part is not None:
        payload_nbytes = keep_part(unordered, options.part)
        num_samples = len(open_rows(unordered))
        if not num_samples:
            raise ConvertError(
                f"{options.out}: a share of {options.part.end - options.part.begin:g} of {found.num_records} records"
                " has no record; choose larger shares"
            )
    rows = directory / "rows"
    if options.shuffle is None:
        unordered.replace(rows)
    else:
        permute_file(unordered, rows, permutation_in_parts(num_samples, options.shuffle))
        unordered.unlink()
    begins = _cut(rows, len(config), options)
    plan = Plan(
        directory,
        columns,
        tuple(scanned.sources),
        begins,
        found.extra(),
        tuple(found.findings.warnings(found.num_records, len(begins) - 1, columns.encodings())),
        found.problem_counts,
        tuple(found.problems[:LISTED_SKIPS]),
        payload_nbytes,
        ready,
    )
    plan.save()
    if options.part is None or not ready:  # else other parts are made of them, too
        found.remove_ready()
    return plan


def _refuse_other_columns(base: Base, columns: ColumnPlan, tokens: Mapping[str, Any]) -> None:
    try:
        base.check_columns(columns.encodings())
    except ValueError as error:
        raise ConvertError(f"{error}; --drop, --rename and --column make them fit") from error
    there = base.index.facts.get(TOKENS_KEY, {})
    for name, facts in tokens.items():
        if isinstance(there, dict) and there.get(name, facts) != facts:
            raise ConvertError(f"column {name!r}: made by another tokenizer than the one of --tokenize")


def _cut(path: Path, config_nbytes: int, options: ConvertOptions) -> NDArray[np.int64]:
    cutter = ShardCutter(
        config_nbytes, size_limit=options.size_limit, samples_per_shard=options.samples_per_shard
    )
    begins = [0]
    row = 0
    for rows in blocks_of_rows(path):
        begins += [row + cut for cut in cutter.add_all(rows["sample_nbytes"].astype(np.int64))]
        row += len(rows)
    begins.append(row)
    return np.array(begins, np.int64)

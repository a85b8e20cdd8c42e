"""The result of a conversion, for people and for scripts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from streamshard._sizes import format_bytes
from streamshard.convert.problems import LISTED, REJECTED_BASENAME, PlacedProblem


class Summary(NamedTuple):
    """What was made. ``nbytes`` counts the files as stored, ``raw_nbytes`` before compression.

    With ``dry_run`` nothing was: it is what would be, before compression, with the problems as skips.
    ``finished_before`` says that an earlier run had made all of it and nothing was done;
    ``samples_before`` counts those of the dataset that was added to, which all other numbers leave out;
    ``resumed_shards`` counts the shards taken over from an interrupted run.
    """

    out: str
    samples: int
    shards: int
    nbytes: int
    raw_nbytes: int
    seconds: float
    columns: Mapping[str, str]
    images: Mapping[str, Mapping[str, int]] = {}
    files: Mapping[str, Mapping[str, int]] = {}
    costs: Mapping[str, int] = {}
    skipped: Mapping[str, int] = {}
    skips: tuple[PlacedProblem, ...] = ()
    warnings: tuple[str, ...] = ()
    samples_before: int = 0
    resumed_shards: int = 0
    finished_before: bool = False
    dry_run: bool = False

    def to_json(self) -> dict[str, Any]:
        """Plain values for ``--json``."""
        return {
            "out": self.out,
            "samples": self.samples,
            "shards": self.shards,
            "bytes": self.nbytes,
            "raw_bytes": self.raw_nbytes,
            "seconds": round(self.seconds, 3),
            "columns": dict(self.columns),
            "images": {key: dict(formats) for key, formats in self.images.items()},
            "files": {key: dict(types) for key, types in self.files.items()},
            "costs": dict(self.costs),
            "skipped": sum(self.skipped.values()),
            "skipped_by_reason": dict(self.skipped),
            "skipped_records": [skip.to_json() for skip in self.skips],
            "warnings": list(self.warnings),
            "samples_before": self.samples_before,
            "resumed_shards": self.resumed_shards,
            "finished_before": self.finished_before,
            "dry_run": self.dry_run,
        }

    def lines(self) -> list[str]:
        """The summary as text."""
        if self.finished_before:
            made = f"{self.samples} samples in {self.shards} shards"
            return [
                f"{self.out} is finished already: {made}, made from the same records with the same options; nothing was"
                " done (of the images, the sizes of a sample were compared; --overwrite converts anew)"
            ]
        stored = format_bytes(self.nbytes)
        if self.raw_nbytes != self.nbytes:
            stored += f" ({format_bytes(self.raw_nbytes)} raw)"
        made = f"{self.samples} samples in {self.shards} shards, {stored}"
        first = f"{made}, in {self.seconds:.1f} s: {self.out}"
        lines = [
            f"nothing was written; it would be {made} before compression" if self.dry_run else first,
            "columns: " + ", ".join(f"{name} {encoding}" for name, encoding in sorted(self.columns.items())),
        ]
        if self.samples_before:
            lines.append(
                f"added to the {self.samples_before} samples there; {self.samples_before + self.samples} in all"
            )
        for what, found in (("images", self.images), ("files", self.files)):
            for key, formats in sorted(found.items()):
                counts = ", ".join(
                    f"{count} {name}" for name, count in sorted(formats.items(), key=lambda f: (-f[1], f[0]))
                )
                lines.append(f"{what} under {key!r}: {counts or 'none'}")
        for name, total in sorted(self.costs.items()):
            lines.append(f"cost {name}: {total} ({total / max(1, self.samples):.1f} a sample)")
        if self.resumed_shards:
            lines.append(f"resumed: {self.resumed_shards} shards were finished by an earlier run")
        if self.skipped:
            counts = ", ".join(f"{count} {reason}" for reason, count in sorted(self.skipped.items()))
            left_out = "cannot be converted" if self.dry_run else "skipped"
            lines.append(f"{left_out}: {sum(self.skipped.values())} records ({counts})")
            for skip in self.skips[:LISTED]:
                named = f" (id {skip.problem.record_id})" if skip.problem.record_id is not None else ""
                lines.append(f"  {skip}{named}")
            more = sum(self.skipped.values()) - min(LISTED, len(self.skips))
            if more > 0:
                lines.append(f"  … and {more} more")
            if not self.dry_run:
                lines.append(f"  all of them: {self.out.rstrip('/')}/{REJECTED_BASENAME}")
        lines += [f"warning: {warning}" for warning in self.warnings]
        return lines

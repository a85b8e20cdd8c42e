"""Where bad samples are written down: a report of JSON lines for each rank, or the log."""

from __future__ import annotations

import json
import logging
import os
import weakref
from pathlib import Path
from typing import NamedTuple

from streamshard.dataset.left_out import LeftOut
from streamshard.dataset.tolerance import Cause
from streamshard.errors import StorageError

logger = logging.getLogger(__name__)

# Causes that each worker puts into the log where there is no report.
_LOGGED = 3


class Incident(NamedTuple):
    """One bad sample, as it stands in a line of the report.

    Attributes:
        epoch, rank: where it was met.
        sample: its number in the dataset.
        stream: name or URL of its stream.
        shard, row: its place there.
        cause: what was wrong.
        action: ``"skip"``, ``"replace"``, or ``"raise"``: it was one too many.
        replacement: number of the sample that came in its place, None where none did.
    """

    epoch: int
    rank: int
    sample: int
    stream: str
    shard: str
    row: int
    cause: Cause
    action: str
    replacement: int | None

    def line(self) -> bytes:
        """Encode it as a line of JSON."""
        document = {**self._asdict(), "cause": {"type": self.cause.kind, "message": self.cause.message}}
        return json.dumps(document).encode() + b"\n"

    @property
    def place(self) -> str:
        """Where the sample is, for people."""
        return f"sample {self.sample} ({self.stream}, shard {self.shard!r}, row {self.row})"


def report_path(report: str, rank: int) -> Path:
    """Give one rank's file: ``bad-samples.rank00003.jsonl`` in a directory; for ``x.jsonl``, ``x.rank00003.jsonl``."""
    path = Path(report)
    if path.suffix == ".jsonl" and not path.is_dir():
        return path.with_name(f"{path.stem}.rank{rank:05d}.jsonl")
    return path / f"bad-samples.rank{rank:05d}.jsonl"


def open_report(report: str, rank: int) -> tuple[Path, int]:
    """Open one rank's report for appending, its directory made if need be.

    Raises:
        StorageError: it cannot be written.
    """
    path = report_path(report, rank).absolute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        return path, os.open(path, flags, 0o666)
    except OSError as error:
        raise StorageError(
            f"report={report!r}: cannot write {path}: {error.strerror}; name a directory that this job may write"
        ) from error


def check_report(report: str | None, rank: int) -> None:
    """Find out before an iteration begins whether its report can be written. Raises as ``open_report``."""
    if report is not None:
        os.close(open_report(report, rank)[1])


class Incidents:
    """Writes down the bad samples that one worker meets. Several may share a file: each line is one write.

    Args:
        report: directory or file, see ``report_path``; None: the first few go to the log.
        rank: of this process in the job.
        epoch, reader: for the messages at the end; ``reader`` says which worker this is.

    Raises:
        StorageError: the report cannot be written. Once it is open, nothing that happens to it ends the run.
    """

    def __init__(self, report: str | None, rank: int, *, epoch: int, reader: str) -> None:
        self._epoch = epoch
        self._reader = reader
        self._noted = 0
        self._lost = 0
        self._path: Path | None = None
        self._file = -1
        if report is not None:
            self._path, self._file = open_report(report, rank)
        self._close = weakref.finalize(self, _close, self._file)

    def note(self, incident: Incident) -> None:
        """Write down one bad sample."""
        self._noted += 1
        if self._path is None:
            if self._noted <= _LOGGED:
                logger.warning(
                    "epoch %d: %s: %s is bad: %s", self._epoch, self._reader, incident.place, incident.cause
                )
            return
        line = incident.line()
        try:
            written = os.write(self._file, line)
        except OSError as error:
            self._fail(error.strerror or str(error))
            return
        if written != len(line):
            self._fail(f"{written} of {len(line)} bytes written")

    def end(self, left_out: LeftOut) -> None:
        """Say what the iteration came to, and close the report. A second call does nothing."""
        if not self._close.alive:
            return
        self._close()
        if left_out.bad or self._lost:
            where = "" if self._path is None else f"; they are listed in {self._path}"
            if self._lost:
                where += f" except {self._lost:,}, which could not be written"
            logger.warning(
                "epoch %d: %s: %d bad samples left out or replaced, and %d that filter= left out%s",
                self._epoch,
                self._reader,
                *left_out,
                where,
            )

    def _fail(self, reason: str) -> None:
        self._lost += 1
        if self._lost == 1:
            logger.warning("%s cannot be written any more (%s); training goes on", self._path, reason)


def _close(descriptor: int) -> None:
    if descriptor >= 0:
        os.close(descriptor)

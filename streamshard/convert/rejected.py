"""The list of the records that cannot be converted, one JSON object a line, in the order in which they are found."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

from streamshard.convert.problems import PlacedProblem
from streamshard.convert.rows import sync_file


class RejectedList:
    """Written where there is something to write; the file of an earlier plan goes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[bytes] | None = None

    def __enter__(self) -> RejectedList:
        self.path.unlink(missing_ok=True)
        return self

    def add(self, problems: Sequence[PlacedProblem]) -> None:
        """Add lines with file, line (or row, …), id and path where known, reason and message."""
        if problems and self._file is None:
            self._file = self.path.open("wb")
        for problem in problems:
            if self._file is not None:
                self._file.write(json.dumps(problem.rejected()).encode() + b"\n")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            try:
                sync_file(self._file)
            finally:
                self._file.close()
                self._file = None

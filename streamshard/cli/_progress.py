"""How work in progress is shown: a bar where a person watches, plain lines in a log."""

from __future__ import annotations

import os
import sys
import time
from typing import Any, TextIO

from streamshard._sizes import format_bytes
from streamshard.cli._streams import patient
from streamshard.cli._text import printable

_SECONDS_BETWEEN_LINES = 10.0


class BarProgress:
    """A bar with bytes, rate and time left, for a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._bar: Any = None
        self._samples = 0

    def begin(self, phase: str, total_nbytes: int, total_samples: int | None) -> None:
        from tqdm import tqdm

        self.end()
        self._samples = 0
        tqdm.monitor_interval = 0  # no thread: it would keep worker processes from being copies of this one
        self._bar = tqdm(
            total=total_nbytes,
            desc=phase,
            unit="B",
            unit_scale=True,
            unit_divisor=1024,
            file=self._stream,
            **_shape(self._stream),
            leave=False,
        )

    def advance(self, nbytes: int, samples: int) -> None:
        if self._bar is None:
            return
        self._samples += samples
        self._bar.set_postfix_str(f"{self._samples} records", refresh=False)
        # Estimates may be passed by a little; a bar beyond its end would lose its shape.
        self._bar.update(min(nbytes, max(0, self._bar.total - self._bar.n)))

    def end(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def note(self, text: str) -> None:
        if self._bar is not None:
            self._bar.write(printable(text), file=self._stream)
        else:
            self._stream.write(f"{printable(text)}\n")
            self._stream.flush()


class LineProgress:
    """One line at the start of each phase and then every ten seconds, for logs."""

    def __init__(self, stream: TextIO, *, seconds: float = _SECONDS_BETWEEN_LINES) -> None:
        self._stream = stream
        self._seconds = seconds
        self._phase = ""
        self._total = self._done = self._samples = 0
        self._began = self._told = 0.0

    def begin(self, phase: str, total_nbytes: int, total_samples: int | None) -> None:
        self._phase, self._total = phase, total_nbytes
        self._done = self._samples = 0
        self._began = self._told = time.monotonic()
        records = "" if total_samples is None else f", {total_samples} records"
        self.note(f"{phase}: {format_bytes(total_nbytes)}{records}")

    def advance(self, nbytes: int, samples: int) -> None:
        self._done += nbytes
        self._samples += samples
        now = time.monotonic()
        if now - self._told < self._seconds:
            return
        self._told = now
        rate = self._done / max(now - self._began, 1e-9)
        left = max(0, self._total - self._done) / rate if rate else 0.0
        share = 100 * self._done / self._total if self._total else 100.0
        self.note(
            f"{self._phase}: {min(share, 100.0):.0f} %, {self._samples} records,"
            f" {format_bytes(self._done)} of {format_bytes(self._total)}, {format_bytes(rate)}/s,"
            f" {_duration(left)} left"
        )

    def end(self) -> None:
        """Nothing: the next phase or the summary follows."""

    def note(self, text: str) -> None:
        self._stream.write(f"{printable(text)}\n")
        self._stream.flush()


def _shape(stream: TextIO) -> dict[str, Any]:
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        size = os.terminal_size((0, 0))
    # Some terminals (of containers, of CI) say that they have no columns and rows; a bar of that size does not show.
    return {"dynamic_ncols": True} if size.columns and size.lines else {"ncols": 100, "nrows": 20}


def terminal_progress(stream: TextIO | None = None) -> BarProgress | LineProgress:
    """The way of showing progress that fits a stream (standard error). Where it cannot be shown, work goes on."""
    stream = patient(sys.stderr if stream is None else stream)
    return BarProgress(stream) if stream.isatty() else LineProgress(stream)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"

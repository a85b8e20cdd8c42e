"""What a conversion tells while it runs. The command line shows it; a library caller may not care."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called from the thread that runs the conversion."""

    def begin(self, phase: str, total_nbytes: int, total_samples: int | None) -> None:
        """A phase of this much work begins; the number of samples may not be known yet."""

    def advance(self, nbytes: int, samples: int) -> None:
        """So much more of the phase is done."""

    def end(self) -> None:
        """The phase is over."""

    def note(self, text: str) -> None:
        """Something that the user should know now."""


class SilentProgress:
    """Shows nothing."""

    def begin(self, phase: str, total_nbytes: int, total_samples: int | None) -> None:
        """Nothing."""

    def advance(self, nbytes: int, samples: int) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""

"""Image files that are open and whose bytes go straight to where they are wanted."""

from __future__ import annotations

import os

from streamshard.convert.problems import MISSING_IMAGE, RecordProblem, shorten


class OpenedImage:
    """An open image file. As part of a sample it has a length, in bytes, and is read when its place is known.

    Args:
        file: descriptor, at the beginning of the file; closed by :meth:`close`.
        nbytes: size of the file.
        name: of the file, for messages.
    """

    __slots__ = ("_file", "_name", "nbytes")

    def __init__(self, file: int, nbytes: int, name: str) -> None:
        self._file = file
        self.nbytes = nbytes
        self._name = name

    def __len__(self) -> int:
        return self.nbytes

    def read_into(self, place: memoryview) -> None:
        """Read the whole file.

        Args:
            place: uint8[len(self)].

        Raises:
            RecordProblem: the file has become shorter, or cannot be read.
        """
        try:
            begin = os.readv(self._file, [place])
            while begin < self.nbytes:
                more = os.readv(self._file, [place[begin:]])
                if not more:
                    raise changed_problem(self._name)
                begin += more
        except OSError as error:
            raise unread_problem(self._name, error) from None

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def changed_problem(name: str) -> RecordProblem:
    """What to say of a file that is shorter than it was a moment ago."""
    return RecordProblem(
        MISSING_IMAGE, f"image {shorten(name)} changed while it was read; run again when it is quiet"
    )


def unread_problem(name: str, error: OSError) -> RecordProblem:
    """What to say of a file that is there and whose bytes the system does not give."""
    return RecordProblem(MISSING_IMAGE, f"image {shorten(name)} cannot be read: {error.strerror}")

"""Reading a remote file piece by piece, as much at once as the link's speed allows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamshard.errors import StorageError
from streamshard.storage.failures import http_status
from streamshard.storage.redact import public_url
from streamshard.storage.store import Version, check_size

# A window is what one call reads: several pieces at once, because one connection to a bucket is slow.
_PIECE_NBYTES = 4 << 20
PART_NBYTES = _PIECE_NBYTES
"""What of one file comes over one connection when several are used at once."""
_BEYOND_THE_END = 416  # how a server refuses a range of which it has nothing
_WINDOW_NBYTES = 4 * _PIECE_NBYTES
_SMALLEST_WINDOW_NBYTES = 64 << 10


# S3 and HTTP; Google and Azure; Hugging Face.
_TAGS = ("ETag", "etag", "blob_id")
_MAX_TAG = 200


class Window:
    """The bytes [position, stop) that one call reads, as large as the link's speed allows."""

    def __init__(self, begin: int, end: int) -> None:
        self.position = begin
        self.pieces: dict[int, bytes] = {}
        self._end = end
        self._next_nbytes = _WINDOW_NBYTES
        self.stop = min(end, begin + _WINDOW_NBYTES)

    def shrink(self) -> None:
        """Ask for little next time: a slow link is not a dead one."""
        self.pieces.clear()
        self.stop = min(self._end, self.position + _SMALLEST_WINDOW_NBYTES)

    def measure(self, seconds: float, limit_s: float) -> None:
        """Make the next window one that arrives in a quarter of the time limit."""
        rate = (self.stop - self.position) / max(seconds, 1e-3)
        self._next_nbytes = int(min(_WINDOW_NBYTES, max(_SMALLEST_WINDOW_NBYTES, rate * limit_s / 4)))

    def advance(self) -> None:
        """Go on to the next window."""
        self.pieces.clear()
        self.position = self.stop
        self.stop = min(self._end, self.position + self._next_nbytes)


def read_pieces(
    fs: Any, path: str, begin: int, end: int, probed_end: int, have: frozenset[int], expected: int, what: str
) -> tuple[dict[int, bytes], Exception | None]:
    """Read the pieces of [begin, end) that are not in ``have``, the last one up to ``probed_end``.

    Returns the pieces that came, by offset, and the first error: what came is kept for the next try.
    """
    offsets = [offset for offset in range(begin, end, _PIECE_NBYTES) if offset not in have]
    stops = [min(end, offset + _PIECE_NBYTES) for offset in offsets]
    asked = [probed_end if stop == end else stop for stop in stops]
    answers = fs.cat_ranges([path] * len(offsets), offsets, asked, on_error="return")
    pieces: dict[int, bytes] = {}
    failed: Exception | None = None
    for offset, stop, answer in zip(offsets, stops, answers, strict=True):
        if isinstance(answer, Exception):
            if http_status(answer) == _BEYOND_THE_END:
                check_size(remote_size(fs, path), expected, what)
            failed = failed or answer
        elif len(answer) == stop - offset:
            pieces[offset] = bytes(answer)
        else:
            nbytes = remote_size(fs, path)
            if nbytes < stop or (probed_end > end and nbytes != end):
                check_size(nbytes, expected, what)
            if len(answer) == nbytes:  # a server that ignores ranges sends everything
                pieces[offset] = bytes(answer[offset:stop])
            else:
                failed = failed or ConnectionError(f"got {len(answer)} bytes of {stop - offset} at {offset}")
    return pieces, failed


def remote_size(fs: Any, path: str) -> int:
    """Bytes of a file; FileNotFoundError if it is missing or a directory."""
    return remote_version(fs, path).nbytes


def remote_version(fs: Any, path: str) -> Version:
    """Size and tag of a file; FileNotFoundError if it is missing or a directory."""
    fs.invalidate_cache(path)
    info = fs.info(path)
    if info.get("type") == "directory":
        raise FileNotFoundError(f"{path} is a directory")
    nbytes = info.get("size")
    if not isinstance(nbytes, int):
        raise StorageError(
            f"{public_url(path)}: the server does not tell its size, which is needed to read it safely"
        )
    return Version(nbytes, _tag(info))


def _tag(info: Mapping[str, Any]) -> str | None:
    """Find what changes with the content. Times of change do not: two contents may have the same second."""
    for name in _TAGS:
        tag = info.get(name)
        if (
            isinstance(tag, str) and 0 < len(tag) <= _MAX_TAG and not tag.startswith("W/")
        ):  # that is a weak one
            return f"{name} {tag}"
    return None

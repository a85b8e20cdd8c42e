"""Compression of whole shard files: ``"zstd:3"``, ``"gz"``, ``"bz2:9"``, ``"br:11"``, ``"snappy"``.

One frame, one thread, no time stamp: equal input gives equal output for one version of the library.
"""

from __future__ import annotations

import bz2
import struct
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

from streamshard.errors import FormatError, MissingDependencyError

# algorithm (also the suffix of the file) -> (lowest, highest, default level)
LEVELS: dict[str, tuple[int, int, int] | None] = {
    "br": (0, 11, 11),
    "bz2": (1, 9, 9),
    "gz": (0, 9, 9),
    "snappy": None,
    "zstd": (1, 22, 3),
}
_CHUNK = 1 << 20
_MOST_RAW_NBYTES = 2**32 - 1
# A copy of 64 bytes takes 3 in snappy's format: nothing grows more when it is unpacked.
_SNAPPY_GROWTH = 22


class Compression(NamedTuple):
    """One algorithm at one level. ``name`` is what the user wrote and what the index holds."""

    name: str
    algorithm: str
    level: int

    @property
    def suffix(self) -> str:
        """What is added to a shard's file name, with the dot."""
        return "." + self.algorithm

    def compress(self, raw: bytes | bytearray) -> bytes:
        """Compress a whole file."""
        if self.algorithm == "zstd":
            return bytes(_zstandard().ZstdCompressor(level=self.level).compress(raw))
        if self.algorithm == "gz":
            return _gzip(raw, self.level)
        if self.algorithm == "bz2":
            return bz2.compress(raw, self.level)
        if self.algorithm == "br":
            return bytes(_brotli().compress(raw, quality=self.level))
        return bytes(_snappy().compress(raw))


def parse_compression(name: str | None) -> Compression | None:
    """Parse ``"algorithm"`` or ``"algorithm:level"``; None and "" mean no compression.

    Raises:
        ValueError: an unknown algorithm or a level out of range.
    """
    if not name:
        return None
    algorithm, colon, level = name.partition(":") if isinstance(name, str) else ("", "", "")
    if algorithm in LEVELS:
        bounds = LEVELS[algorithm]
        if not colon:
            return Compression(name, algorithm, bounds[2] if bounds else 0)
        if bounds and level in map(str, range(bounds[0], bounds[1] + 1)):
            return Compression(name, algorithm, int(level))
    known = ", ".join(a if b is None else f"{a}:{b[0]}..{b[1]}" for a, b in LEVELS.items())
    raise ValueError(f"compression={name!r}: expected one of {known}")


def decompress_file(src: BinaryIO, dst: BinaryIO, algorithm: str, *, raw_nbytes: int | None) -> int:
    """Decompress ``src`` into ``dst`` in pieces, never past ``raw_nbytes``; return the bytes written.

    Memory is a few MiB, except for snappy, whose block format needs source and result whole.

    Args:
        raw_nbytes: the size that must come out; None where it is not known: any below 4 GiB, as of a shard.

    Raises:
        FormatError: more or fewer bytes than declared, or bytes that the algorithm does not take.
    """
    pieces = _DECOMPRESSORS.get(algorithm)
    if pieces is None:
        raise FormatError(f"unknown compression {algorithm!r:.40}; known: {', '.join(LEVELS)}")
    written = 0
    most = _MOST_RAW_NBYTES if raw_nbytes is None else raw_nbytes
    for piece in pieces(src, raw_nbytes):
        written += len(piece)
        if written > most:
            declared = "a shard may have" if raw_nbytes is None else "that the index declares"
            raise FormatError(f"{algorithm} file gives more than the {most} bytes {declared}")
        dst.write(piece)
    if raw_nbytes is not None and written != raw_nbytes:
        raise FormatError(f"{algorithm} file gives {written} bytes, the index declares {raw_nbytes}")
    return written


def _gzip(raw: bytes | bytearray, level: int) -> bytes:
    # Written by hand: the header that Python's gzip module writes differs between its versions.
    deflate = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
    head = b"\x1f\x8b\x08\x00\0\0\0\0" + {9: b"\x02", 1: b"\x04"}.get(level, b"\x00") + b"\xff"
    tail = struct.pack("<II", zlib.crc32(raw), len(raw) & 0xFFFFFFFF)
    return b"".join([head, deflate.compress(raw), deflate.flush(), tail])


def _inflate_members(
    src: BinaryIO, make: Any, failures: tuple[type[Exception], ...], name: str
) -> Iterator[bytes]:
    """Run a zlib or bz2 decompressor over all members of a file, in pieces of at most a chunk."""
    source = src.read(_CHUNK)
    while source:
        machine = make()
        while not machine.eof:
            try:
                piece = machine.decompress(source, _CHUNK)
            except failures as error:
                raise FormatError(f"not a {name} file, or a broken one: {error}") from error
            # zlib hands back what it did not take; bz2 keeps it and says whether it needs more.
            source = getattr(machine, "unconsumed_tail", b"")
            if piece:
                yield piece
            if not machine.eof and not source and getattr(machine, "needs_input", True):
                source = src.read(_CHUNK)
                if not source and not piece:
                    raise FormatError(f"{name} file ends too early")
        source = machine.unused_data or src.read(_CHUNK)


def _gz_pieces(src: BinaryIO, _: int | None) -> Iterator[bytes]:
    return _inflate_members(src, lambda: zlib.decompressobj(16 + zlib.MAX_WBITS), (zlib.error,), "gz")


def _bz2_pieces(src: BinaryIO, _: int | None) -> Iterator[bytes]:
    return _inflate_members(src, bz2.BZ2Decompressor, (OSError, ValueError), "bz2")


def _zstd_pieces(src: BinaryIO, _: int | None) -> Iterator[bytes]:
    zstandard = _zstandard()
    try:
        with zstandard.ZstdDecompressor().stream_reader(
            src, read_across_frames=True, closefd=False
        ) as reader:
            while piece := reader.read(_CHUNK):
                yield piece
    except zstandard.ZstdError as error:
        raise FormatError(f"not a zstd file, or a broken one: {error}") from error


def _br_pieces(src: BinaryIO, _: int | None) -> Iterator[bytes]:
    brotli = _brotli()
    machine = brotli.Decompressor()
    bounded = hasattr(machine, "can_accept_more_data")
    try:
        # Before 1.2 brotli has no bound on what one call gives: small bites keep that in reason.
        while source := src.read(_CHUNK if bounded else 64):
            if machine.is_finished():
                raise FormatError("br file has bytes after its end")
            yield machine.process(source, output_buffer_limit=_CHUNK) if bounded else machine.process(source)
            while bounded and not machine.can_accept_more_data():
                yield machine.process(b"", output_buffer_limit=_CHUNK)
    except brotli.error as error:
        raise FormatError(f"not a br file, or a broken one: {error}") from error
    if not machine.is_finished():
        raise FormatError("br file ends too early")


def _snappy_pieces(src: BinaryIO, raw_nbytes: int | None) -> Iterator[bytes]:
    snappy = _snappy()
    # The format grows no input by more than a sixth; read no more than that could need.
    most = _MOST_RAW_NBYTES if raw_nbytes is None else raw_nbytes
    source = _read_at_most(src, 32 + most + most // 6 + 1)
    declared = _varint(source)
    if raw_nbytes is not None and declared != raw_nbytes:
        raise FormatError(f"snappy file declares {declared} bytes, the index {raw_nbytes}")
    if declared > _SNAPPY_GROWTH * len(source):  # before so much memory is taken
        raise FormatError(f"snappy file of {len(source)} bytes declares {declared}, which it cannot hold")
    try:
        yield bytes(snappy.decompress(source))
    except Exception as error:  # python-snappy raises its own class or cramjam's, by version
        raise FormatError(f"not a snappy file, or a broken one: {error}") from error


def _read_at_most(src: BinaryIO, nbytes: int) -> bytes:
    """Read up to so many bytes, taking memory only for what is there."""
    pieces, left = [], nbytes
    while left and (piece := src.read(min(_CHUNK, left))):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _varint(source: bytes) -> int:
    value = 0
    for place, byte in enumerate(source[:5]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value
    raise FormatError("not a snappy file: no length at its start")


_DECOMPRESSORS = {
    "br": _br_pieces,
    "bz2": _bz2_pieces,
    "gz": _gz_pieces,
    "snappy": _snappy_pieces,
    "zstd": _zstd_pieces,
}


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise MissingDependencyError(
            "zstd needs zstandard; install it with: pip install zstandard"
        ) from error
    return zstandard


def _brotli() -> Any:
    try:
        import brotli
    except ImportError as error:
        raise MissingDependencyError(
            "br needs brotli; install it with: pip install 'streamshard[codecs]'"
        ) from error
    return brotli


def _snappy() -> Any:
    try:
        import snappy
    except ImportError as error:
        raise MissingDependencyError(
            "snappy needs python-snappy; install it with: pip install 'streamshard[codecs]'"
        ) from error
    return snappy
